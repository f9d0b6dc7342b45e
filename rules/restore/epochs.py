"""Epoch judgement: whether this Postgres is older than the state recorded in the cluster.

Postgres and the cluster both store the epoch, a number that increases every few seconds. Each new number is written to
Postgres first. The cluster's number can therefore be higher only if Postgres went back to an earlier state. This
happens when a backup is restored, or when a failover loses transactions. Pods that were claimed after that state would
then look free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLUSTER_LOST_IT = "the cluster's epoch is gone"
"""Prefix of the reason of a verdict that was reached without the cluster's epoch."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Epoch in Postgres or in the cluster. `database` is the identifier of the Postgres that wrote the epoch.

    The identifier is created once and is part of every backup.
    """

    number: int
    database: str


class Standing(StrEnum):
    """Comparison of the epoch in Postgres with the epoch in the cluster.

    - `current`: Postgres is as new as the cluster, and the epoch may increase.
    - `first`: the cluster has no epoch, and no Pod has the stamp of a claim that Postgres does not know. The next step
      is to write an epoch to the cluster.
    - `older`: Postgres was restored to an earlier state.
    - `foreign`: another Postgres wrote the cluster's epoch.
    """

    CURRENT = "current"
    FIRST = "first"
    OLDER = "older"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class EpochVerdict:
    """The result of a comparison, with the reason for an operator."""

    standing: Standing
    why: str

    @property
    def older(self) -> bool:
        """Return whether rows might be missing. If rows might be missing, the absence of a row proves nothing."""
        return self.standing in {Standing.OLDER, Standing.FOREIGN}


def judge_epoch(ours: Epoch, cluster: Epoch | None, *, unknown_stamps: int) -> EpochVerdict:
    """Return the verdict on Postgres. The caller must read the cluster's epoch before the epoch of Postgres.

    `unknown_stamps` is the number of Pods with the stamp of a claim that Postgres does not know. The number matters
    only if the cluster has no epoch.
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
            f"another Postgres wrote the epoch of the cluster (epoch {cluster.number}) and served its runner Pods last",
        )
    if cluster.number > ours.number:
        return EpochVerdict(
            Standing.OLDER,
            (
                f"Postgres is at epoch {ours.number} and the cluster at {cluster.number}: Postgres was restored to an "
                "earlier state"
            ),
        )
    return EpochVerdict(Standing.CURRENT, "Postgres is as new as the cluster")
