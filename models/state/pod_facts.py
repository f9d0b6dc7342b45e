"""Facts about runner Pods: their exits, their nodes, their annotations, and the accounts that they are charged to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from models.db.sql import text


def record_annotation(db: Connection, *, pod_uid: str, value: str) -> None:
    """Record the last known value of a Pod's claim annotation. Only the Pod in the cluster has the current value."""
    db.execute(text("UPDATE runner_pods SET stamp_value = :value WHERE uid = :uid"), {"value": value, "uid": pod_uid})


def record_annotation_of_row(db: Connection, row_id: int, *, value: str) -> None:
    """Record the claim annotation that a restore read from a Pod. The caller must hold the lock of the Pod's row."""
    db.execute(text("UPDATE runner_pods SET stamp_value = :value WHERE id = :id"), {"id": row_id, "value": value})


def record_over(
    db: Connection,
    uid: str,
    *,
    poller_exit_code: int | None,
    runner_exit_code: int | None,
    reason: str | None,
    served: bool,
    now: datetime,
) -> bool:
    """Record that a Pod is over. Return True if this call recorded the end of the Pod.

    `served` is True if the Pod is terminal or its poller succeeded. If `served` is False and the Pod never polled and
    never had a claim, nothing is recorded, because such a Pod is a failed start. Return False if nothing was recorded,
    or if the end was already recorded.
    """
    found = db.execute(
        text("""
            UPDATE runner_pods SET terminal_at = :now, poller_exit_code = :poller,
                   runner_exit_code = :runner, exit_reason = :reason
            WHERE uid = :uid AND terminal_at IS NULL
              AND (:served OR first_polled_at IS NOT NULL
                   OR EXISTS (SELECT FROM claims c WHERE c.pod_uid = runner_pods.uid))
            RETURNING uid
        """),
        {
            "uid": uid,
            "now": now,
            "poller": poller_exit_code,
            "runner": runner_exit_code,
            "reason": reason,
            "served": served,
        },
    )
    return found.one_or_none() is not None


def record_gated(db: Connection, uids: Sequence[str], *, now: datetime) -> None:
    """Record that these Pods have a scheduling gate. Locked rows are skipped."""
    db.execute(
        text("""
            UPDATE runner_pods SET gated_at = :now WHERE id IN (
                SELECT id FROM runner_pods
                WHERE uid = ANY(:uids) AND (gated_at IS NULL OR gated_at < CAST(:now AS timestamptz) - interval '30 s')
                ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"uids": list(uids), "now": now},
    )


def record_pollers_ended(db: Connection, uids: Sequence[str], *, now: datetime) -> None:
    """Record that the pollers of these Pods have ended. Locked rows are skipped."""
    db.execute(
        text("""
            UPDATE runner_pods SET poller_ended_at = :now WHERE id IN (
                SELECT id FROM runner_pods WHERE uid = ANY(:uids) AND poller_ended_at IS NULL
                ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"uids": list(uids), "now": now},
    )


def record_ending(
    db: Connection,
    uid: str,
    *,
    deletion_at: datetime | None,
    deleted_first: bool | None,
    reason: str | None,
    runner_exit_code: int | None,
    node: str | None,
) -> None:
    """Record how a Pod ended. Values that are already recorded are not replaced."""
    db.execute(
        text("""
            UPDATE runner_pods SET deletion_at = coalesce(deletion_at, :at),
                   deleted_first = coalesce(deleted_first, :first),
                   exit_reason = coalesce(exit_reason, :reason),
                   runner_exit_code = coalesce(runner_exit_code, :code),
                   last_node = coalesce(last_node, :node)
            WHERE uid = :uid
        """),
        {
            "uid": uid,
            "at": deletion_at,
            "first": deleted_first,
            "reason": reason,
            "code": runner_exit_code,
            "node": node,
        },
    )


def record_hook_pods(db: Connection, uid: str, *, packed: Sequence[Mapping[str, Any]]) -> None:
    """Replace the recorded hook Pods of a Pod. The caller must hold the lock of the Pod's row."""
    db.execute(
        text("UPDATE runner_pods SET hook_pods = CAST(:packed AS jsonb) WHERE uid = :uid"),
        {"uid": uid, "packed": json.dumps(packed)},
    )


def record_deletion_sent(db: Connection, uid: str, *, now: datetime) -> None:
    """Record that Ostler requests the deletion of a Pod, and when Ostler did so first. A locked row is skipped."""
    db.execute(
        text("""
            UPDATE runner_pods SET deletion_sent_at = :now WHERE id IN (
                SELECT id FROM runner_pods WHERE uid = :uid AND deletion_sent_at IS NULL
                FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"uid": uid, "now": now},
    )


def record_event(
    db: Connection, uid: str, *, reason: str | None, by: str | None, message: str | None, now: datetime
) -> None:
    """Record that the Events of a Pod were read, and record the Event that best explains the end of the Pod.

    `reason`, `by` and `message` are None if no Event explains the end of the Pod.
    """
    db.execute(
        text("""
            UPDATE runner_pods SET events_read_at = :now, event_reason = :reason, event_by = :by, event_message = :note
            WHERE uid = :uid
        """),
        {"uid": uid, "now": now, "reason": reason, "by": by, "note": message},
    )


def record_gone(db: Connection, uid: str, *, now: datetime) -> None:
    """Record that a Pod UID is gone."""
    db.execute(
        text("UPDATE runner_pods SET gone_at = coalesce(gone_at, :now) WHERE uid = :uid"),
        {"uid": uid, "now": now},
    )


def record_present(db: Connection, uids: Sequence[str], *, listed_at: datetime) -> None:
    """Correct the rows of Pods that were recorded as gone before a list began, although the list shows them.

    If another row has the name of such a Pod, nothing is changed. Locked rows are skipped.
    """
    db.execute(
        text("""
            UPDATE runner_pods SET gone_at = NULL WHERE id IN (
                SELECT p.id FROM runner_pods p
                WHERE p.uid = ANY(:uids) AND p.gone_at < :listed_at
                  AND NOT EXISTS (SELECT FROM runner_pods o WHERE o.namespace = p.namespace AND o.name = p.name
                                  AND o.id <> p.id AND (o.gone_at IS NULL OR o.uid IS NULL))
                ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"uids": list(uids), "listed_at": listed_at},
    )


def record_nodes(db: Connection, *, gone: Sequence[str], back: Sequence[str], now: datetime) -> None:
    """Record which Pods are on gone nodes, and which Pods are on nodes that are no longer gone.

    `gone` and `back` contain the UIDs of these Pods. A Pod on a gone node might be recorded as gone although the Pod
    still exists, because the release of a claim treats a Terminating Pod as gone. In this case the record is removed.
    Otherwise no component would delete the Pod. Locked rows are skipped. The next run of the reconciler writes them.
    """
    if gone or back:
        db.execute(
            text("""
                UPDATE runner_pods SET gone_at = NULL, node_gone_at = CASE WHEN uid = ANY(:gone)
                                                                      THEN CAST(:now AS timestamptz) END
                WHERE id IN (
                    SELECT p.id FROM runner_pods p
                    WHERE (p.uid = ANY(:gone) AND (p.node_gone_at IS NULL OR p.gone_at IS NOT NULL)
                           AND NOT EXISTS (SELECT FROM runner_pods o WHERE o.namespace = p.namespace
                                           AND o.name = p.name AND o.id <> p.id
                                           AND (o.gone_at IS NULL OR o.uid IS NULL)))
                       OR (p.uid = ANY(:back) AND p.node_gone_at IS NOT NULL AND p.gone_at IS NULL)
                    ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
            """),
            {"gone": list(gone), "back": list(back), "now": now},
        )


def charge(db: Connection, runner_pod_ids: Sequence[int]) -> int:
    """Charge Pods that are not charged yet to the accounts of their newest delivered claims.

    Return how many Pods were charged. Normally the delivery of the JIT charges the Pod. A Pod is not charged yet if an
    earlier version of the web process delivered the JIT, or if the claim was rebuilt after a restore. Locked rows are
    skipped. The next run of the reconciler charges these Pods.
    """
    if not runner_pod_ids:
        return 0
    charged = db.execute(
        text("""
            UPDATE runner_pods p SET charged_account_id = c.account_id, charged_vcpu = c.vcpu, charged_memory = c.memory
            FROM (SELECT id FROM runner_pods WHERE id = ANY(:ids) AND charged_account_id IS NULL
                  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) free
            CROSS JOIN LATERAL (
                SELECT account_id, vcpu, memory FROM claims
                WHERE runner_pod_id = free.id AND purpose = 'job' AND delivered_at IS NOT NULL
                ORDER BY id DESC LIMIT 1) c
            WHERE p.id = free.id AND c.account_id IS NOT NULL
        """),
        {"ids": list(runner_pod_ids)},
    )
    return charged.rowcount
