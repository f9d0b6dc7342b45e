"""Epoch judgement: whether this Postgres is older than the state recorded in the cluster.

A number in Postgres and in the cluster increases every few seconds, first in Postgres. So the cluster's number is never
higher, unless Postgres was restored to an earlier state. Then every Pod that was claimed since would look free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLUSTER_LOST_IT = "the cluster's epoch is gone"
"""Prefix of a verdict that was reached without the cluster's epoch."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Epoch of one side. `database` identifies the Postgres that wrote it: created once, and restored with a backup."""

    number: int
    database: str


class Standing(StrEnum):
    """Comparison of the two sides.

    - `current`: Postgres is as new as the cluster; the epoch may increase.
    - `first`: the cluster has no epoch. Postgres writes one, unless Pods are stamped by claims that it does not know.
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
        """Whether the absence of a row in Postgres proves nothing."""
        return self.standing in {Standing.OLDER, Standing.FOREIGN}


def judge_epoch(ours: Epoch, cluster: Epoch | None, *, unknown_stamps: int) -> EpochVerdict:
    """Return the standing of Postgres; the cluster's epoch was read before ours.

    `unknown_stamps`: number of Pods stamped by claims that Postgres does not know, counted if the cluster has no epoch.
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
