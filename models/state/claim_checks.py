"""Results of checks on live claims: of their runners, forced deletion, and the stamp that a restore found."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from rules.claims.machines import Stamp
from rules.sweeps.runner_checks import ListedRunner


def set_absent(db: Connection, claim_id: int, *, absent: bool, now: datetime) -> None:
    """Record the time of the first check that did not find the runner of a claim.

    If `absent` is True, `now` is recorded, unless the time of an earlier check is already recorded. If `absent` is
    False, the present check found the runner, and the recorded time is cleared.
    """
    db.execute(
        text("""
            UPDATE claims SET runner_absent_at = CASE WHEN :absent THEN coalesce(runner_absent_at, :now) END
            WHERE id = :id AND ended_at IS NULL
        """),
        {"id": claim_id, "absent": absent, "now": now},
    )


def set_free(db: Connection, claim_id: int, *, free: bool, absent: bool | None, since: datetime, at: datetime) -> None:
    """Record the first check after `since` that found a claim's runner absent or idle.

    `at` is the time of the present check. `free` is True if the present check found the runner absent or idle. `absent`
    is True if the present check did not find the runner.

    `free` determines the column `runner_idle_at`, and `absent` determines the column `runner_absent_at`. If the
    parameter is True, `at` is written into its column, unless the column already contains a time after `since`. If the
    parameter is False, its column is set to NULL. If `absent` is None, `runner_absent_at` does not change.
    """
    db.execute(
        text("""
            UPDATE claims SET runner_idle_at = CASE WHEN NOT :free THEN NULL
                                               WHEN runner_idle_at >= :since THEN runner_idle_at ELSE :at END,
                   runner_absent_at = CASE WHEN CAST(:absent AS boolean) IS NULL THEN runner_absent_at
                                           WHEN NOT :absent THEN NULL
                                           WHEN runner_absent_at >= :since THEN runner_absent_at ELSE :at END
            WHERE id = :id
        """),
        {"id": claim_id, "free": free, "absent": absent, "since": since, "at": at},
    )


def allow_force(db: Connection, claim_id: int | None, *, now: datetime) -> bool:
    """Allow a retire claim to delete its Pod by force, without a confirmation from the Pod's kubelet.

    Return False if the claim has ended or `claim_id` is None.
    """
    allowed = db.execute(
        text("UPDATE claims SET force_deleted_at = :now WHERE id = :id AND ended_at IS NULL RETURNING id"),
        {"id": claim_id, "now": now},
    ).one_or_none()
    return allowed is not None


def show_stamp(db: Connection, claim_id: int, stamp: Stamp) -> None:
    """Record the present stamp of a claim's Pod, if the recorded stamp is `removing`.

    A restore calls this function when it has decided that the claim stays live. The un-stamp is then no longer
    wanted.
    """
    db.execute(
        text("UPDATE claims SET stamp = :stamp WHERE id = :id AND stamp = :removing"),
        {"id": claim_id, "stamp": stamp, "removing": Stamp.REMOVING},
    )


def set_runner_seen(
    db: Connection, claim_id: int, *, runner: ListedRunner, seen: str, at: datetime, now: datetime
) -> None:
    """Record how GitHub showed a persistent runner in a check that began at `at`.

    The registration token is erased, because the runner does not need it any more. The column `runner_seen_at` has the
    time since which GitHub shows the runner in this way. A claim that another session has locked is skipped.
    """
    db.execute(
        text("""
            UPDATE claims SET runner_id = :runner_id, jit = NULL, runner_absent_at = NULL,
                   online_at = CASE WHEN :online THEN coalesce(online_at, CAST(:now AS timestamptz)) ELSE online_at END,
                   runner_seen_at = CASE WHEN runner_seen = :seen THEN runner_seen_at ELSE CAST(:at AS timestamptz) END,
                   runner_seen = :seen
            WHERE id IN (SELECT id FROM claims WHERE id = :id AND ended_at IS NULL FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"id": claim_id, "runner_id": runner.id, "online": runner.online, "seen": seen, "at": at, "now": now},
    )
