"""Files whose prose `make lint` checks.

The list only grows: a file or a folder joins it when `python -m tests.prose FILE` has no finding left. New pages and
new modules join it at once.
"""

from __future__ import annotations

CLEAN = (
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/laws.md",
    "docs/configuration.md",
    "docs/decisions/0001-lock-file.md",
    "docs/decisions/0002-github-client.md",
    "docs/decisions/0003-plain-sql-in-models.md",
    "docs/decisions/0004-kill-points-from-the-transition-table.md",
    "docs/decisions/0005-only-an-older-job-reserves.md",
    "docs/decisions/0006-a-release-never-waits-for-a-stamp-that-stays.md",
    "docs/decisions/0007-absence-is-proven-by-a-get.md",
    "docs/decisions/0011-short-calls-in-loops.md",
    "docs/decisions/0013-gates-in-postgres.md",
    "docs/decisions/0019-who-may-use-a-pool.md",
    "docs/decisions/0020-a-first-poll-is-the-keepers.md",
    "docs/decisions/0022-what-holds-a-pool.md",
    "docs/decisions/0030-a-changed-pool-is-marked-first.md",
    "docs/decisions/0034-runner-pods-tolerate-lost-nodes.md",
    "docs/decisions/0035-when-a-pod-is-over.md",
    "docs/decisions/0038-a-second-run-of-stories.md",
    "docs/decisions/0039-the-clock-of-postgres.md",
    "docs/decisions/0042-strangers-are-held.md",
    "docs/decisions/0046-the-edge-of-web.md",
    "docs/decisions/0050-messages-for-operators.md",
    "docs/decisions/0052-the-longest-job.md",
    "docs/decisions/0057-runners-that-never-execute.md",
    "docs/decisions/0059-a-refusal-holds-what-was-asked.md",
    "docs/decisions/0064-the-way-out-of-a-corporate-network.md",
    "docs/decisions/0065-the-user-of-runner-pods.md",
    "docs/decisions/0068-refused-mints-degrade-their-pool.md",
    "docs/decisions/0074-a-small-prose-linter.md",
    "docs/decisions/README.md",
    "docs/first-run.md",
    "docs/operations/certificates.md",
    "docs/operations/nodes.md",
    "beat_schedule.py",
    "poller/__init__.py",
    "tests/prose/*.py",
    "tests/unit/test_*.py",
)
