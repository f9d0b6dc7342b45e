"""Files whose prose `make lint` checks.

The list only grows: a file or a folder joins it when `python -m tests.prose FILE` has no finding left. New pages and
new modules join it at once.
"""

from __future__ import annotations

CLEAN = (
    "*.md",
    "docs/**/*.md",
    "charts/**/*.md",
    "compose/*.md",
    "benchmarks/notes/*.md",
    "beat_schedule.py",
    "poller/__init__.py",
    "tests/**/*.py",
    "lab/**/*.py",
    "benchmarks/**/*.py",
    "ostler/**/*.py",
    "rules/**/*.py",
    "k8s_adapters/**/*.py",
    "deploys/**/*.py",
    "watch/**/*.py",
    "cli/**/*.py",
    "web/**/*.py",
    "github_adapters/**/*.py",
    "container_hooks/**/*.py",
    "models/*.py",
    "models/migrations/*.py",
    "models/migrations/versions/*.py",
    "tasks/*.py",
    "tasks/intake/*.py",
    "tasks/routing/*.py",
)
