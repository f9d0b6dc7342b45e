"""Cost of one run of the sweeps that read the whole cluster, with 10,000 and 100,000 Pods at a real API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.frame import Recorder, Target, Window
from benchmarks.load.pods import OWNER, Herd
from benchmarks.load.tokens import NAMESPACE
from benchmarks.proc import cpu
from benchmarks.stage import Stage
from k8s_adapters.calls.client import make_client
from k8s_adapters.pools.crd import apply_crd
from k8s_adapters.pools.pools import create_pool
from lab.control_plane import ControlPlane
from ostler.task_names import QUEUES

MAIN = "orphaned_stamps"
OTHERS = ("missing_pods", "missing_stamps", "orphaned_service_accounts")
_ORPHANS = 1000
"""In a group of this number of Pods, one has a stamp without a live claim, and one has a claim without its stamp."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run.

    `cpu` and `wall` are CPU seconds and elapsed seconds. `before` and `peak` are the memory in MiB before the run and
    at its peak. `server` is the number of CPU seconds of the API server.
    """

    cpu: float
    wall: float
    before: float
    peak: float
    calls: int
    statements: int
    server: float
    window: Window


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    few, many = recorder.size(10_000, 600), recorder.size(100_000, 1200)
    with Stage() as stage, ControlPlane.start(stage.folder / "control-plane") as cluster:
        fleet = _Fleet(stage, cluster)
        for count in (few, many):
            recorder.say(f"{count:,} Pods")
            fleet.grow(count)
            bare = fleet.measure(recorder, "bare")
            parsed = fleet.measure(recorder, "parsed")
            _add(recorder, count, bare, parsed, fleet.tick(recorder, MAIN), most=many)
            for name in OTHERS if count == few else ():
                _add_tick(recorder, name, few, fleet.tick(recorder, name))
        _ratios(recorder, few, many)
        recorder.lab = {
            "server": "kube-apiserver 1.36 and etcd 3.6 of this machine, no sync to disk, kube-controller-manager "
            "stopped; the API server created only the first Pod; all other Pods are copies of its bytes, written to "
            "etcd directly",
            "Pods": f"all stamped and running; of {_ORPHANS:,} Pods, one has no live claim, and one has a claim but "
            "not its stamp",
            "Redis and Postgres": "real; their CPU is not counted",
        }


class _Fleet:
    """Pods in the cluster, with their rows."""

    def __init__(self, stage: Stage, cluster: ControlPlane) -> None:
        self._stage = stage
        self._server = cluster.program("kube-apiserver").pid
        self._env = {"OSTLER_KUBECONFIG": str(cluster.kubeconfig)}
        client = make_client(kubeconfig=str(cluster.kubeconfig))
        apply_crd(client)
        client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
        spec = {"image": "runner:1", "runnerLabels": ["self-hosted"], "replicas": 0}
        pool = create_pool(client, namespace=NAMESPACE, name="bench", spec=spec)
        self._herd = Herd(client, pool, etcd_url=cluster.etcd_url)
        # The controller manager would also store all Pods in memory, and the benchmark does not need it.
        cluster.program("kube-controller-manager").terminate()
        self._pool_id = stage.add_pool("bench")
        stage.rows(
            """
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            VALUES (:owner, 'acme', 100000, 1000000000, 1000000000, now())
            """,
            owner=OWNER,
        )

    def grow(self, count: int) -> None:
        """Add Pods until `count` exist, and replace all rows by new rows for these Pods."""
        self._herd.grow(count)
        self._stage.wait(self._herd.is_listed, timeout=900, what=f"the API server's list of {count} Pods", every=1)
        self._stage.rows("TRUNCATE claims, claim_events, runner_pods, repairs, sweep_runs, sweeps CASCADE")
        pods = list(self._herd.made())
        self._stage.rows(
            """
            INSERT INTO runner_pods (id, pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            OVERRIDING SYSTEM VALUE
            SELECT n + 1, :pool, :namespace, name, uid, 'bench', 'hash', now() - interval '2 h'
            FROM unnest(CAST(:numbers AS bigint[]), CAST(:names AS text[]), CAST(:uids AS text[])) p (n, name, uid)
            """,
            pool=self._pool_id,
            namespace=NAMESPACE,
            numbers=[pod.number for pod in pods],
            names=[pod.name for pod in pods],
            uids=[pod.uid for pod in pods],
        )
        self._stage.rows(
            """
            INSERT INTO claims (id, purpose, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                                stamp, created_at, changed_at, minted_at, delivered_at, spare_since, ended_at,
                                end_reason) OVERRIDING SYSTEM VALUE
            SELECT CASE WHEN n % :every = 2 THEN 5000000 + n ELSE 1000000 + n END, 'job', n + 1, p.uid, p.pool_id,
                   :owner, 'orgs/acme', 2000, 4096, CASE WHEN orphan THEN 'ended' ELSE 'executing' END, 'on',
                   since, since, since, CASE WHEN NOT orphan THEN since END, NULL, CASE WHEN orphan THEN since END,
                   CASE WHEN orphan THEN 'released' END
            FROM runner_pods p, LATERAL (SELECT p.id - 1 AS n, (p.id - 1) % :every = 1 AS orphan,
                                                now() - interval '1 h' AS since) o
            """,
            owner=OWNER,
            every=_ORPHANS,
        )
        self._stage.system("VACUUM ANALYZE")

    def tick(self, recorder: Recorder, name: str) -> Cost:
        """Run a sweep once, check its repairs, and undo its writes.

        Raises RuntimeError if it did not list all Pods or did not make and announce the expected number of repairs.
        """
        cost = self.measure(recorder, name)
        listed, outcome = self._stage.rows("SELECT listed, outcome FROM sweep_runs ORDER BY id DESC LIMIT 1")[0]
        repaired = self._stage.scalar("SELECT count(*) FROM repairs")
        wanted = 0 if name in {"missing_pods", "orphaned_service_accounts"} else _stalled(self._herd.count, name)
        if (listed, outcome, repaired) != (self._herd.count, "done", wanted):
            raise RuntimeError(
                f"{name} ended as {outcome} with {listed} listed objects and {repaired} repairs instead of done "
                f"with {self._herd.count} listed objects and {wanted} repairs"
            )
        with self._stage.redis.client() as redis:
            sent = sum(int(redis.llen(queue)) for queue in QUEUES)
        if sent != wanted:
            raise RuntimeError(f"{name} made {wanted} repairs, and {sent} messages wait in the queues of the workers")
        self._stage.rows("DELETE FROM repairs")
        self._stage.rows("DELETE FROM claim_events WHERE claim_id IN (SELECT id FROM claims WHERE purpose = 'retire')")
        self._stage.rows("DELETE FROM claims WHERE purpose = 'retire'")
        self._stage.redis.flush()
        return cost

    def measure(self, recorder: Recorder, what: str) -> Cost:
        """Run a sweep or a bound once in a separate process, and return its cost."""
        used = cpu(self._server)
        with recorder.window() as window:
            said: Any = self._stage.run("benchmarks.load.sweep", what, **self._env)
        return Cost(**said, server=cpu(self._server) - used, window=window)


def _stalled(count: int, name: str) -> int:
    rest = 1 if name == MAIN else 2
    return sum(1 for number in range(count) if number % _ORPHANS == rest)


def _add(recorder: Recorder, count: int, bare: Cost, parsed: Cost, tick: Cost, *, most: int) -> None:
    pods = f"{count:,} Pods"
    loops = {"bare pages": bare, "pages parsed by orjson": parsed}
    for name, cost in loops.items():
        recorder.add(f"{name}, {pods}: CPU", "s", cost.cpu, cost.window, is_bound=True)
        recorder.add(f"{name}, {pods}: time", "s", cost.wall, cost.window, is_bound=True)
    targets = (Target("median", "≤", 6),) if count == most else ()
    _add_tick(recorder, MAIN, count, tick, targets=targets, loops=tuple(loops))
    recorder.add(f"`{MAIN}`, {pods}: CPU of kube-apiserver", "s", tick.server, tick.window)


def _add_tick(
    recorder: Recorder,
    name: str,
    count: int,
    tick: Cost,
    *,
    targets: tuple[Target, ...] = (),
    loops: tuple[str, ...] = (),
) -> None:
    """Record the cost of one run. Its bounds are the `loops` over the same pages."""
    pods = f"{count:,} Pods"
    title = f"`{name}`, {pods}"
    recorder.add(
        f"{title}: CPU of the sweep",
        "s",
        tick.cpu,
        tick.window,
        targets=targets,
        bounds=[f"{loop}, {pods}: CPU" for loop in loops],
    )
    recorder.add(f"{title}: time", "s", tick.wall, tick.window, bounds=[f"{loop}, {pods}: time" for loop in loops])
    recorder.add(f"{title}: memory before", "MiB", tick.before, tick.window, is_bound=True)
    recorder.add(f"{title}: peak memory", "MiB", tick.peak, tick.window, bounds=(f"{title}: memory before",))
    recorder.add(f"{title}: API calls", "calls", tick.calls, tick.window)
    recorder.add(f"{title}: SQL statements", "statements", tick.statements, tick.window)


def _ratios(recorder: Recorder, few: int, many: int) -> None:
    """Record the ratio of the cost of a Pod between the large and the small cluster."""

    def value(count: int, what: str) -> float:
        return recorder.figures[f"`{MAIN}`, {count:,} Pods: {what}"].value("median")

    last = recorder.figures[f"`{MAIN}`, {many:,} Pods: CPU of the sweep"].rounds[-1]
    window = Window(seconds=last.seconds, load=last.load, others=last.others)
    per_pod = (value(many, "CPU of the sweep") / many) / (value(few, "CPU of the sweep") / few)
    recorder.add(
        f"`{MAIN}`, CPU per Pod: {many:,} ÷ {few:,} Pods",
        "ratio",
        per_pod,
        window,
        targets=(Target("median", "≤", 1.2),),
    )
    memory = value(many, "peak memory") / value(few, "peak memory")
    recorder.add(
        f"`{MAIN}`, peak memory: {many:,} ÷ {few:,} Pods",
        "ratio",
        memory,
        window,
        targets=(Target("median", "≤", 1.1),),
    )
