"""Jobs without labels: their pool, and the words about them.

GitHub sends a job without labels if `runs-on` names only a runner group, and no call of its API shows the group before
the job runs. A pool must therefore declare that it serves such jobs (`spec.serveUnlabelled`), and one pool may do so
for each account. If the workflow names another group than the pool, GitHub gives the job to no runner of the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

ONLY_A_GROUP = "the workflow names only a runner group, and no pool declares that it serves such jobs"
"""Detail of the hold of a job without labels that has no pool."""

NOT_GIVEN = "GitHub gives the job, which has no labels, to no runner of the pool"
"""Reason for the release of a runner that stays idle while its job without labels stays queued."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A pool that declares that it serves jobs without labels, and whose jobs it serves.

    `id` is the id of the pool's row. An empty allow list allows all.
    """

    id: int
    name: str
    accounts: frozenset[int]
    repositories: frozenset[str]


def earlier_pool(
    others: Iterable[Declared], *, own_id: int | None, accounts: Collection[int], repositories: Collection[str]
) -> str | None:
    """Return the name of a pool that serves jobs without labels of an account of another pool, or None.

    - `others`: the pools that declared it.
    - `own_id`: the id of the row of the asking pool if this row declares it too, or None. Of two rows that declare it,
      the later one is refused.
    - `accounts`, `repositories`: the allow lists of the asking pool. An empty list allows all.
    """
    for each in sorted(others, key=lambda other: other.id):
        is_earlier = own_id is None or each.id < own_id
        if is_earlier and _meet(each.accounts, accounts) and _meet(_owners(each.repositories), _owners(repositories)):
            return each.name
    return None


def _owners(repositories: Collection[str]) -> frozenset[str]:
    return frozenset(each.partition("/")[0].lower() for each in repositories)


def _meet(some: Collection[object], others: Collection[object]) -> bool:
    return not some or not others or not set(some).isdisjoint(others)


def problem_beside(other: str) -> str:
    """Return why a pool cannot serve jobs without labels beside the pool `other`."""
    return (
        f"spec.serveUnlabelled: pool {other} already serves the jobs without labels of an account of this pool; remove "
        "the field from one of the two, or name different accounts in allowedAccounts"
    )


def not_given(*, pool: str, group: str) -> str:
    """Return the detail of the hold of a job without labels that GitHub gave to no runner.

    `group` is the name or the number of the pool's runner group.
    """
    named = "the default runner group" if group == "1" else f"runner group {group}"
    return f"{NOT_GIVEN} {pool}; the runners are in {named}, and the workflow probably names another group"
