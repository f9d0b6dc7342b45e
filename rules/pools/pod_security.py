"""Pod Security levels of pools: the order of the levels, and the pools that ask for more than the cluster allows.

The levels are those of the Kubernetes documentation, "Pod Security Standards". A runner Pod has the level `restricted`
unless its pool asks for more. The owner of the cluster bounds what pools may ask for (`runners.allowedPodSecurity` of
the chart). All pools above `restricted` are in a second namespace (OSTLER_ELEVATED_NAMESPACE), because Pod Security
enforces one level per namespace.
"""

from __future__ import annotations

from enum import StrEnum


class PodSecurity(StrEnum):
    """Pod Security level, from the strictest to the weakest."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"
    PRIVILEGED = "privileged"

    @property
    def rank(self) -> int:
        """Return the position of the level. A weaker level has a higher rank."""
        return list(PodSecurity).index(self)

    @property
    def elevated(self) -> bool:
        """Return True if Pods of this level may do more than Pods of the level `restricted`."""
        return self is not PodSecurity.RESTRICTED


_ASKS = "spec.security.podSecurity asks for"


def refusal(asked: PodSecurity, *, allowed: PodSecurity, namespace: str, elevated_namespace: str | None) -> str | None:
    """Return why a pool of this namespace must not have the level that it asks for, or None if it may have the level.

    `allowed` is the weakest level that the owner of the cluster allows. `elevated_namespace` is the namespace of the
    pools above `restricted`, or None if no pool may be above `restricted`. The answer is one sentence with cause and
    cure.
    """
    if not asked.elevated:
        return None
    if elevated_namespace is None or asked.rank > allowed.rank:
        most = PodSecurity.RESTRICTED if elevated_namespace is None else allowed
        return (
            f"{_ASKS} {asked}, and this cluster allows {most} at most: create the pool with a level that is allowed, "
            "or have the owner of the cluster raise runners.allowedPodSecurity of the chart"
        )
    if namespace != elevated_namespace:
        return (
            f"{_ASKS} {asked}, and pools above restricted are allowed in namespace {elevated_namespace} only: create "
            "the pool there"
        )
    return None


def is_refusal(problem: str) -> bool:
    """Return True if this problem of a pool was made by `refusal`."""
    return problem.startswith(_ASKS)


def admits_forks(level: PodSecurity, *, allow_forks: bool, elevated_forks: bool) -> bool:
    """Return True if a pool admits jobs of forks.

    `allow_forks` is spec.allowForks, and `elevated_forks` is spec.security.allowForks. For a pool above `restricted`,
    both fields must be true.
    """
    return allow_forks and (elevated_forks or not level.elevated)
