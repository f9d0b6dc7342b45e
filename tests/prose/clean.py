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
    "k8s_adapters/events.py",
    "beat_schedule.py",
    "github_adapters/client.py",
    "github_adapters/calls/answers.py",
    "github_adapters/calls/retry.py",
    "github_adapters/calls/session.py",
    "github_adapters/endpoints/*.py",
    "rules/intake/*.py",
    "web/edge/*.py",
    "web/process/*.py",
    "poller/__init__.py",
    "tests/**/*.py",
    "lab/**/*.py",
    "benchmarks/**/*.py",
)
