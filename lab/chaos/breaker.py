"""Strikes: cause the faults that are due, and undo each fault when its time is up."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.pods import list_pods
from lab import liveness
from lab.chaos.freezer import Freeze, Freezer
from lab.chaos.people import People, chosen
from lab.chaos.plan import Blow, Strike
from lab.faults import Fault
from lab.levers import LeverError
from lab.node.node import Node
from lab.system import System
from ostler.errors import Gone

AT_ONCE = 2.0
"""A vanishing Pod is deleted without a grace period if its strike lasts for fewer seconds than this.

Three of five strikes that let a Pod vanish last for a shorter time.
"""

KILLS = {Blow.KILL_WORKER: "worker", Blow.KILL_WEB: "web", Blow.KILL_BEAT: "beat", Blow.KILL_WATCH: "watch"}


FREEZE_TRIES = 20
"""Number of attempts to find a process with an open transaction before a freeze is given up."""

POSTGRES_BACK_WITHIN = 20.0
WEB_BACK_WITHIN = 20.0
"""Seconds after its start within which web becomes ready. `POSTGRES_BACK_WITHIN` counts from a crash of Postgres."""

WEBHOOKS = "web-0"
"""The process that receives the webhooks of the lab's GitHub."""


@dataclass(frozen=True, slots=True)
class Mending:
    """A function that undoes a fault, and its due time on the monotonic clock."""

    at: float
    mend: Callable[[], object]


class Breaker:
    """Causes strikes on a system. Use it from one long-lived thread: a process dies with the thread that started it.

    `vanished` are the UIDs of the Pods that it deleted, and `cancelled` the jobs that it cancelled. `struck` counts the
    strikes that found a target. `unexpected` describes processes of Ostler that ended without a strike. `silences` are
    spans in Unix seconds in which web refuses webhooks for another reason than a locked row. `beat_kills` are the times
    at which a beat was killed.
    """

    def __init__(self, system: System, strikes: Sequence[Strike], *, say: Callable[[str], None]) -> None:
        self.vanished: set[str] = set()
        self.cancelled: set[int] = set()
        self.struck: Counter[Blow] = Counter()
        self.unexpected: list[str] = []
        self.silences: list[tuple[float, float]] = []
        self.beat_kills: list[float] = []
        self._freezer = Freezer(system)
        self._to_freeze: list[Strike] = []
        self._tries = 0
        self._system = system
        self._left = list(strikes)
        self._say = say
        self._kube: KubeClient = system.kube()
        rolls = sum(strike.blow is Blow.POOL_ROLLED for strike in strikes)
        self._people = People(system, self._kube, self._after, rolls=rolls)
        self._mendings: list[Mending] = []
        self._killed: set[str] = set()

    def close(self) -> None:
        """Resume the frozen processes and close the clients."""
        self._freezer.close()
        self._kube.close()

    def thaw(self) -> None:
        """Resume the frozen processes."""
        self._freezer.thaw_all()

    @property
    def freezes(self) -> Sequence[Freeze]:
        """All freezes so far."""
        return self._freezer.freezes

    @property
    def left(self) -> int:
        """Number of strikes that are not due yet."""
        return len(self._left)

    def look(self, *, over: int) -> None:
        """Undo the faults whose time is up, then cause the strikes that are due when `over` jobs are over."""
        now = time.monotonic()
        due = [mending for mending in self._mendings if mending.at <= now]
        self._mendings = [mending for mending in self._mendings if mending.at > now]
        for mending in due:
            mending.mend()
        self._look_after_ours(now)
        while self._left and self._left[0].after <= over:
            strike = self._left.pop(0)
            if strike.blow is Blow.FREEZE:
                self._to_freeze.append(strike)
            elif self._strike(strike):
                self.struck[strike.blow] += 1
        if self._to_freeze:
            self._freeze(self._to_freeze[0])

    def mend_all(self) -> None:
        """Undo every fault now. If an undoing must be repeated, `look` repeats it when it is due."""
        self._to_freeze.clear()
        mendings, self._mendings = self._mendings, []
        for mending in mendings:
            mending.mend()

    def _look_after_ours(self, now: float) -> None:
        """Restart processes that ended without a strike, as Kubernetes would, and record that they ended."""
        if lost := liveness.lost(self._system):
            raise RuntimeError(
                f"{lost} ended by itself and its state is lost, so no verdict is possible: see its log in "
                f"{self._system.folder}"
            )
        for name, status in liveness.ended(self._system).items():
            if name not in self._killed:
                self.unexpected.append(f"{name} ended by itself with status {status}")
                self._come_back(name, at=now + 1)

    def _strike(self, strike: Strike) -> bool:
        self._say(f"{strike.blow}")
        if (kind := KILLS.get(strike.blow)) is not None:
            return self._kill(kind, strike)
        match strike.blow:
            case Blow.FLUSH_REDIS:
                self._system.redis.flush()
            case Blow.RESTART_POSTGRES:
                began = time.time()
                self._system.postgres.child.stop(how=signal.SIGQUIT, timeout=20)
                self._system.postgres.start()
                self.silences.append((began, time.time() + POSTGRES_BACK_WITHIN))
            case Blow.GITHUB_GONE:
                self._outage("github", strike.seconds)
                self._system.lab("POST", "/webhooks", {"paused": True})
                self._after(strike.seconds, lambda: self._system.lab("POST", "/webhooks", {"paused": False}))
            case Blow.KUBERNETES_GONE:
                self._outage("kubernetes", strike.seconds)
            case Blow.POD_VANISHES:
                return self._vanish(strike)
            case Blow.JOB_CANCELLED:
                return self._cancel(strike)
            case Blow.KUBELET_KILLED | Blow.CONTAINERD_KILLED:
                self._kill_on_node(strike)
            case _:
                return self._people.act(strike)
        return True

    def _kill(self, kind: str, strike: Strike) -> bool:
        names = sorted(
            name for name, child in self._system.children.items() if name.startswith(f"{kind}-") and child.running()
        )
        if not names:
            return False
        name = chosen(names, strike.dice)
        if name == WEBHOOKS:
            self.silences.append((time.time(), time.time() + strike.seconds + WEB_BACK_WITHIN))
        if kind == "beat":
            self.beat_kills.append(time.time())
        self._killed.add(name)
        self._system.children[name].kill()
        self._come_back(name, at=time.monotonic() + strike.seconds)
        return True

    def _kill_on_node(self, strike: Strike) -> None:
        """Kill the kubelet or the containerd of a real node. The containers continue."""
        node = chosen(self._system.real_nodes, strike.dice)
        if strike.blow is Blow.KUBELET_KILLED:
            node.kill_kubelet()
            self._after(strike.seconds, lambda: start_kubelet(node))
        else:
            node.kill_containerd()
            self._after(strike.seconds, lambda: start_containerd(node))

    def _freeze(self, strike: Strike) -> None:
        """Freeze a web or worker process that is inside a transaction now.

        If no process is inside a transaction, the next call tries again.
        """
        self._tries += 1
        frozen = {freeze.process for freeze in self.freezes if freeze.ended is None}
        able = [
            name
            for name, child in self._system.children.items()
            if name.startswith(("web-", "worker-")) and name not in frozen and child.running()
        ]
        kinds = sorted({name.partition("-")[0] for name in able})
        kind = chosen(kinds, strike.dice) if kinds else ""
        # Processes of the chosen kind might be idle. The last attempts accept any process and any transaction.
        last = self._tries > FREEZE_TRIES // 2
        names = able if last else [name for name in able if name.startswith(kind)]
        freeze = self._freezer.freeze(names, any_rows=last) if names else None
        if freeze is None and self._tries < FREEZE_TRIES:
            return
        self._to_freeze.pop(0)
        self._tries = 0
        if freeze is None:
            self._say("no process was found inside a transaction, so none was frozen")
            return
        self._say(f"{freeze.process} is frozen for {strike.seconds:.0f} s; its rows concern {len(freeze.jobs)} jobs")
        self.struck[strike.blow] += 1
        self._after(strike.seconds, lambda: self._freezer.thaw(freeze))

    def _come_back(self, name: str, *, at: float) -> None:
        self._killed.add(name)

        def start() -> None:
            liveness.start_again(self._system, name)
            self._killed.discard(name)

        self._mendings.append(Mending(at, start))

    def _after(self, seconds: float, mend: Callable[[], object]) -> None:
        self._mendings.append(Mending(time.monotonic() + seconds, mend))

    def _outage(self, upstream: str, seconds: float) -> None:
        self._system.faults(upstream, Fault(kind="reset_before", until_seconds=seconds))

    def _vanish(self, strike: Strike) -> bool:
        """Delete a Pod, as the loss of its node or a person with kubectl would."""
        namespace = self._system.namespace
        pods = [
            pod for pod in list_pods(self._kube, namespace=namespace) if not pod.terminating and not pod.is_terminal
        ]
        if not pods:
            return False
        pod = chosen(sorted(pods, key=lambda pod: pod.name), strike.dice)
        self.vanished.add(pod.uid)
        body: dict[str, object] = {"preconditions": {"uid": pod.uid}}
        if strike.seconds < AT_ONCE:
            body["gracePeriodSeconds"] = 0
        try:
            self._kube.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod.name}", body=body)
        except Gone:
            return False
        return True

    def _cancel(self, strike: Strike) -> bool:
        jobs = [job["id"] for job in self._system.lab("GET", "/jobs")["jobs"] if job["status"] != "completed"]
        if not jobs:
            return False
        job = chosen(sorted(jobs), strike.dice)
        self.cancelled.add(job)
        try:
            self._system.lab("POST", f"/jobs/{job}/cancel")
        except LeverError:  # the job ended in between
            self.cancelled.discard(job)
            return False
        return True


def start_containerd(node: Node) -> None:
    """Start the containerd of a node, unless the return of a kubelet has started it earlier."""
    if not node.containerd.running():
        node.start_containerd()


def start_kubelet(node: Node) -> None:
    """Start the kubelet of a node.

    If the containerd of the node does not run, start the containerd first. A kubelet ends without containerd.
    """
    start_containerd(node)
    node.start_kubelet()
