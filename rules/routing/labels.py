"""Choice of the pool for a job.

A pool serves a job under five conditions:

- The pool's labels cover the job's labels, ignoring case. See below about jobs without labels.
- The pool's allow lists name the job's account and repository, or are empty.
- If the pool's runners are persistent, they are registered in the job's organisation or repository. GitHub gives them
  no jobs of others.
- The job is not from a fork of a public repository, or the pool allows forks. A pool above the Pod Security level
  `restricted` must allow forks in two fields of its spec. If later runners get the volumes of the pool's runners, the
  job is not from a fork of a private repository either.
- The job's repository is private, or the pool's runners keep nothing for later jobs. GitHub might give the job of a
  fork to each runner that may execute jobs of a public repository (`rules.routing.forks.private_only`).

If several pools serve the job, the pool with exactly the job's labels gets the job. If there is no such pool, the pool
with the fewest labels gets the job. Among pools with the same number of labels, the pool with the highest
`spec.routingPriority` gets the job. If pools are still equal, the job is held until a person decides. An arbitrary
choice would change with the order of the rows.

A job without labels is served only by a pool that declares it, because every pool would cover such a job
(`rules.routing.unlabelled`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rules.routing.forks import Origin, private_only
from rules.routing.holds import HoldReason
from rules.routing.scopes import Scope
from rules.routing.unlabelled import ONLY_A_GROUP

MOST_REFUSALS = 3
"""Maximum number of pools that the detail of a hold names. Hundreds of pools might refuse a job."""


class Rule(StrEnum):
    """Rule of a pool's spec that refuses a job whose labels the pool covers."""

    ACCOUNTS = "allowedAccounts"
    REPOSITORIES = "allowedRepositories"
    REGISTRATION = "registration"
    FORKS = "allowForks"
    ELEVATED_FORKS = "security.allowForks"
    VOLUMES = "volumes.reclaim"
    PERSISTENT = "lifecycle"


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """Fields of a pool that decide whether the pool serves a job.

    `labels` and `allowed_repositories` (`owner/name`, or `owner/*` for all of an owner) are in lower case. An empty
    allow list allows all. Among equal pools, the pool with the highest `routing_priority` gets the job. `runner_group`
    is the number or the name of a group of the job's owner. `elevated` is True if the pool is above the Pod Security
    level `restricted`. In this case, `allow_forks` is True only if both fields of the spec allow forks. `retains` is
    True if later runners get the volumes of earlier runners. `registers_in` is the scope of persistent runners, or
    None.
    """

    id: int
    labels: frozenset[str]
    routing_priority: int
    allowed_accounts: frozenset[int]
    allowed_repositories: frozenset[str]
    allow_forks: bool = False
    elevated: bool = False
    name: str = ""
    runner_group: int | str = 1
    retains: bool = False
    registers_in: str | None = None
    serves_unlabelled: bool = False
    """True if the pool serves jobs without labels."""

    @property
    def private_only(self) -> bool:
        """Return True if the pool serves private repositories only."""
        persistent = self.registers_in is not None
        return private_only(retains=self.retains, persistent=persistent, allow_forks=self.allow_forks)

    def serves_forks(self, *, public: bool) -> bool:
        """Return True if the pool serves jobs of forks. `public`: True if the repository of the job is public.

        Only people who may read a private repository can fork it, so most pools trust these forks. A fork must not
        reach volumes that later runners get. For persistent runners, this is decided by GitHub: it chooses their jobs.
        """
        return self.allow_forks or not (public or (self.retains and self.registers_in is None))

    def covers(self, wanted: frozenset[str]) -> bool:
        """Return True if the pool's runners have these labels (lower case), or serve jobs without labels."""
        return wanted <= self.labels if wanted else self.serves_unlabelled

    @property
    def has_group(self) -> bool:
        """Return False if the pool's runners are registered in one repository, where no runner groups exist."""
        return self.registers_in is None or self.registers_in.startswith("orgs/")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pool that covers the job's labels, and the rule of this pool that refuses the job."""

    pool: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool of a job, or the reason why the job has no pool. Exactly one of `pool_id` and `hold_reason` is set.

    `candidates` are the pools that serve the job, best first. If the job is held as `two_pools`, `candidates` has only
    the equal pools, by id. If the job is held as `not_allowed`, `refusals` has a refusal for each pool that covers the
    job's labels, best pool first. Otherwise `refusals` is empty.
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
    public: bool,
    origin: Origin = Origin.HERE,
) -> PoolChoice:
    """Return the choice of the pool for a job with these labels (any case), account, repository and origin.

    `public`: True if the repository is public.

    If the origin is unknown and the choice depends on the origin, the job is held.
    """
    wanted = frozenset(label.lower() for label in labels)
    covering = [pool for pool in pools if pool.covers(wanted)]
    decide = partial(_choose, covering, account_id=account_id, full_name=repository.lower(), public=public)
    here = decide(fork=origin is Origin.FORK)
    if origin is not Origin.UNKNOWN:
        return here
    fork = decide(fork=True)
    if (here.pool_id, here.hold_reason) == (fork.pool_id, fork.hold_reason):
        return here
    return PoolChoice(pool_id=None, hold_reason=HoldReason.ORIGIN_UNKNOWN, candidates=here.candidates)


def _choose(covering: Sequence[PoolLabels], *, account_id: int, full_name: str, public: bool, fork: bool) -> PoolChoice:
    ranked = sorted(covering, key=_rank)
    rules = {
        pool.id: refusing_rule(pool, account_id=account_id, full_name=full_name, public=public, fork=fork)
        for pool in ranked
    }
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


def refusing_rule(pool: PoolLabels, *, account_id: int, full_name: str, public: bool, fork: bool) -> Rule | None:
    """Return the rule of a pool that refuses a job, or None if the pool serves the job.

    The pool must cover the job's labels. `full_name` is in lower case. `public`: True if the repository is public.
    """
    if pool.allowed_accounts and account_id not in pool.allowed_accounts:
        return Rule.ACCOUNTS
    if pool.allowed_repositories and pool.allowed_repositories.isdisjoint(
        {full_name, f"{full_name.partition('/')[0]}/*"}
    ):
        return Rule.REPOSITORIES
    if pool.registers_in is not None and not Scope.parse(pool.registers_in).covers(full_name):
        return Rule.REGISTRATION
    if fork and not pool.serves_forks(public=public):
        return Rule.ELEVATED_FORKS if pool.elevated else Rule.FORKS
    if public and pool.private_only:
        return Rule.VOLUMES if pool.retains else Rule.PERSISTENT
    return None


def detail_of(choice: PoolChoice, *, labels: Collection[str], account_id: int, repository: str) -> str | None:
    """Return the detail of a hold, which complements the reason. Return None if the job has a pool."""
    match choice.hold_reason:
        case None:
            return None
        case HoldReason.TWO_POOLS:
            return f"pools with the ids {', '.join(map(str, choice.candidates))}"
        case HoldReason.ORIGIN_UNKNOWN:
            return f"it is not yet known whether the run of the job comes from a fork of {repository}"
        case HoldReason.NOT_ALLOWED:
            told = [
                f"pool {each.pool}: {describe_rule(each.rule, account_id=account_id, repository=repository)}"
                for each in choice.refusals[:MOST_REFUSALS]
            ]
            more = len(choice.refusals) - len(told)
            return "; ".join(told) + (f"; and {more} more" if more else "")
        case _:
            return f"labels {', '.join(labels)}" if labels else ONLY_A_GROUP


def describe_rule(rule: Rule, *, account_id: int, repository: str) -> str:
    """Return a phrase that says why a pool with this rule refuses a job."""
    match rule:
        case Rule.ACCOUNTS:
            return f"its {rule} do not name account {account_id}"
        case Rule.REPOSITORIES:
            return f"its {rule} do not name {repository}"
        case Rule.REGISTRATION:
            return f"its {rule} does not cover {repository}, so GitHub gives none of its jobs to these runners"
        case Rule.FORKS:
            return f"its {rule} is false, and the run comes from a fork of {repository}"
        case Rule.VOLUMES:
            return f"its {rule} is Retain, and {repository} is public, so a job of a fork could reach its volumes"
        case Rule.PERSISTENT:
            return (
                f"its {rule} is persistent, its {Rule.FORKS} is false, and {repository} is public, so a job of a fork "
                "could reach its runners"
            )
        case Rule.ELEVATED_FORKS:
            return (
                f"it is above the Pod Security level restricted, so it serves the fork of {repository} only if both "
                f"its {Rule.FORKS} and its {rule} are true"
            )


def _merit(pool: PoolLabels) -> tuple[int, int]:
    # Among pools that cover the job, the exact match has the fewest labels, so one key implements both rules.
    return len(pool.labels), -pool.routing_priority


def _rank(pool: PoolLabels) -> tuple[int, int, int]:
    return *_merit(pool), pool.id
