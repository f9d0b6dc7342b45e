"""Which pool serves a job.

A pool serves a job when its labels cover the job's labels, ignoring case, its allow lists name the job's account and
repository (an empty list allows all), and the job is no fork's or the pool allows those. Of several pools the one with
exactly the job's labels wins, then the one with the fewest labels, then the highest `spec.routingPriority`. What is
equal after that is held for a human, never guessed: a guess would change with the order of the rows.

A job without labels is served by no pool: every pool would cover it, and GitHub never sends one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rules.routing.forks import Origin
from rules.routing.holds import HoldReason

MOST_REFUSALS = 3
"""Pools of which a hold's detail tells the rule; there may be hundreds."""


class Rule(StrEnum):
    """What of a pool's spec keeps a job out whose labels it covers."""

    ACCOUNTS = "allowedAccounts"
    REPOSITORIES = "allowedRepositories"
    FORKS = "allowForks"


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """What of a pool decides whether it serves a job.

    `labels` and `allowed_repositories` (`owner/name`) are lower-cased; an empty allow list allows all.
    Of two `routing_priority` the higher wins. `runner_group`: a number or a name, resolved where the job is.
    """

    id: int
    labels: frozenset[str]
    routing_priority: int
    allowed_accounts: frozenset[int]
    allowed_repositories: frozenset[str]
    allow_forks: bool = False
    name: str = ""
    runner_group: int | str = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pool that covers the job's labels, and the rule that keeps the job out."""

    pool: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool of a job, or why it has none: exactly one of `pool_id` and `hold_reason` is set.

    `candidates` are the pools between which it was decided: all that serve the job, best first; of a job
    held as `two_pools` only the tied ones, by id. `refusals`: of a job held as `not_allowed`, best pool first.
    """

    pool_id: int | None
    hold_reason: HoldReason | None
    candidates: tuple[int, ...]
    refusals: tuple[Refusal, ...] = ()


def choose_pool(
    pools: Iterable[PoolLabels],
    *,
    labels: Iterable[str],
    account_id: int,
    repository: str,
    origin: Origin = Origin.HERE,
) -> PoolChoice:
    """Return the pool that serves a job with these labels (any case) of this account, repository and origin.

    Where it is not known whether a fork sent the job it is held, unless that makes no difference.
    """
    wanted = frozenset(label.lower() for label in labels)
    covering = [pool for pool in pools if wanted and wanted <= pool.labels]
    here = _choose(covering, account_id=account_id, full_name=repository.lower(), fork=origin is Origin.FORK)
    if origin is not Origin.UNKNOWN:
        return here
    fork = _choose(covering, account_id=account_id, full_name=repository.lower(), fork=True)
    if (here.pool_id, here.hold_reason) == (fork.pool_id, fork.hold_reason):
        return here
    return PoolChoice(pool_id=None, hold_reason=HoldReason.ORIGIN_UNKNOWN, candidates=here.candidates)


def _choose(covering: Sequence[PoolLabels], *, account_id: int, full_name: str, fork: bool) -> PoolChoice:
    ranked = sorted(covering, key=_rank)
    rules = {pool.id: refusing_rule(pool, account_id=account_id, full_name=full_name, fork=fork) for pool in ranked}
    serving = [pool for pool in ranked if rules[pool.id] is None]
    if not serving:
        refusals = tuple(Refusal(pool.name, rule) for pool in ranked if (rule := rules[pool.id]) is not None)
        reason = HoldReason.NOT_ALLOWED if refusals else HoldReason.NO_POOL
        return PoolChoice(pool_id=None, hold_reason=reason, candidates=(), refusals=refusals)
    best = _merit(serving[0])
    tied = tuple(pool.id for pool in serving if _merit(pool) == best)
    if len(tied) > 1:
        return PoolChoice(pool_id=None, hold_reason=HoldReason.TWO_POOLS, candidates=tied)
    return PoolChoice(pool_id=tied[0], hold_reason=None, candidates=tuple(pool.id for pool in serving))


def refusing_rule(pool: PoolLabels, *, account_id: int, full_name: str, fork: bool) -> Rule | None:
    """Return the rule of a pool that keeps out a job whose labels it covers; `full_name` is lower-cased."""
    if pool.allowed_accounts and account_id not in pool.allowed_accounts:
        return Rule.ACCOUNTS
    if pool.allowed_repositories and full_name not in pool.allowed_repositories:
        return Rule.REPOSITORIES
    if fork and not pool.allow_forks:
        return Rule.FORKS
    return None


def detail_of(choice: PoolChoice, *, labels: Iterable[str], account_id: int, repository: str) -> str | None:
    """Return what is to be known of a hold beside its reason; None of a job that has its pool."""
    match choice.hold_reason:
        case None:
            return None
        case HoldReason.TWO_POOLS:
            return f"pools {', '.join(map(str, choice.candidates))}"
        case HoldReason.ORIGIN_UNKNOWN:
            return f"whether its run comes from a fork of {repository} is not known yet"
        case HoldReason.NOT_ALLOWED:
            told = [
                f"pool {each.pool}: {describe_rule(each.rule, account_id=account_id, repository=repository)}"
                for each in choice.refusals[:MOST_REFUSALS]
            ]
            more = len(choice.refusals) - len(told)
            return "; ".join(told) + (f"; and {more} more" if more else "")
        case _:
            return f"labels {', '.join(labels)}"


def describe_rule(rule: Rule, *, account_id: int, repository: str) -> str:
    """Return in words which rule of a pool keeps a job out."""
    match rule:
        case Rule.ACCOUNTS:
            return f"its {rule} do not name account {account_id}"
        case Rule.REPOSITORIES:
            return f"its {rule} do not name {repository}"
        case Rule.FORKS:
            return f"its {rule} is false, and the run comes from a fork of {repository}"


def _merit(pool: PoolLabels) -> tuple[int, int]:
    # Of pools that cover the job, the exact set is the one with the fewest labels: one key says both.
    return len(pool.labels), -pool.routing_priority


def _rank(pool: PoolLabels) -> tuple[int, int, int]:
    return *_merit(pool), pool.id
