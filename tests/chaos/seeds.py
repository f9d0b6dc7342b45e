"""Six bugs that a chaos run must find. Each bug removes one guard of the code.

`python -m tests.chaos.seeds NAME worker` starts a worker with the bug NAME. The bug replaces functions of the product
in this process before the worker starts.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

from sqlalchemy import Connection, text

from k8s_adapters.calls.metadata import ObjectSeen
from k8s_adapters.runners.runners import delete_runner
from k8s_adapters.runners.stamps import unstamp
from models.claims import releases
from models.claims import resume as due
from models.db.engine import transaction
from models.pools import pool_plans
from models.state import job_transitions
from models.sweeps import orphans, unresponsive
from models.sweeps.orphans import KnownRunner, PodClaims
from ostler.errors import UpstreamError
from rules.sweeps.unused import UnusedClaim, UnusedVerdict, judge_unused
from tasks.sweeps import orphaned_stamps, unused_runners
from tasks.sweeps.frame.lists import runner_pages
from tasks.worker.runtime import runtime


def put(module: ModuleType, **bugs: object) -> None:
    """Replace functions of a module. Each of them must exist."""
    for name, bug in bugs.items():
        getattr(module, name)
        setattr(module, name, bug)


def apart(call: Callable[..., object], **arguments: Any) -> None:
    """Call the cluster although this thread has an open transaction, which the client would refuse."""

    def run() -> None:
        with contextlib.suppress(UpstreamError):
            call(runtime().kube, **arguments)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def reap_without_retire_claim() -> None:
    """Delete Pods at once, without a retire claim (L7)."""

    def delete(db: Connection, runner_pod_id: int, **_: Any) -> None:
        pod = db.execute(
            text("""
                SELECT namespace, name, uid FROM runner_pods p
                WHERE id = :id AND gone_at IS NULL AND uid IS NOT NULL
                  AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL)
                FOR NO KEY UPDATE
            """),
            {"id": runner_pod_id},
        ).one_or_none()
        if pod is not None:
            apart(delete_runner, namespace=pod.namespace, name=pod.name, uid=pod.uid)

    for module in (releases, orphans, pool_plans, unresponsive):
        put(module, insert_retire=delete)


def claims_read_before_pods() -> None:
    """`orphaned_stamps` reads the claims before it lists the Pods, and trusts the old claims (L8).

    With its retire claim this bug would do no harm, because a retire claim is refused while another claim is live. The
    bug therefore inserts none.
    """
    before: dict[str, PodClaims] = {}
    claims_of_pods = orphans.claims_of_pods

    def read_first(db: Connection) -> None:
        uids = db.execute(text("SELECT uid FROM runner_pods WHERE gone_at IS NULL AND uid IS NOT NULL")).scalars().all()
        before.clear()
        before.update(claims_of_pods(db, uids))

    def list_late(rt: Any, kind: str) -> Iterator[list[ObjectSeen]]:
        transaction(runtime().engine, read_first)
        free = {uid for uid, known in before.items() if not known.has_live_claim and not known.ever_delivered}
        end = time.monotonic() + 5
        while True:  # a sweep that is unlucky once a week is so every time
            pages = list(runner_pages(rt, kind))
            if time.monotonic() > end or any(pod.stamped and pod.uid in free for page in pages for pod in page):
                break
            time.sleep(0.02)
        yield from pages

    def believed(_db: Connection, uids: Sequence[str]) -> Mapping[str, PodClaims]:
        return {uid: before[uid] for uid in uids if uid in before}

    def delete(db: Connection, uid: str, _seen: PodClaims, **_: Any) -> None:
        pod = db.execute(text("SELECT namespace, name FROM runner_pods WHERE uid = :uid"), {"uid": uid}).one()
        apart(delete_runner, namespace=pod.namespace, name=pod.name, uid=uid)

    put(orphaned_stamps, runner_pages=list_late)
    put(orphans, claims_of_pods=believed, retire_stamped=delete)


def unstamp_of_a_delivered_pod() -> None:
    """`resume` un-stamps a Pod that does not poll, even if it stopped because its JIT was delivered (L3)."""

    def begin_unstamps(db: Connection, **_: Any) -> list[int]:
        rows = db.execute(
            text("""
                SELECT c.id, c.stamp_no, p.namespace, p.name, p.uid, p.stamp_value
                FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
                WHERE c.ended_at IS NULL AND c.state IN ('delivered', 'executing')
            """)
        ).all()
        for row in rows:
            apart(
                unstamp,
                namespace=row.namespace,
                name=row.name,
                uid=row.uid,
                expected=row.stamp_value,
                value=f"{row.id}.{row.stamp_no + 1000}",
            )
        return []

    put(due, begin_unstamps=begin_unstamps)


def ended_claim_leaves_its_job() -> None:
    """End a claim, and leave its job in the old state (L4)."""

    def leave(*_: Any, **__: Any) -> None:
        """Change nothing."""

    forgetful = SimpleNamespace(**vars(job_transitions) | {"requeue": lambda *_, **__: []})
    put(releases, apply_job_outcome=leave, job_transitions=forgetful)


def one_look_at_absence() -> None:
    """`unused_runners` treats a runner that is missing from one list as gone (L8)."""

    def judge(claim: UnusedClaim, *, grace_seconds: float) -> UnusedVerdict:
        return judge_unused(replace(claim, absent_before=True), grace_seconds=grace_seconds)

    put(unused_runners, judge_unused=judge)


def orphaned_runners_by_name_pattern() -> None:
    """Treat a runner as ours if its name looks like ours (L3)."""
    known_runners = orphans.known_runners
    ours = re.compile(r"(small|large)-[0-9a-f]{8}-[0-9a-f]{8}")

    def known_by_name(db: Connection, names: Sequence[str]) -> Mapping[str, KnownRunner]:
        long_ago = datetime(2000, 1, 1, tzinfo=UTC)
        looks_like_ours = {name: KnownRunner(0, 0, "", long_ago) for name in names if ours.fullmatch(name)}
        return looks_like_ours | dict(known_runners(db, names))

    put(orphans, known_runners=known_by_name)


SEEDS: Mapping[str, Callable[[], None]] = {
    seed.__name__: seed
    for seed in (
        reap_without_retire_claim,
        claims_read_before_pods,
        unstamp_of_a_delivered_pod,
        ended_claim_leaves_its_job,
        one_look_at_absence,
        orphaned_runners_by_name_pattern,
    )
}


def main() -> None:
    """Install the bug that the first argument names, then run `ostler` with the other arguments."""
    name = sys.argv.pop(1)
    SEEDS[name]()
    from cli import main as ostler  # noqa: PLC0415  after the bug

    ostler()


if __name__ == "__main__":
    main()
