"""The pool that comes closest to serving a job without a pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rules.routing.labels import PoolLabels, describe_rule, refusing_rule


def closest_pool(
    pools: Sequence[tuple[str, PoolLabels]], *, labels: Iterable[str], account_id: int, repository: str
) -> str | None:
    """Return a sentence about the pool that comes closest to serving a job.

    Return None if there is no pool, or if the job has no labels. `pools` has the name and the routing fields of each
    pool.
    """
    wanted = frozenset(label.lower() for label in labels)
    if not pools or not wanted:
        return None
    name, pool = min(pools, key=lambda pair: (len(wanted - pair[1].labels), pair[0]))
    missing = sorted(wanted - pool.labels)
    if missing:
        return f"The closest pool is {name}, which lacks the labels {', '.join(missing)}."
    rule = refusing_rule(pool, account_id=account_id, full_name=repository.lower(), public=False, fork=False)
    if rule is not None:
        return f"Pool {name} has these labels, but {describe_rule(rule, account_id=account_id, repository=repository)}."
    return f"Pool {name} serves the job now."
