"""Rows of runner Pods for the reconciler: statements that record observed facts, and queries for rows with claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row

from models.claims.busy import Recorded
from models.claims.cuts import pollers_ended
from models.claims.releases import insert_retire
from models.db.sql import text
from models.state import pod_births, pod_facts
from rules.claims.pod_view import PodView


@dataclass(frozen=True, slots=True)
class PodRow:
    """A Pod's row with its live claim, if it has one.

    - `offered`: the Pod has an offer that has not expired.
    - `ever_delivered`: a JIT was delivered to the Pod.
    - `freed_at`: the end of the Pod's last claim, or None if no claim of the Pod ended.
    - `node_gone`: the Pod's node was gone when the Pod was last observed.
    - `charged`: the Pod was charged to an account. It counts against the account's budget until the Pod ends.
    - `online_at`: time at which GitHub first showed the Pod's persistent runner as online. It is None before that time,
      and also while GitHub does not know the runner any more.
    - `executes`: the Pod's persistent runner executes a job, or GitHub showed the runner as busy in its last list.
    - `releasing`: the live claim is being released.
    - `executing`: the live claim executes a job.
    - `gated_at`: time at which the Pod was last seen with a scheduling gate, or None.
    """

    id: int
    name: str
    uid: str | None
    attempt_id: str
    template_hash: str
    created_at: datetime
    first_polled_at: datetime | None
    polled_at: datetime | None
    terminal_at: datetime | None
    claim_id: int | None
    claim_purpose: str | None
    claim_delivered: bool
    offered: bool
    ever_delivered: bool
    freed_at: datetime | None
    node_gone: bool = False
    charged: bool = False
    online_at: datetime | None = None
    executes: bool = False
    releasing: bool = False
    gated_at: datetime | None = None
    executing: bool = False

    @property
    def recorded(self) -> Recorded:
        """The evidence in the Pod's rows: any delivery of a JIT, and whether the Pod is terminal.

        Other evidence that the Pod holds no JIT, such as a removed runner, is not read here.
        """
        return Recorded(any_delivered=self.ever_delivered, terminal=self.terminal_at is not None)


OVER = "the poller and the runner of the Pod have ended"
"""Reason in the event of the retire claim, if the Pod is over but not terminal."""


def record_pods(
    db: Connection, *, pool_id: int, pods: Sequence[PodView], listed_at: datetime | None = None, now: datetime
) -> list[str]:
    """Record the row, the UID and the exit of every listed Pod. `listed_at` is the time at which the list began.

    Return the UIDs of the Pods that this call recorded as over.

    Only rows that change are locked, because the matcher skips locked rows. A row that another session has locked is
    skipped. The next reconcile records the change (law L14).
    """
    held = [pod for pod in pods if pod.exit_held]
    if held and listed_at is not None:
        _record_present(db, held, listed_at=listed_at)
    known = _open_rows(db, pool_id, pods)
    changing = [known[pod.name].id for pod in pods if pod.name in known and _changes(known[pod.name], pod)]
    free = _lock_free(db, changing)
    over: list[str] = []
    # Rows are always locked in the order of their ids. Known rows come first, and new rows follow.
    for pod in sorted(pods, key=lambda pod: known[pod.name].id if pod.name in known else sys.maxsize):
        row = known.get(pod.name)
        if (row.id in free) if row is not None else pod.is_ours:
            _record_birth(db, pool_id, pod, row)
            if pod.is_over and (row is None or row.terminal_at is None) and _record_over(db, pod, now=now):
                over.append(pod.uid)
    ended = [pod.uid for pod in pods if _only_poller_ended(known.get(pod.name), pod)]
    if ended:
        pollers_ended(db, ended, now=now)
    return over


def _record_present(db: Connection, held: Sequence[PodView], *, listed_at: datetime) -> None:
    """Record that Pods exist which only Ostler's finalizer might keep, and drop rows that hide them."""
    ours = [(pod.namespace, pod.name, pod.attempt or "") for pod in held if pod.is_ours]
    pod_births.drop_hiding(db, pods=ours, listed_at=listed_at)
    pod_facts.record_present(db, [pod.uid for pod in held], listed_at=listed_at)


def _open_rows(db: Connection, pool_id: int, pods: Sequence[PodView]) -> Mapping[str, Row[Any]]:
    """Return the rows of Pods with these names that are not gone or have no UID, by the name of the Pod."""
    rows = db.execute(
        text(
            "SELECT id, name, uid, attempt_id, terminal_at, poller_ended_at FROM runner_pods WHERE pool_id = :id"
            " AND namespace = ANY(:namespaces) AND name = ANY(:names) AND (gone_at IS NULL OR uid IS NULL)"
        ),
        {"id": pool_id, "namespaces": list({pod.namespace for pod in pods}), "names": [pod.name for pod in pods]},
    )
    return {row.name: row for row in rows}


def _record_birth(db: Connection, pool_id: int, pod: PodView, row: Row[Any] | None) -> None:
    """Insert the row of a Pod that has none, or record the UID of a Pod whose creation was not answered."""
    if row is None:
        pod_births.insert_seen(db, pod, pool_id=pool_id)
    elif row.uid is None and row.attempt_id == (pod.attempt or ""):
        # The response to the creation was lost. A row that was given up in the meantime is reopened.
        pod_births.adopt(db, pool_id=pool_id, name=pod.name, uid=pod.uid, template_hash=pod.digest or "")


def _record_over(db: Connection, pod: PodView, *, now: datetime) -> bool:
    """Record how a Pod ended. Return False if its row had this already.

    A Pod that is over, never polled and is not terminal is a failed start. The plan counts and retires it.
    """
    return pod_facts.record_over(
        db,
        pod.uid,
        poller_exit_code=pod.poller_exit_code,
        runner_exit_code=pod.runner_exit_code,
        reason=pod.exit_reason,
        served=pod.is_terminal or pod.poller_exit_code == 0,
        now=now,
    )


def _only_poller_ended(row: Row[Any] | None, pod: PodView) -> bool:
    """Return True if the poller of a Pod that still runs has ended, and its row does not say so."""
    return pod.poller_exit_code is not None and not pod.is_terminal and (row is None or row.poller_ended_at is None)


def record_end(db: Connection, *, pool_id: int, pod: PodView, now: datetime) -> list[str]:
    """Record that a Pod is over, before it is deleted. Return the UIDs of the Pods that this call recorded as over.

    Raises the lock error of Postgres if another session has locked the row, because nobody could record the end later.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE uid = :uid FOR NO KEY UPDATE"), {"uid": pod.uid})
    return record_pods(db, pool_id=pool_id, pods=[pod], now=now)


def _changes(row: Row[Any], pod: PodView) -> bool:
    """Return True if the Pod has a UID or an exit that its row does not record."""
    return (row.uid is None and row.attempt_id == (pod.attempt or "")) or (pod.is_over and row.terminal_at is None)


def _lock_free(db: Connection, row_ids: Sequence[int]) -> frozenset[int]:
    """Lock the rows that no other session has locked, in the order of their ids, and return the ids of these rows."""
    if not row_ids:
        return frozenset()
    rows = db.execute(
        text("SELECT id FROM runner_pods WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
        {"ids": list(row_ids)},
    )
    return frozenset(rows.scalars())


_ROWS = """
    SELECT p.id, p.name, p.uid, p.attempt_id, p.template_hash, p.created_at, p.first_polled_at, p.polled_at,
           p.terminal_at, c.id AS claim_id, c.purpose AS claim_purpose,
           coalesce(c.delivered_at IS NOT NULL, false) AS claim_delivered,
           EXISTS (SELECT FROM offers o WHERE o.pod_uid = p.uid AND o.until > :now) AS offered,
           coalesce(d.ever, false) AS ever_delivered, d.freed_at, p.node_gone_at IS NOT NULL AS node_gone,
           p.charged_account_id IS NOT NULL AS charged,
           CASE WHEN c.runner_absent_at IS NULL THEN c.online_at END AS online_at,
           coalesce(c.runner_seen = 'busy', false) OR EXISTS (
               SELECT FROM executions e WHERE e.claim_id = c.id AND e.ended_at IS NULL AND c.purpose = 'register'
           ) AS executes,
           coalesce(c.state = 'releasing', false) AS releasing, p.gated_at,
           coalesce(c.state = 'executing', false) AS executing
    FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
    LEFT JOIN LATERAL (SELECT bool_or(delivered_at IS NOT NULL) AS ever, max(ended_at) AS freed_at
                       FROM claims WHERE pod_uid = p.uid) d ON true
    WHERE p.pool_id = :pool_id AND p.gone_at IS NULL
"""


def pod_rows(db: Connection, *, pool_id: int, now: datetime) -> list[PodRow]:
    """Return the rows of a pool's Pods that are not known to be gone, oldest first."""
    rows = db.execute(text(f"{_ROWS} ORDER BY p.id"), {"pool_id": pool_id, "now": now})
    return [PodRow(*row) for row in rows]


def ended_rows(db: Connection, *, pool_id: int, listed: Sequence[str], now: datetime) -> list[PodRow]:
    """Return the rows of the listed Pods of a pool that are recorded as terminal, oldest first.

    Rows of Pods that are known to be gone are left out. `listed` contains the UIDs of Pods that have ended.
    """
    rows = db.execute(
        text(f"{_ROWS} AND p.terminal_at IS NOT NULL AND p.uid = ANY(:listed) ORDER BY p.id"),
        {"pool_id": pool_id, "now": now, "listed": list(listed)},
    )
    return [PodRow(*row) for row in rows]


def has_unlisted_end(db: Connection, *, pool_id: int, listed: Sequence[str]) -> bool:
    """Return True if a row without a live claim is recorded as terminal, and `listed` does not have the UID of its Pod.

    Such a Pod is over but not terminal, or is gone. Only a list of all Pods shows which.
    """
    found = db.execute(
        text("""
            SELECT EXISTS (
                SELECT FROM runner_pods p
                WHERE p.pool_id = :pool_id AND p.gone_at IS NULL AND p.terminal_at IS NOT NULL
                  AND p.uid <> ALL(:listed)
                  AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL))
        """),
        {"pool_id": pool_id, "listed": list(listed)},
    )
    return bool(found.scalar_one())


def over_rows(db: Connection, *, pool_id: int, listed: Sequence[str], now: datetime) -> list[PodRow]:
    """Return the rows of a pool's Pods that are recorded as terminal or are missing from `listed`, oldest first.

    Rows of Pods that are known to be gone are left out. `listed` contains the UIDs of all Pods in a complete list.
    """
    rows = db.execute(
        text(f"{_ROWS} AND (p.terminal_at IS NOT NULL OR p.uid <> ALL(:listed)) ORDER BY p.id"),
        {"pool_id": pool_id, "now": now, "listed": list(listed)},
    )
    return [PodRow(*row) for row in rows]


def retire_over(db: Connection, *, row_id: int, due_after: float, now: datetime, who: str) -> int | None:
    """Insert the retire claim of a Pod that is over but not terminal, and return the id of the claim.

    `due_after` is the time in seconds until the claim's next step is due. `who` is written into the claim's event.
    Return None if the row is locked, or if the Pod is not recorded as over, is gone or has a live claim. Also return
    None while the rows are not trusted (`models.db.epochs`).
    """
    found = db.execute(
        text("""
            SELECT 1 FROM runner_pods WHERE id = :id AND terminal_at IS NOT NULL AND gone_at IS NULL
            FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"id": row_id},
    ).one_or_none()
    if found is None:
        return None
    return insert_retire(db, row_id, now=now, who=who, why=OVER, due_after=due_after)


class NewestRow(NamedTuple):
    """The newest row of a Pod name.

    `open` is True if any row of the name is open: if its Pod exists or might still be created.
    """

    name: str
    id: int
    open: bool


def newest_rows(db: Connection, *, namespace: str, names: Sequence[str]) -> list[NewestRow]:
    """Return the newest row of each of these Pod names that has a row."""
    rows = db.execute(
        text("""
            SELECT name, max(id) AS id, bool_or(gone_at IS NULL OR uid IS NULL) AS open FROM runner_pods
            WHERE namespace = :namespace AND name = ANY(:names) GROUP BY name
        """),
        {"namespace": namespace, "names": list(names)},
    )
    return [NewestRow(*row) for row in rows]


def is_wanted(db: Connection, *, row_id: int) -> bool:
    """Return True if the Pod of a row must still be created, and False otherwise.

    Another reconciler might have created the Pod in the meantime, or might have marked the row as gone.
    """
    found = db.execute(
        text("SELECT 1 FROM runner_pods WHERE id = :id AND uid IS NULL AND gone_at IS NULL"), {"id": row_id}
    ).one_or_none()
    return found is not None
