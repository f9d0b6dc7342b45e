"""Records of the hook Pods of runner Pods, which the watch reports. They are only shown to people (law L6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from models.db.sql import text
from models.state import pod_facts
from rules.claims.hook_pods import HookPod, merged, read_all


def record(db: Connection, seen: Mapping[str, Sequence[HookPod]]) -> int:
    """Record hook Pods, by the UID of their runner Pod. An older state never replaces a newer one.

    Returns how many of the runner Pods have a row that was not locked. A row that another session has locked is skipped
    (law L14).
    """
    free = db.execute(
        text("SELECT uid, hook_pods FROM runner_pods WHERE uid = ANY(:uids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
        {"uids": list(seen)},
    ).all()
    for row in free:
        pods = merged(read_all(row.hook_pods), seen[row.uid])
        pod_facts.record_hook_pods(db, row.uid, packed=[each.packed() for each in pods])
    return len(free)
