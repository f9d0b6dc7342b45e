"""One running system, and all connections between its parts that a fault test breaks.

The Pods reach web through fault proxies of this process, and so do Ostler's processes the API server. The processes
halt at armed points and are killed there. Every wait also kills the halted processes, so that a test can wait for
anything while it kills.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Row, create_engine, text

from k8s_adapters.calls.client import make_client
from k8s_adapters.pools.pools import patch_pool_replicas
from k8s_adapters.runners.pods import get_pod, list_pods
from lab.bootstrap import ACCOUNTS, LabAccount, LabPool
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from lab.invariants import History, broken, nothing_left, read_pods, read_rows
from lab.processes import Child, free_port
from lab.system import Options, System, read_log, read_log_lines
from lab.timings import merged, timings
from lab.verdict import Verdict, judge
from ostler.errors import Gone
from tests.cluster import delete_namespace

POOL = LabPool("small", ("self-hosted", "linux", "small"), 8)
DISPATCH = "/runners/v1/dispatch"

# Waits for something that should have happened are scaled by 20, 3 s at least; nothing else is.
SCALED = {
    **timings(
        due_after=3,
        resume_every=1,
        pools_every=2,
        epoch_every=2,
        sweep_every=3,
        stale_claim_after=15,
        unused_after=6,
        spare_after=3,
        unstamp_after=3,
        missing_stamp_after=3,
        spent_after=3,
        unresolved_after=6,
        unresolved_late_after=180,
        redelivery_again_after=3,
    ),
    "OSTLER_DEFAULT_BUDGET_COUNT": "4",
    "OSTLER_WORKER_THREADS": "8",
}
EVERY = 0.1
PATIENCE = 180.0
"""Longest wait in seconds. Only a failure waits for all of it, but a busy machine is slow."""


HOLD = 5.0
"""Longest time in seconds that a mint is held. The value is below the timeout of the call, so that it is answered.

The mint is then tried again, five times in all, so a claim stays `claimed` for half a minute.
"""


class TooLate(AssertionError):
    """An expected event did not happen in time."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that halted at a point and was killed there."""

    point: str
    process: str


class Line:
    """The connection from the Pods to web: a fault proxy that can be cut and mended."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._stack = ExitStack()
        self._port = free_port()  # ours while it is cut, too
        self.mend()

    @property
    def url(self) -> str:
        """The address that the Pods poll."""
        return self.proxy.url + DISPATCH

    def cut(self) -> None:
        """Cut every connection. New connections are refused until `mend`."""
        self._stack.close()

    def mend(self, *faults: Fault) -> None:
        """Accept connections again at the same address. The faults also apply to the first of them."""
        self.proxy = FaultProxy(self._upstream, port=self._port)
        for fault in faults:
            self.proxy.add(fault)
        self._stack.enter_context(self.proxy)

    def close(self) -> None:
        """Stop the proxy."""
        self._stack.close()


class Stage:
    """The running system, with the actions of a test. `copies` is the number of jobs of a scenario."""

    def __init__(self, system: System, *, pool: LabPool, line: Line, api: FaultProxy, halts: Path, copies: int) -> None:
        self.system = system
        self.pool = pool
        self.copies = copies
        self.line = line
        self.api = api
        self.kube = system.kube()
        self.engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True)
        self.kills: list[Kill] = []
        self.deleted: set[str] = set()
        self.cancelled: set[int] = set()
        self.before_kill: Callable[[], None] = nothing
        self._armed = halts / "armed"
        self._halted = halts / "halted"
        self._accounts: Iterator[LabAccount] = cycle(ACCOUNTS)

    def close(self) -> None:
        """Close the clients."""
        self.engine.dispose()
        self.kube.close()

    # Kill points

    def arm(self, points: Collection[str]) -> None:
        """Let the next process that reaches one of these points halt there."""
        for point in points:
            (self._armed / point).touch()

    def disarm(self) -> None:
        """Disarm the points that no process has reached."""
        for path in self._armed.iterdir():
            path.unlink(missing_ok=True)

    def armed(self) -> set[str]:
        """Return the points that no process has reached."""
        return {path.name for path in self._armed.iterdir()}

    def all_reached(self) -> bool:
        """Return whether no point is armed any more."""
        return not self.armed()

    def kill_halted(self) -> None:
        """Kill and restart every process that has halted."""
        for path in sorted(self._halted.iterdir()):
            if not path.exists():  # the same process was halted at two points at once
                continue
            point, _, pid = path.name.rpartition(".")
            child = next(c for c in self.system.children.values() if c.pid == int(pid))
            end = time.monotonic() + PATIENCE
            while not _is_stopped(int(pid)):
                if time.monotonic() > end:
                    raise TooLate(f"{child.name} announced {point} and did not stop")
                time.sleep(0.005)
            self.before_kill()
            together = [other for other in self._halted.iterdir() if other.name.endswith(f".{pid}")]
            child.kill()
            self._start_again(child)
            for other in together:
                self._killed(other, other.name.rpartition(".")[0], child.name)

    def _killed(self, path: Path, point: str, process: str) -> None:
        path.unlink(missing_ok=True)
        self.kills.append(Kill(point, process))

    def _start_again(self, child: Child) -> None:
        self.system.restart(child.name)
        if child.name.startswith("web"):
            # What GitHub sends to nobody comes back late. It may reach the next armed point before it has answered.
            child.wait_until(lambda: self.web_answers() or self._has_halted(child), timeout=PATIENCE)

    def _has_halted(self, child: Child) -> bool:
        return any(halted.name.endswith(f".{child.pid}") for halted in self._halted.iterdir())

    def web_answers(self) -> bool:
        """Return whether web is ready."""
        try:
            return httpx.get(f"{self.system.private_url}/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False

    # Waiting

    def until(self, happened: Callable[[], bool], *, what: str, within: float = PATIENCE) -> None:
        """Wait until `happened` is true. Raise `TooLate` after `within` seconds."""
        if not self.happens(happened, within=within):
            raise TooLate(f"{what}: not within {within:.0f} s; {self.why()}")

    def happens(self, happened: Callable[[], bool], *, within: float) -> bool:
        """Return whether `happened` becomes true within `within` seconds."""
        end = time.monotonic() + within
        while True:
            self.kill_halted()
            if happened():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(EVERY)

    def why(self) -> str:
        """Return possible causes of a delay: open jobs, live claims and backoffs."""
        with self.engine.connect() as db:
            jobs = db.execute(
                text("""
                SELECT id, state, hold_reason, hold_detail, not_before - now() AS held FROM jobs
                WHERE state <> 'completed' ORDER BY id
            """)
            ).all()
            claims = db.execute(
                text("""
                SELECT id, purpose, job_id, state, stamp, chain_no, last_error FROM claims
                WHERE ended_at IS NULL ORDER BY id
            """)
            ).all()
            backoffs = db.execute(
                text("""
                SELECT kind, key, reason, failures, not_before - now() AS held FROM backoffs WHERE not_before > now()
            """)
            ).all()
        return f"jobs {jobs}, claims {claims}, backoffs {backoffs}, {self.offered()} offers"

    # Jobs

    def send(
        self, count: int = 2, *, seconds: float = 0.3, waiting: bool = False, account: LabAccount | None = None
    ) -> list[int]:
        """Create jobs of an account, or of the next account in turn, and return their ids."""
        account = account or next(self._accounts)
        body = {
            "repository": f"{account.login}/{account.repositories[0]}",
            "labels": list(self.pool.labels),
            "count": count,
            "duration_seconds": seconds,
            "waiting": waiting,
        }
        ids: list[int] = self.system.lab("POST", "/jobs", body)["ids"]
        return ids

    def open_jobs(self) -> set[int]:
        """Return the jobs that are not over at GitHub."""
        return {job["id"] for job in self.system.lab("GET", "/jobs")["jobs"] if job["status"] != "completed"}

    def are_over(self, jobs: Collection[int]) -> bool:
        """Return whether these jobs are over at GitHub."""
        return not self.open_jobs().intersection(jobs)

    def is_through_with(self, jobs: Collection[int]) -> bool:
        """Return whether Ostler has nothing left to do for these jobs and for all others."""
        with self.engine.connect() as db:
            live = db.execute(text("SELECT 1 FROM claims WHERE ended_at IS NULL LIMIT 1")).one_or_none()
        states = self.job_states(jobs)
        return live is None and len(states) == len(jobs) and set(states.values()) == {"completed"}

    def claims(self, jobs: Collection[int]) -> Sequence[Row[Any]]:
        """Return the live claims of these jobs, with the names of their Pods."""
        with self.engine.connect() as db:
            return db.execute(
                text("""
                    SELECT c.id, c.job_id, c.state, c.stamp, c.pod_uid, p.name AS pod_name
                    FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
                    WHERE c.ended_at IS NULL AND c.job_id = ANY(:jobs) ORDER BY c.id
                """),
                {"jobs": list(jobs)},
            ).all()

    def job_states(self, jobs: Collection[int]) -> Mapping[int, str]:
        """Return the states of the rows of these jobs. A job without a row is missing."""
        with self.engine.connect() as db:
            rows = db.execute(text("SELECT id, state FROM jobs WHERE id = ANY(:jobs)"), {"jobs": list(jobs)})
            return {row.id: row.state for row in rows}

    def claims_in(self, jobs: Collection[int], states: Collection[str]) -> Sequence[Row[Any]]:
        """Return the claims of these jobs as soon as all of them are in these states at once."""
        found: Sequence[Row[Any]] = ()

        def all_there() -> bool:
            nonlocal found
            found = [claim for claim in self.claims(jobs) if claim.state in states]
            return len(found) == len(jobs)

        self.until(all_there, what=f"claims of {len(jobs)} jobs in {'/'.join(sorted(states))}")
        return found

    def each_claim_in(self, jobs: Collection[int], states: Collection[str]) -> Iterator[Row[Any]]:
        """Yield a claim of each of these jobs as soon as the claim is in one of these states, in any order.

        Yield None for a job that is over: GitHub can give it to a spare of an earlier job.
        """
        left = set(jobs)
        found: Sequence[Row[Any]] = ()

        def some_there() -> bool:
            nonlocal found
            left.difference_update(job for job, state in self.job_states(left).items() if state == "completed")
            found = [claim for claim in self.claims(left) if claim.state in states]
            return bool(found) or not left

        while left:
            self.until(some_there, what=f"a claim of one of {len(left)} jobs in {'/'.join(sorted(states))}")
            for claim in found:
                left.discard(claim.job_id)
                yield claim

    def started(self, jobs: Collection[int]) -> Mapping[int, tuple[str, str]]:
        """Return (Pod name, UID) of the jobs that a Pod has begun, from the kubelet's log."""
        return {
            event["job"]: (event["pod"], event["uid"])
            for event in read_log(self.system.kubelet_log)
            if event["event"] == "job_started" and event["job"] in jobs
        }

    def is_assigned(self, job: int) -> bool:
        """Return whether GitHub has assigned a runner to a job that is not over."""
        return any(runner["job"] == job for runner in self.system.lab("GET", "/runners")["runners"])

    def cancel(self, job: int) -> None:
        """Cancel a job at GitHub."""
        self.cancelled.add(job)
        self.system.lab("POST", f"/jobs/{job}/cancel")

    # Pods

    def delete_pod(self, name: str, uid: str) -> bool:
        """Delete a Pod without Ostler's knowledge. Return False if it is gone already."""
        path = f"/api/v1/namespaces/{self.system.namespace}/pods/{name}"
        try:
            self.kube.request("DELETE", path, body={"preconditions": {"uid": uid}})
        except Gone:
            return False
        self.deleted.add(uid)
        return True

    def delete_pods(self, pods: Mapping[str, str]) -> set[str]:
        """Delete Pods (names by UID), wait until they are gone, and return the UIDs of those that still existed."""
        there = {uid for uid, name in pods.items() if self.delete_pod(name, uid)}
        namespace, end = self.system.namespace, time.monotonic() + PATIENCE
        while left := [name for name in pods.values() if get_pod(self.kube, namespace=namespace, name=name)]:
            if time.monotonic() > end:
                raise TooLate(f"{', '.join(left)}: still there long after their deletion")
            time.sleep(EVERY)
        return there

    def newest_claim(self) -> int:
        """Return the highest id of a claim."""
        with self.engine.connect() as db:
            newest: int = db.execute(text("SELECT coalesce(max(id), 0) FROM claims")).scalar_one()
            return newest

    def pods_at_stake(self, *, since: int) -> Mapping[str, str]:
        """Return name by UID of the Pods with a claim after claim `since`, and of those that are about to get one.

        The latter are the Pods whose rows a halted process has locked. No other session sees its commit yet.
        """
        with self.engine.connect() as db:
            rows = db.execute(
                text("""
                    SELECT uid, name FROM runner_pods
                    WHERE uid IS NOT NULL
                      AND (id IN (SELECT runner_pod_id FROM claims WHERE id > :since)
                           OR id NOT IN (SELECT id FROM runner_pods FOR NO KEY UPDATE SKIP LOCKED))
                """),
                {"since": since},
            )
            return {row.uid: row.name for row in rows}

    def next_pod(self) -> Mapping[str, str]:
        """Return name by UID of the warm Pod that gets the next job."""
        with self.engine.connect() as db:
            rows = db.execute(
                text("""
                    SELECT p.uid, p.name FROM runner_pods p JOIN offers o ON o.pod_uid = p.uid AND o.until > now()
                    WHERE NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL)
                    ORDER BY p.id LIMIT 1
                """)
            )
            return {row.uid: row.name for row in rows}

    def offered(self) -> int:
        """Return the number of Pods with a held poll."""
        with self.engine.connect() as db:
            count: int = db.execute(text("SELECT count(*) FROM offers WHERE until > now()")).scalar_one()
            return count

    def scale(self, replicas: int) -> None:
        """Set the size of the pool."""
        patch_pool_replicas(self.kube, namespace=self.system.namespace, name=self.pool.name, replicas=replicas)

    # GitHub's weather

    @contextmanager
    def mints_held(self, then: int = 0) -> Iterator[None]:
        """Hold each mint and answer it with 502, until the end of the block.

        `then` more mints are held after the block. The block contains the acts on claims that wait for a JIT. It begins
        with warm Pods for all jobs: if a single claim waited for half a minute, the whole installation would back off.
        """
        self.until(lambda: self.offered() >= self.copies, what="warm Pods for the jobs")
        fault = {"method": "POST", "path_regex": "generate-jitconfig", "status": 502}
        self.system.lab("POST", "/faults", fault | {"delay_seconds": HOLD, "times": 100_000})
        try:
            yield
        finally:
            self.system.lab("DELETE", "/faults")
            if then:
                self.system.lab("POST", "/faults", fault | {"delay_seconds": 1.5, "times": then})

    @contextmanager
    def webhooks_lost(self, action: str = "") -> Iterator[None]:
        """Let GitHub lose every webhook, or every webhook with this action, and refuse to list its deliveries."""
        fault = {"method": "GET", "path_regex": "/app/hook/deliveries", "status": 502, "times": 100_000}
        self.system.lab("POST", "/webhooks", {"drop_action": action} if action else {"drop_rate": 1})
        self.system.lab("POST", "/faults", fault)
        try:
            yield
        finally:
            self.no_faults()
            self.system.lab("POST", "/webhooks", {"drop_rate": 0, "drop_action": ""})

    def no_faults(self) -> None:
        """Remove every fault of GitHub's API."""
        self.system.lab("DELETE", "/faults")

    # The end

    def settle(self, *, within: float = PATIENCE) -> None:
        """Wait until all jobs are over and no temporary object is left, or until the time is over."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            if self.happens(lambda: self.are_over(self.open_jobs()), within=end - time.monotonic()):
                in_flight = self.system.lab("GET", "/stats")["webhooks_in_flight"]
                if not in_flight and not self.left():
                    return
            time.sleep(0.3)

    def left(self) -> list[str]:
        """Return the temporary objects that are left now."""
        left = [f"runner {each['name']} is registered" for each in self.system.lab("GET", "/runners")["runners"]]
        pods = len(list_pods(self.kube, namespace=self.system.namespace))
        if pods != self.pool.replicas:
            left.append(f"{pods} Pods instead of {self.pool.replicas}")
        return left + list(nothing_left(self.history()))

    def history(self) -> History:
        """Return the history of the run until now."""
        remapped: set[int] = set()
        for path in self.system.folder.glob("web-*.log"):
            for event in read_log_lines(path):
                if event.get("event") == "job.runs_on_other_runner":
                    remapped |= {event["claim"], event["former_claim_of_job"]} - {None}
        return History(
            **read_rows(self.engine),
            pods=read_pods(self.kube, namespace=self.system.namespace),
            github=read_log(self.system.github_log),
            kubelet=read_log(self.system.kubelet_log),
            remapped=remapped,
            deleted=frozenset(self.deleted),
        )

    def hit(self) -> set[int]:
        """Return the jobs whose Pod the test deleted while its runner had them, from the kubelet's log."""
        return {event["job"] for event in self._hits()}

    def cut_short(self) -> set[int]:
        """Return the hit jobs that were not over at GitHub at that time."""
        over = {
            event["job"]: event["at"] for event in read_log(self.system.github_log) if event["event"] == "job_completed"
        }
        return {
            event["job"]
            for event in self._hits()
            if over.get(event["job"], math.inf) > datetime.fromisoformat(event["at"]).timestamp()
        }

    def _hits(self) -> list[Mapping[str, Any]]:
        return [
            event
            for event in read_log(self.system.kubelet_log)
            if event["event"] == "pod_deleted" and event["job"] is not None and event["uid"] in self.deleted
        ]

    def verdict(self) -> Verdict:
        """Return the lab's verdict on the run until now. No runner may be left at GitHub."""
        return judge(read_log(self.system.github_log), read_log(self.system.kubelet_log), expected_failures=self.hit())

    def wrong_ends(self) -> dict[int, str]:
        """Return the jobs with a wrong result. The expected result is failure if cut short, cancelled, or success."""
        cut = self.cut_short()
        wrong = {}
        for job in self.system.lab("GET", "/jobs")["jobs"]:
            number = job["id"]
            due = "failure" if number in cut else "cancelled" if number in self.cancelled else "success"
            if job["conclusion"] != due:
                wrong[number] = f"{job['conclusion']} instead of {due}"
        return wrong

    def _problems(self) -> list[str]:
        self.settle()
        wrong = (f"job {job} ended with {how}" for job, how in self.wrong_ends().items())
        return list(dict.fromkeys([*self.verdict().problems, *wrong, *self.left(), *broken(self.history())]))

    def assert_whole(self) -> None:
        """Wait until the system is idle, and judge the whole run by the logs and by the laws."""
        problems = self._problems()
        if problems:
            # What is wrong stays wrong; a Pod that was replaced between two questions does not.
            problems = self._problems()
        if problems:
            raise AssertionError("\n".join(problems))


def nothing() -> None:
    """Do nothing."""


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return True


@contextmanager
def running(
    folder: Path,
    access: ClusterAccess,
    namespace: str,
    *,
    pool: LabPool = POOL,
    workers: int = 3,
    beats: int = 1,
    watches: int = 0,
    copies: int = 2,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Stage]:
    """Start a system, and yield its stage when the Pods are warm. At the end everything is stopped."""
    halts = folder / "halts"
    for name in ("armed", "halted"):
        (halts / name).mkdir(parents=True)
    given = merged(SCALED, {"OSTLER_HALT_DIR": str(halts)}, settings or {})
    with ExitStack() as stack:
        api = stack.enter_context(FaultProxy(access.url, ca_file=access.ca_file))
        options = Options(
            pools=[pool],
            workers=workers,
            beats=beats,
            watches=watches,
            real_pods=1,
            settings=given,
            kubernetes_url=api.url,
        )
        system = System(folder / "system", options, say=lambda _: None, namespace=namespace, control_plane=access)
        line = Line(system.polls_url)
        stack.callback(line.close)
        given["OSTLER_DISPATCH_URL"] = line.url
        stack.enter_context(_namespace(access, namespace))
        stack.enter_context(system)
        system.wait_for_warm_pods(pool.replicas, timeout=PATIENCE)
        stage = Stage(system, pool=pool, line=line, api=api, halts=halts, copies=copies)
        stack.callback(stage.close)
        yield stage


@contextmanager
def _namespace(access: ClusterAccess, name: str) -> Iterator[None]:
    """Create a namespace, which is deleted in the background afterwards."""
    kube = make_client(kubeconfig=str(access.kubeconfig))
    try:
        kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        yield
        delete_namespace(kube, name)
    finally:
        kube.close()
