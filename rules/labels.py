"""Which pool serves a job.

A pool serves a job when its labels cover the job's labels, ignoring case, and its allow lists name the
job's account and repository (an empty list allows all). Of several pools the one with exactly the job's
labels wins, then the one with the fewest labels, then the highest `spec.routingPriority`. What is equal
after that is held for a human, never guessed: a guess would change with the order of the rows.

A job without labels is served by no pool: every pool would cover it, and GitHub never sends one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rules.holds import HoldReason


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """What of a pool decides whether it serves a job.

    `labels` and `allowed_repositories` (`owner/name`) are lower-cased; an empty allow list allows all.
    Of two `routing_priority` the higher wins.
    """

    id: int
    labels: frozenset[str]
    routing_priority: int
    allowed_accounts: frozenset[int]
    allowed_repositories: frozenset[str]


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool of a job, or why it has none: exactly one of `pool_id` and `hold_reason` is set.

    `candidates` are the pools between which it was decided: all that serve the job, best first; of a job
    held as `two_pools` only the tied ones, by id.
    """

    pool_id: int | None
    hold_reason: HoldReason | None
    candidates: tuple[int, ...]


def choose_pool(pools: Iterable[PoolLabels], *, labels: Iterable[str], account_id: int, repository: str) -> PoolChoice:
    """Return the pool that serves a job with these labels (any case) of this account and repository."""
    wanted = frozenset(label.lower() for label in labels)
    full_name = repository.lower()
    serving = sorted((pool for pool in pools if _serves(pool, wanted, account_id, full_name)), key=_rank)
    if not serving:
        return PoolChoice(pool_id=None, hold_reason=HoldReason.NO_POOL, candidates=())
    best = _merit(serving[0])
    tied = tuple(pool.id for pool in serving if _merit(pool) == best)
    if len(tied) > 1:
        return PoolChoice(pool_id=None, hold_reason=HoldReason.TWO_POOLS, candidates=tied)
    return PoolChoice(pool_id=tied[0], hold_reason=None, candidates=tuple(pool.id for pool in serving))


def _serves(pool: PoolLabels, wanted: frozenset[str], account_id: int, full_name: str) -> bool:
    return (
        bool(wanted)
        and wanted <= pool.labels
        and (not pool.allowed_accounts or account_id in pool.allowed_accounts)
        and (not pool.allowed_repositories or full_name in pool.allowed_repositories)
    )


def _merit(pool: PoolLabels) -> tuple[int, int]:
    # Of pools that cover the job, the exact set is the one with the fewest labels: one key says both.
    return len(pool.labels), -pool.routing_priority


def _rank(pool: PoolLabels) -> tuple[int, int, int]:
    return *_merit(pool), pool.id
