"""Cost of a pool that is scaled up from 0, rolled, scaled to 0 and deleted, while jobs run.

The benchmark uses a real Kubernetes control plane with simulated Pods. A proxy counts the calls of Ostler's processes.
Each phase ends when the cluster has the requested state. All phases run with few and with many Pods. A Pod should cost
the same in both runs.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.frame import Recorder, Target, Window
from benchmarks.proc import memory
from benchmarks.whole import OURS, used
from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.pools.pools import create_pool, delete_pool, get_pool, patch_pool_replicas
from k8s_adapters.runners.pods import list_pods
from k8s_adapters.runners.runners import create_runner
from lab.bootstrap import ACCOUNTS, LabPool, spec_of
from lab.faults import FaultPlan
from lab.system import Options, System, read_log
from lab.verdict import judge
from models.db.engine import make_engine
from ostler.secrets import Secret

POOL = LabPool("fleet", ("self-hosted", "linux", "fleet"), 0, cpu="1", memory="1Gi")
SIZES = {"few": (100, 6), "many": (1000, 12)}
"""Number of Pods in each size, and the number with --quick."""

LONG = 8
"""Number of long jobs, but at most a third of the Pods. They begin before the roll."""

PHASES = ("up", "roll", "down", "delete")
WITHIN = 1500.0
_ALIVE = """
    SELECT count(*) FROM runner_pods r JOIN pools p ON p.id = r.pool_id
    WHERE r.gone_at IS NULL AND r.terminal_at IS NULL AND
"""
CONTROL_PLANE = ("kube-apiserver", "etcd", "kube-controller-manager")


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    costs: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (normal, quick) in SIZES.items():
        costs[name] = _fleet(recorder, name, recorder.size(normal, quick))
    with recorder.window() as window:
        pass
    for phase in PHASES:
        few, many = costs["few"][phase], costs["many"][phase]
        recorder.add(
            f"{phase}: CPU per Pod, many ÷ few",
            "ratio",
            many[0] / max(few[0], 1e-6),
            window,
            targets=(Target("median", "≤", 1.25),),
        )
        recorder.add(
            f"{phase}: calls per Pod, many ÷ few",
            "ratio",
            many[1] / max(few[1], 1e-6),
            window,
            targets=(Target("median", "≤", 1.25),),
        )
    recorder.lab = {
        "Pods": ", ".join(f"{name}: {pods}" for name, (pods, _) in SIZES.items()) + ", simulated, start at once",
        "jobs": f"{LONG} long jobs that begin before the roll; in addition, one job of half a second is queued every "
        "second until the scale-down",
        "calls": "of all of Ostler's processes to the API server, counted by a proxy on the same cores",
    }


def _fleet(recorder: Recorder, name: str, pods: int) -> dict[str, tuple[float, float]]:
    folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
    budget = {f"OSTLER_DEFAULT_BUDGET_{what}": "100000" for what in ("COUNT", "VCPU", "MEMORY_GIB")}
    options = Options(
        pools=(POOL,),
        real_pods=0,
        beats=1,
        kubernetes_faults=FaultPlan(),
        settings={**budget, "OSTLER_LOG_LEVEL": "WARNING"},
    )
    with System(folder, options, say=recorder.say, cluster="real") as system:
        kube = system.kube()
        engine = make_engine(Secret(system.postgres.url("ostler")), pool_size=2, application="bench")
        fleet = _Fleet(recorder, system, kube, engine, name, pods)
        found = fleet.phases()
        kube.close()
        engine.dispose()
        log = read_log(system.github_log)
        verdict = judge(log, read_log(system.kubelet_log), allow_leftover_runners=True)
        for problem in verdict.problems:
            recorder.say(f"problem: {problem}")
        with recorder.window() as window:
            pass
        recorder.add(
            f"{name}: jobs that did not complete exactly once",
            "rows",
            len(verdict.problems),
            window,
            targets=(Target("median", "=", 0),),
            note=f"of {verdict.jobs} jobs; a job also counts if its Pod was killed or deleted while it ran",
        )
        recorder.add(f"{name}: queued → begun at GitHub, while the pool rolls", "s", waits(log), window)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def waits(log: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the wait in seconds of each job that began."""
    queued = {event["job"]: event["at"] for event in log if event["event"] == "job_queued"}
    return [event["at"] - queued[event["job"]] for event in log if event["event"] == "job_started"]


class _Fleet:
    """One pool of one size. Its phases are measured in CPU time and calls."""

    def __init__(
        self, recorder: Recorder, system: System, kube: KubeClient, engine: Engine, name: str, pods: int
    ) -> None:
        self.recorder, self.system, self.kube, self.engine = recorder, system, kube, engine
        self.name, self.pods, self.long = name, pods, min(LONG, pods // 3)
        self.namespace = system.namespace
        self._over = threading.Event()

    def phases(self) -> dict[str, tuple[float, float]]:
        """Run all phases. Return for each phase the CPU seconds and the calls of Ostler's processes per Pod."""
        self._bound()
        found = {"up": self._phase("up", lambda: self._scale(self.pods), lambda: self._warm() >= self.pods)}
        with self._jobs():
            found["roll"] = self._phase("roll", self._roll, self._is_rolled)
            found["down"] = self._phase("down", lambda: self._scale(0), self._is_down)
        found["delete"] = self._phase("delete", self._delete, self._is_gone)
        return found

    def _phase(self, phase: str, begin: Callable[[], None], done: Callable[[], bool]) -> tuple[float, float]:
        before, calls = used(self.system), self._calls()
        with self.recorder.window() as window:
            begin()
            end = time.monotonic() + WITHIN
            said = time.monotonic()
            while not done():
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"the phase {phase} of {self.pods} Pods did not end within {WITHIN:.0f} s: {self._warm()} "
                        f"Pods are warm, {self._rows('TRUE')} exist; the logs are in {self.system.folder}"
                    )
                if time.monotonic() > said + 15:
                    said = time.monotonic()
                    self.recorder.say(f"{phase}: {self._warm()} warm, {self._rows('TRUE')} Pods")
                time.sleep(0.25)
        spent = {name: found - before.get(name, 0.0) for name, found in used(self.system).items()}
        return self._report(phase, spent, self._calls() - calls, window)

    def _report(self, phase: str, spent: dict[str, float], calls: int, window: Window) -> tuple[float, float]:
        ours = sum(spent.get(each, 0.0) for each in OURS) / self.pods
        cluster = sum(spent.get(each, 0.0) for each in CONTROL_PLANE) / self.pods
        what = f"{self.name}, {phase}"
        self.recorder.say(
            f"{what}: {self.pods / window.seconds:.1f} Pods/s, {calls / self.pods:.1f} calls and {ours * 1000:.0f} ms "
            f"of CPU a Pod, the control plane {cluster * 1000:.0f} ms"
        )
        bound = f"{self.name}: the same creations by one caller in a loop"
        self.recorder.add(
            f"{what}: rate", "/s", self.pods / window.seconds, window, bounds=(bound,) if phase == "up" else ()
        )
        self.recorder.add(f"{what}: calls to the API server per Pod", "calls", calls / self.pods, window)
        self.recorder.add(f"{what}: CPU per Pod in Ostler's processes", "ms", ours * 1000, window)
        self.recorder.add(f"{what}: CPU per Pod in the control plane", "ms", cluster * 1000, window)
        resident, _ = memory(self.system.children["worker-0"].pid)
        self.recorder.add(f"{what}: memory of the worker", "MiB", resident, window)
        return ours, calls / self.pods

    def _bound(self) -> None:
        """Measure how fast one caller creates Pods with their ServiceAccounts, as the bound for the scale-up."""
        count = min(self.pods, 100)
        namespace = f"bare-{secrets.token_hex(4)}"
        self.kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        pool = create_pool(self.kube, namespace=namespace, name="bare", spec=spec_of(POOL))
        with self.recorder.window() as window:
            for number in range(count):
                create_runner(
                    self.kube,
                    pool=pool,
                    name=f"bare-{number:08x}",
                    attempt="bare",
                    dispatch_url="http://web/",
                    audience="ostler",
                )
        self.recorder.add(
            f"{self.name}: the same creations by one caller in a loop",
            "/s",
            count / window.seconds,
            window,
            is_bound=True,
        )
        self.kube.request("DELETE", f"/api/v1/namespaces/{namespace}")

    @contextlib.contextmanager
    def _jobs(self) -> Iterator[None]:
        """Start the long jobs, and send one short job per second until the scale-down."""
        self._send(self.long, seconds=self.pods * 0.4 + 20)
        self._until(lambda: self._states().get("in_progress", 0) >= self.long)

        def trickle() -> None:
            while not self._over.wait(1.0):
                self._send(1, seconds=0.5)

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            yield
        finally:
            self._over.set()
            sender.join()

    def _send(self, count: int, *, seconds: float) -> None:
        account = ACCOUNTS[0]
        body = {
            "repository": f"{account.login}/{account.repositories[0]}",
            "labels": list(POOL.labels),
            "count": count,
            "duration_seconds": seconds,
        }
        self.system.lab("POST", "/jobs", body)

    def _states(self) -> dict[str, int]:
        states: dict[str, int] = self.system.lab("GET", "/stats")["jobs"]
        return states

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WITHIN
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(
                    f"the jobs or the pool did not reach the expected state within {WITHIN:.0f} s; the states of the "
                    f"jobs are {self._states()}, and the logs are in {self.system.folder}"
                )
            time.sleep(0.25)

    def _scale(self, replicas: int) -> None:
        if replicas == 0:
            self._over.set()
            self._until(lambda: not self._states().get("queued", 0))
        patch_pool_replicas(self.kube, namespace=self.namespace, name=POOL.name, replicas=replicas)

    def _roll(self) -> None:
        path = f"/apis/ostler.dev/v1alpha1/namespaces/{self.namespace}/runnerpools/{POOL.name}"
        self.kube.request("PATCH", path, body={"spec": {"image": "runner:next"}}, content_type=MERGE_PATCH)
        self._until(lambda: self._one("SELECT count(*) FROM pools WHERE image = 'runner:next'") == 1)

    def _is_rolled(self) -> bool:
        stale = self._rows(
            "r.template_hash <> p.template_hash AND NOT EXISTS (SELECT FROM claims c WHERE "
            "c.pod_uid = r.uid AND c.delivered_at IS NOT NULL)"
        )
        return stale == 0 and self._warm() >= self.pods - self.long - 2

    def _is_down(self) -> bool:
        return self._rows("TRUE") == 0

    def _delete(self) -> None:
        delete_pool(self.kube, namespace=self.namespace, name=POOL.name)

    def _is_gone(self) -> bool:
        if get_pool(self.kube, namespace=self.namespace, name=POOL.name) is not None:
            return False
        left: list[Any] = self.kube.request(
            "GET", object_path("serviceaccounts", namespace=self.namespace), query={"labelSelector": "ostler.dev/pool"}
        )["items"]
        return not left and not list_pods(self.kube, namespace=self.namespace)

    def _warm(self) -> int:
        return self._one("SELECT count(*) FROM offers WHERE until > now()")

    def _rows(self, condition: str) -> int:
        return self._one(_ALIVE + condition)

    def _one(self, statement: str) -> int:
        with self.engine.begin() as db:
            return int(db.execute(text(statement)).scalar_one())

    def _calls(self) -> int:
        return int(self.system.faults("kubernetes")["counts"]["forwarded"])
