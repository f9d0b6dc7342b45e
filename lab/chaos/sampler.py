"""Checks of the laws while a system runs: on the rows twice a second, and on the changes of Pods that a watch delivers.

The sampler reads Postgres and the API server directly, without the fault proxies, and changes nothing. If a read fails,
for example because Postgres restarts, the sampler reads again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.watching import PodWatch, WatchExpired
from k8s_adapters.runners.pods import list_pods_at
from lab.chaos.laws import Broken, ClaimSpan, LingeringPod, LiveClaim, Moment, at_a_moment, of_a_deletion, of_an_unstamp
from lab.invariants import read_budgets
from lab.system import System
from ostler.errors import UpstreamError
from rules.claims.pod_view import PodView

EVERY = 0.5
"""Seconds between two samples of the rows."""

WATCHED = 60
"""Seconds for which one connection of the watch lasts."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a Pod that the rows must explain: it lost its stamp if `lost_its_stamp`, else it was deleted."""

    uid: str
    pod: str
    seen_at: datetime
    lost_its_stamp: bool


class PodChanges(threading.Thread):
    """Watches the runner Pods of a namespace and puts the changes that need an explanation into a queue."""

    def __init__(self, kube: KubeClient, *, namespace: str, into: queue.SimpleQueue[Change]) -> None:
        super().__init__(name="pod changes", daemon=True)
        self.seen = 0
        self._kube = kube
        self._namespace = namespace
        self._into = into
        self._known: dict[str, PodView] = {}
        self._stopped = threading.Event()
        self._watch: PodWatch | None = None

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if (watch := self._watch) is not None:
            watch.stop()

    def run(self) -> None:
        """List and watch Pods until stopped. Of several changes between two watches, only the result is seen."""
        while not self._stopped.is_set():
            try:
                pods, version = list_pods_at(self._kube, namespace=self._namespace)
                there = {pod.uid for pod in pods}
                self._known = {uid: pod for uid, pod in self._known.items() if uid in there}
                for pod in pods:
                    self._see(pod, gone=False)
                self._follow(version)
            except UpstreamError:
                self._stopped.wait(EVERY)

    def _follow(self, version: str) -> None:
        while not self._stopped.is_set():
            try:
                with PodWatch(self._kube, namespace=self._namespace, since=version, seconds=WATCHED) as self._watch:
                    for event in self._watch.events():
                        version = event.version
                        if event.item is not None:
                            self._see(event.item, gone=event.kind == "DELETED")
            except WatchExpired:
                return
            except UpstreamError:
                self._stopped.wait(EVERY)
            finally:
                self._watch = None

    def _see(self, pod: PodView, *, gone: bool) -> None:
        self.seen += 1
        now = datetime.now(UTC)
        before = self._known.get(pod.uid)
        over = pod.is_terminal or (before is not None and before.is_terminal)
        ending, was_ending = gone or pod.terminating, before is not None and before.terminating
        if ending and not was_ending and not over:
            self._into.put(Change(pod.uid, pod.name, now, lost_its_stamp=False))
        if before is not None and before.owner is not None and pod.owner is None and not gone:
            self._into.put(Change(pod.uid, pod.name, now, lost_its_stamp=True))
        if gone:
            self._known.pop(pod.uid, None)
        else:
            self._known[pod.uid] = pod


class Sampler(threading.Thread):
    """Takes samples until `stop()`. `vanished` are the UIDs of Pods that the run deletes, added before each deletion.

    `blind` says that the sampler ended before it was stopped, so that later violations were not seen.
    """

    def __init__(self, system: System, *, vanished: Collection[str]) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples = 0
        self.blind = False
        self.broken: dict[Broken, None] = {}
        self._vanished = vanished
        self._engine: Engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True)
        self._changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._kube = system.kube()
        self._pods = PodChanges(self._kube, namespace=system.namespace, into=self._changes)
        self._stopped = threading.Event()

    @property
    def pods_seen(self) -> int:
        """Number of changes of Pods that were seen."""
        return self._pods.seen

    def run(self) -> None:
        """Take samples, and judge the changes of Pods since the last sample."""
        self._pods.start()
        open_changes: list[Change] = []
        while not self._stopped.wait(EVERY):
            while not self._changes.empty():
                open_changes.append(self._changes.get())
            try:
                found = [broken for change in open_changes for broken in self._explain(change)]
                open_changes.clear()
                found += at_a_moment(self._moment())
            except DBAPIError:
                continue
            self.samples += 1
            self.broken.update(dict.fromkeys(found))

    def stop(self) -> None:
        """Stop the threads, after judging what has been seen so far."""
        self._stopped.wait(2 * EVERY)
        self.blind = not (self.is_alive() and self._pods.is_alive() and self.samples)
        self._stopped.set()
        self._pods.stop()
        if self.is_alive():
            self.join(timeout=30)
        self._kube.close()
        self._engine.dispose()

    def _moment(self) -> Moment:
        with self._engine.connect().execution_options(isolation_level="REPEATABLE READ") as db:
            return read_moment(db)

    def _explain(self, change: Change) -> Iterable[Broken]:
        if change.uid in self._vanished:
            return []
        with closing(self._engine.connect()) as db:
            claims = read_spans(db, change.uid)
        judge = of_an_unstamp if change.lost_its_stamp else of_a_deletion
        return list(judge(change.pod, seen_at=change.seen_at, claims=claims))


def read_moment(db: Connection) -> Moment:
    """Return one snapshot of the rows. The transaction must be one with a single snapshot, such as REPEATABLE READ."""
    claims = db.execute(
        text("""
            SELECT id, purpose, state, stamp, job_id, pod_uid, account_id, vcpu, memory FROM claims
            WHERE ended_at IS NULL ORDER BY id
        """)
    ).all()
    unclaimed = db.execute(
        text("""
            SELECT id FROM jobs j WHERE state = 'claimed'
              AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
        """)
    ).scalars()
    lingering = db.execute(
        text("""
            SELECT p.uid, c.account_id, c.vcpu, c.memory FROM runner_pods p
            CROSS JOIN LATERAL (SELECT account_id, vcpu, memory FROM claims
                                WHERE pod_uid = p.uid AND purpose = 'job' AND delivered_at IS NOT NULL
                                ORDER BY id DESC LIMIT 1) c
            WHERE p.gone_at IS NULL AND p.terminal_at IS NULL AND p.node_gone_at IS NULL AND c.account_id IS NOT NULL
              AND NOT EXISTS (SELECT FROM claims l WHERE l.pod_uid = p.uid AND l.ended_at IS NULL
                              AND l.purpose = 'job')
        """)
    ).all()
    return Moment(
        lingering=[LingeringPod(*row) for row in lingering],
        claims=[LiveClaim(*row) for row in claims],
        budgets=read_budgets(db),
        unclaimed=list(unclaimed),
    )


def read_spans(db: Connection, uid: str) -> Sequence[ClaimSpan]:
    """Return all claims that a Pod ever had."""
    rows = db.execute(
        text("""
            SELECT id, purpose, job_id, created_at, delivered_at, ended_at,
                   EXISTS (SELECT FROM claim_events e WHERE e.claim_id = c.id AND e.transition = 'stamp_removing')
            FROM claims c WHERE pod_uid = :uid ORDER BY id
        """),
        {"uid": uid},
    )
    return [ClaimSpan(*row) for row in rows]
