"""Is this Postgres older than what the cluster knows? The epoch's one judgement.

A number in Postgres and in the cluster rises every few seconds, in Postgres first. So the cluster's is never the
higher one, unless Postgres was put back to an earlier state: then every Pod that was claimed since would look free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLUSTER_LOST_IT = "the cluster's epoch is gone"
"""What a verdict begins with that was reached without the cluster's epoch."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One side's epoch. `database` names the Postgres that wrote it: made once, and put back with a backup."""

    number: int
    database: str


class Standing(StrEnum):
    """What the two sides say of each other.

    - `current`: Postgres is as new as the cluster; the epoch may rise.
    - `first`: the cluster has none. Postgres writes one, unless Pods are stamped by claims that it does not know.
    - `older`: Postgres was put back to an earlier state.
    - `foreign`: another Postgres wrote the cluster's.
    """

    CURRENT = "current"
    FIRST = "first"
    OLDER = "older"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class EpochVerdict:
    """A standing, and why in words for an operator."""

    standing: Standing
    why: str

    @property
    def older(self) -> bool:
        """Whether nothing may be concluded from what Postgres does not know."""
        return self.standing in {Standing.OLDER, Standing.FOREIGN}


def judge_epoch(ours: Epoch, cluster: Epoch | None, *, unknown_stamps: int) -> EpochVerdict:
    """Return where Postgres stands; the cluster's side was read before ours.

    `unknown_stamps`: Pods stamped by claims that Postgres does not know, counted where the cluster has no epoch.
    """
    if cluster is None:
        if unknown_stamps:
            return EpochVerdict(
                Standing.OLDER,
                f"{CLUSTER_LOST_IT}, and {unknown_stamps} Pods carry stamps of claims that Postgres does not know",
            )
        return EpochVerdict(Standing.FIRST, "the cluster has no epoch yet")
    if cluster.database != ours.database:
        return EpochVerdict(
            Standing.FOREIGN,
            f"the Pods of this namespace were last served from another Postgres, at its epoch {cluster.number}",
        )
    if cluster.number > ours.number:
        return EpochVerdict(
            Standing.OLDER,
            f"Postgres is at epoch {ours.number} and the cluster at {cluster.number}: it was put back to an earlier "
            "state",
        )
    return EpochVerdict(Standing.CURRENT, "Postgres is as new as the cluster")
