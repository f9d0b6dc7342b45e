"""Breaker: causes the failures that are due, and ends them when their time is up."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k8s_adapters.client import KubeClient
from k8s_adapters.pods import list_pods
from lab import liveness
from lab.chaos.freezer import Freeze, Freezer
from lab.chaos.people import People, chosen
from lab.chaos.plan import Blow, Strike
from lab.faults import Fault
from lab.levers import LeverError
from lab.system import System
from ostler.errors import Gone

AT_ONCE = 2.0
"""A strike of fewer seconds deletes its Pod without a grace period. Three of five strikes do."""

KILLS = {Blow.KILL_WORKER: "worker", Blow.KILL_WEB: "web", Blow.KILL_BEAT: "beat", Blow.KILL_WATCH: "watch"}


FREEZE_TRIES = 20
"""Number of attempts to find a process with an open transaction before a freeze is given up."""

POSTGRES_BACK_WITHIN = 20.0
WEB_BACK_WITHIN = 20.0
"""Seconds after a start within which Postgres has recovered, or web is ready. Webhooks may fail until then."""

WEBHOOKS = "web-0"
"""The process that receives the webhooks of the lab's GitHub."""


@dataclass(frozen=True, slots=True)
class Mending:
    """An action that ends a failure, and when it is due."""

    at: float
    mend: Callable[[], object]


class Breaker:
    """Causes the failures of a system.

    All of them are caused in the thread that calls `look`, because a process dies with the thread that started it.
    `vanished`: UIDs of the Pods that it deleted. `cancelled`: jobs that it cancelled. `struck`: number of strikes of
    each kind that had an effect. `unexpected`: processes that ended without a strike. `silences`: spans of Unix time
    during which web refuses webhooks for another reason than a locked row. `beat_kills`: times at which a beat was
    killed.
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
        self._people = People(self._kube, system.namespace, self._after, guarded=system.identities is not None)
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
        """Return every freeze so far."""
        return self._freezer.freezes

    @property
    def left(self) -> int:
        """Return the number of strikes that are not due yet."""
        return len(self._left)

    def look(self, *, over: int) -> None:
        """End the failures that are due, then cause the strikes that are due. `over` is the number of finished jobs."""
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
        """End all failures now. An action that must be repeated runs again in `look`, when it is due."""
        self._to_freeze.clear()
        mendings, self._mendings = self._mendings, []
        for mending in mendings:
            mending.mend()

    def _look_after_ours(self, now: float) -> None:
        """Restart processes that ended by themselves, as Kubernetes would, and record that they ended."""
        if lost := liveness.lost(self._system):
            raise RuntimeError(f"{lost} ended; what it knew is gone, so there can be no verdict")
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

    def _freeze(self, strike: Strike) -> None:
        """Freeze a web or worker process that is in a transaction. If there is none, the next check tries again."""
        self._tries += 1
        frozen = {freeze.process for freeze in self.freezes if freeze.ended is None}
        able = [
            name
            for name, child in self._system.children.items()
            if name.startswith(("web-", "worker-")) and name not in frozen and child.running()
        ]
        kinds = sorted({name.partition("-")[0] for name in able})
        kind = chosen(kinds, strike.dice) if kinds else ""
        # The kind that the dice chose might be idle. The last attempts accept any kind and any transaction.
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
        """Delete a Pod, either without a grace period, like the loss of its node, or with one, like kubectl."""
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
        except LeverError:  # the job has already ended
            self.cancelled.discard(job)
            return False
        return True
