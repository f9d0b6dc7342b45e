"""Files whose prose `make lint` checks.

Every package is in the list. A new package or folder of pages must join it at once.
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
    "models/**/*.py",
    "tasks/**/*.py",
)
