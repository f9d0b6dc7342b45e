"""One chaos run: start a system, send jobs, strike, wait until it comes to rest, and judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from urllib3.exceptions import HTTPError

from beat_schedule import periods
from k8s_adapters.calls.client import MERGE_PATCH, object_path
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.pools.pools import pool_path
from lab.bootstrap import ACCOUNTS, NODE_POOLS, PERSISTENT_POOLS, POOLS, SETS_POOL
from lab.chaos.breaker import WEBHOOKS, Breaker
from lab.chaos.laws import (
    ANSWERS_WITHIN,
    Absence,
    Broken,
    Kill,
    Refusals,
    of_absences,
    of_budgets,
    of_executions,
    of_refusals,
    of_strangers,
)
from lab.chaos.plan import LATEST, ChaosPlan
from lab.chaos.sampler import Sampler
from lab.chaos.stalls import Path as StallPath
from lab.chaos.stalls import paths, read_stalls
from lab.chaos.waits import REAL_STARTS, scaled
from lab.invariants import History, broken, nothing_left, read_pods, read_rows
from lab.system import NODE, Options, System, read_log, read_log_lines
from lab.timings import merged
from lab.traffic import Traffic
from lab.verdict import Verdict, judge
from ostler.errors import UpstreamError
from ostler.task_names import SWEEPS
from ostler.timings import Timings
from ostler.variables import TIMINGS
from rules.pools.workloads import pod_name_of
from rules.sweeps.limits import SUCCESSES, allowance

Say = Callable[[str], None]

WAVE = 40
"""The run sends further jobs while fewer than half of `WAVE` jobs are open. `WAVE` is twice the number of Pods."""

LULL = 200
"""Number of jobs after which the run waits until all of them are over, so that sweeps also see an idle fleet."""

EVERY = 0.2
"""Seconds between two checks."""

SAY_EVERY = 5.0
"""Seconds between two lines of progress."""

STALLED = 300.0
"""Seconds without the end of a job after which the run is given up."""

SETTLED_WITHIN = 300.0
"""Seconds after the end of the last job within which everything must be cleaned up.

The slowest cleanup is that of a Pod whose runner still runs. The Pod is checked twice: 45 seconds after the end of its
job, and a minute later. A check that failed is repeated.
"""

SWEPT_EVERY = 60.0
"""Longest interval in seconds of the sweeps that the run waits for."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Parameters of a run besides its plan.

    `until` lists laws. The run ends as soon as each of them was seen to be violated. Runs whose `worker_program`
    contains a planted bug set `until`. `settings` are environment variables of Ostler's processes. They replace the
    variables of the same name in `lab.chaos.waits.scaled`.
    """

    cluster: str = "real"
    webs: int = 2
    workers: int = 3
    beats: int = 2
    watches: int = 1
    real_pods: int = 4
    worker_program: Sequence[str] = ("ostler",)
    settings: Mapping[str, str] = field(default_factory=dict)
    until: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run. `broken` are violations of laws, and `problems` all other problems. A clean run has neither.

    `worked` and `settled` are the seconds until the last job was over, and from then until the system was at rest.
    """

    plan: ChaosPlan
    verdict: Verdict
    broken: tuple[Broken, ...]
    problems: tuple[str, ...]
    worked: float
    settled: float
    samples: int
    pod_changes: int
    struck: Mapping[str, int]
    played: Mapping[str, Mapping[str, int]]
    events: Mapping[str, int]
    repairs: Mapping[str, int]
    unusual: Mapping[str, int]
    stalled: Sequence[StallPath]
    refusals: Refusals

    @property
    def ok(self) -> bool:
        """Whether there is no problem and no violation of a law."""
        return not self.broken and not self.problems

    @property
    def laws(self) -> frozenset[str]:
        """The laws that were violated."""
        return frozenset(each.law for each in self.broken)


def run_chaos(folder: Path, plan: ChaosPlan, scene: Scene, *, say: Say) -> Result:
    """Start a system in `folder`, inject the plan's faults, and return the result. Raises the errors of `System`."""
    on_nodes = scene.cluster == NODE
    pools = {"embedded": POOLS, NODE: NODE_POOLS}.get(scene.cluster, (*POOLS, SETS_POOL, *PERSISTENT_POOLS))
    options = Options(
        pools=pools,
        real_nodes=2,
        webs=scene.webs,
        workers=scene.workers,
        beats=scene.beats,
        watches=scene.watches,
        real_pods=scene.real_pods,
        seed=plan.seed,
        lock_expiry=15,
        settings=merged(scaled(), REAL_STARTS if on_nodes else {}, scene.settings),
        github_faults=plan.github(),
        kubernetes_faults=plan.kubernetes(),
        worker_program=scene.worker_program,
        own_roles=True,
    )
    with System(folder, options, say=say, cluster=scene.cluster) as system:
        polling = sum(pool.replicas for pool in options.pools if not pool.persistent)
        system.wait_for_warm_pods(polling // 2, timeout=180)
        return _Run(system, plan, scene, say=say).play()


class _Run:
    """The run on a system whose Pods are warm."""

    def __init__(self, system: System, plan: ChaosPlan, scene: Scene, *, say: Say) -> None:
        self._system = system
        self._plan = plan
        self._scene = scene
        self._say = say
        self._traffic = Traffic(ACCOUNTS, system.options.pools, seed=plan.seed)
        self._breaker = Breaker(system, plan.strikes, say=lambda what: say(f"  ✂ {what}"))
        self._sampler = Sampler(system, vanished=self._breaker.vanished)
        self._engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True)
        self._kube = system.kube()
        self._strangers: set[str] = set()
        self._sent = 0
        self._over = 0
        self._began_at = datetime.now(UTC)

    def play(self) -> Result:
        """Send jobs, strike, wait until the system is at rest, and judge."""
        began = time.monotonic()
        self._begin()
        self._sampler.start()
        try:
            problem = self._work()
            over = time.monotonic()
            leaks: list[str] = []
            if problem is None and not self._found_all():
                self._calm()
                leaks = self._settle()
            settled = time.monotonic() - over
        finally:
            self._sampler.stop()
            self._breaker.thaw()
        try:
            return self._judge(problem, leaks, worked=over - began, settled=settled)
        finally:
            self._breaker.close()
            self._kube.close()
            self._engine.dispose()

    def _begin(self) -> None:
        rates = self._plan.rates
        weather = {
            "drop_rate": rates.webhooks_lost,
            "vanish_rate": rates.webhooks_never_sent,
            "duplicate_rate": rates.webhooks_doubled,
            "delay_rate": rates.webhooks_late,
            "delay_max_seconds": LATEST,
            "reorder": True,
        }
        self._system.lab("POST", "/webhooks", weather)
        self._system.lab("POST", "/settings", {"forgetful_rate": rates.lists})
        for number, account in enumerate(ACCOUNTS):
            name = f"{POOLS[0].name}-0{number:07x}-{number:08x}"  # the names have the form of Ostler's runner names
            organization = account.type == "Organization"
            scope = f"orgs/{account.login}" if organization else f"repos/{account.login}/{account.repositories[0]}"
            self._system.lab("POST", "/runners", {"scope": scope, "name": name, "labels": ["somebody-elses"]})
            self._strangers.add(name)

    def _calm(self) -> None:
        """End every fault, so that anything that is still left after a while is a leak.

        Persistent runners live until their pools need them no more, so these pools are scaled to 0.
        """
        self._breaker.mend_all()
        for upstream in ("github", "kubernetes"):
            self._system.no_faults(upstream)
        rates = ("drop_rate", "vanish_rate", "duplicate_rate", "delay_rate")
        calm = {**dict.fromkeys(rates, 0), "reorder": False, "paused": False}
        self._system.lab("POST", "/webhooks", calm)
        self._system.lab("POST", "/settings", {"forgetful_rate": 0})
        for pool in self._system.options.pools:
            if pool.persistent:
                path = pool_path(self._system.namespace, pool.name)
                self._kube.request("PATCH", path, body={"spec": {"replicas": 0}}, content_type=MERGE_PATCH)

    # Work

    def _work(self) -> str | None:
        """Send jobs, strike and check until every job is over. Return the reason if the run is given up, else None.

        The method also ends as soon as all laws in the scene's `until` have been violated.
        """
        moved_at = said_at = checked_at = began = time.monotonic()
        states: Counter[str] = Counter()
        while True:
            self._breaker.look(over=self._over)
            now = time.monotonic()
            with suppress(HTTPError):
                states = Counter(self._system.lab("GET", "/stats")["jobs"])
                if states["completed"] != self._over:
                    self._over, moved_at = states["completed"], now
            self._send()
            if self._over == self._plan.jobs:
                return None
            if now - said_at > SAY_EVERY:
                said_at = now
                self._say(
                    f"{now - began:4.0f} s  sent {self._sent}  over {self._over}  open {self._sent - self._over}  "
                    f"struck {self._breaker.struck.total()}  samples {self._sampler.samples}  "
                    f"laws broken {len(self._sampler.broken)}"
                )
            if now - checked_at > SAY_EVERY / 2:
                checked_at = now
                if self._found_all():
                    return None
            if now - moved_at > STALLED:
                return f"no job has ended for {STALLED:.0f} s: {dict(states)}"
            time.sleep(EVERY)

    def _send(self) -> None:
        """Send further jobs if few are open."""
        while self._sent - self._over < WAVE // 2 and self._sent < self._plan.jobs:
            left_of_this = LULL - self._sent % LULL
            if left_of_this == LULL and self._sent > self._over:
                break
            run = self._traffic.run(most=min(self._plan.jobs - self._sent, left_of_this))
            self._system.lab("POST", "/jobs", run)
            self._sent += len(run)

    def _found_all(self) -> bool:
        """Return whether all the laws in the scene's `until` have been violated by now."""
        wanted = set(self._scene.until)
        if not wanted:
            return False
        try:
            found = {*self._sampler.broken, *self._by_logs()}
        except DBAPIError:
            return False
        return wanted <= {each.law for each in found}

    # Rest

    def _settle(self) -> list[str]:
        """Wait until nothing is left over and every awaited sweep has run since the last job ended.

        Return what remains after `SETTLED_WITHIN` seconds. Return early if all laws of the scene were violated.
        """
        over_at, end = datetime.now(UTC), time.monotonic() + SETTLED_WITHIN
        said_at = time.monotonic()
        while True:
            self._breaker.look(over=0)
            if self._found_all():
                return []
            try:
                left = [*self._left(), *(f"{name} has not run since" for name in self._not_swept(since=over_at))]
            except (DBAPIError, HTTPError, UpstreamError) as error:
                left = [
                    f"Postgres, the cluster or the lab's GitHub could not be read: {str(error).partition(chr(10))[0]}"
                ]
            if not left or time.monotonic() > end:
                return left
            if time.monotonic() - said_at > SAY_EVERY:
                said_at = time.monotonic()
                self._say(f"all jobs are over; {len(left)} leftovers, the first: {left[0]}")
            time.sleep(1)

    def _left(self) -> list[str]:
        runners = [each["name"] for each in self._system.lab("GET", "/runners")["runners"]]
        left = [f"runner {name} is registered" for name in runners if name not in self._strangers]
        if in_flight := self._system.lab("GET", "/stats")["webhooks_in_flight"]:
            left.append(f"{in_flight} webhooks are on their way")
        namespace = self._system.namespace
        pods = read_pods(self._kube, namespace=namespace)
        wanted = sum(pool.replicas for pool in self._system.options.pools if not pool.persistent)
        if len(pods) != wanted:
            left.append(f"{len(pods)} Pods instead of {wanted}")
        names = {pod.name for pod in pods}
        pages = metadata_pages(self._kube, "serviceaccounts", namespace=namespace, selector=OF_POOLS)
        left += [f"ServiceAccount {each.name} has no Pod" for page in pages for each in page if each.name not in names]
        path = object_path("statefulsets", namespace=namespace, group="apps")
        if SETS_POOL in self._system.options.pools:
            sets = [item["metadata"]["name"] for item in self._kube.request("GET", path)["items"]]
            left += [f"StatefulSet {each} has no Pod" for each in sets if pod_name_of(each) not in names]
        history = History(**read_rows(self._engine), pods=pods, github=read_log(self._system.github_log))
        return left + [each.removeprefix("L4: ") for each in nothing_left(history)]

    def _not_swept(self, *, since: datetime) -> set[str]:
        """Return the awaited sweeps without a successful run that began after `since`.

        Sweeps with a long interval are not awaited.
        """
        every = periods(_timings(self._scene.settings))
        awaited = {name for name in SWEEPS if every[name] <= SWEPT_EVERY}
        with self._engine.connect() as db:
            swept = db.execute(
                text("SELECT name FROM sweeps WHERE began_at > :since AND outcome = ANY(:well)"),
                {"since": since, "well": sorted(SUCCESSES)},
            )
            return awaited - set(swept.scalars())

    # Judgement

    def _by_logs(self) -> list[Broken]:
        """Judge by the logs. The logs are read first, then the rows that must explain them."""
        github, kubelet = read_log(self._system.github_log), read_log(self._system.kubelet_log)
        with self._engine.connect() as db:
            absences = db.execute(
                text("""
                    SELECT c.id, c.runner_name, extract(epoch FROM e.at)::float AS at
                    FROM claim_events e JOIN claims c ON c.id = e.claim_id
                    WHERE e.transition = 'begin_release' AND e.why LIKE '%absent in two checks%'
                """)
            ).all()
            kills = db.execute(
                text("""
                    SELECT r.sweep, r.run_id, count(*) AS killed, s.listed
                    FROM repairs r JOIN sweep_runs s ON s.id = r.run_id
                    WHERE r.kills AND NOT r.dry AND s.ended_at IS NOT NULL AND s.outcome <> 'lost'
                    GROUP BY r.sweep, r.run_id, s.listed
                """)
            ).all()
        return [
            *of_executions(kubelet, vanished=self._breaker.vanished, github=github),
            *of_strangers(self._strangers, github),
            *of_absences([Absence(*row) for row in absences], github),
            *of_budgets(
                Kill(
                    row.sweep,
                    row.run_id,
                    row.killed,
                    allowance(row.listed, least=5, percent=10, agreed=row.sweep == "orphaned_stamps"),
                )
                for row in kills
            ),
        ]

    def _judge(self, problem: str | None, leaks: Sequence[str], *, worked: float, settled: float) -> Result:
        stats = self._system.lab("GET", "/stats")
        played = {name: self._system.faults(name)["counts"] for name in ("github", "kubernetes")}
        github, kubelet = read_log(self._system.github_log), read_log(self._system.kubelet_log)
        hit = {
            event["job"]
            for event in kubelet
            if event["event"] == "pod_deleted" and event["job"] is not None and event["uid"] in self._breaker.vanished
        }
        verdict = judge(github, kubelet, expected_failures=hit, allow_leftover_runners=True)
        refusals = self._refusals(github)
        found = [
            *self._sampler.broken,
            *self._by_logs(),
            *refusals.unexplained,
            *(Broken("L4", leak) for leak in leaks),
        ]
        problems = [*([problem] if problem else []), *self._breaker.unexpected]
        if self._sampler.blind:
            problems.append("the sampler ended early, so the laws were not checked until the end")
        ended_early = bool(self._scene.until) and self._over < self._plan.jobs
        if not ended_early:
            found += [_named(each) for each in self._by_history(github, kubelet)]
            problems += [*verdict.problems, *self._wrong_ends(hit)]
        with self._engine.connect() as db:
            repairs = db.execute(
                text("SELECT sweep, what, outcome, count(*) AS many FROM repairs GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")
            ).all()
            stalled = paths(
                read_stalls(db, since=self._began_at.timestamp()),
                beat_kills=self._breaker.beat_kills,
                freezes=self._breaker.freezes,
            )
        return Result(
            plan=self._plan,
            verdict=verdict,
            broken=tuple(dict.fromkeys(found)),
            problems=tuple(dict.fromkeys(problems)),
            worked=worked,
            settled=settled,
            samples=self._sampler.samples,
            pod_changes=self._sampler.pods_seen,
            struck={str(blow): many for blow, many in self._breaker.struck.items()},
            played=played,
            events=stats["events"],
            repairs={f"{row.sweep}: {row.what} ({row.outcome})": row.many for row in repairs},
            unusual=self._unusual(),
            stalled=stalled,
            refusals=refusals,
        )

    def _refusals(self, github: Sequence[Any]) -> Refusals:
        """Judge the webhooks that were answered with 503."""
        frozen = [freeze for freeze in self._breaker.freezes if freeze.process == WEBHOOKS]
        late = [(freeze.began, (freeze.ended or time.time()) + ANSWERS_WITHIN) for freeze in frozen]
        contended = {
            str(line["delivery"])
            for line in read_log_lines(self._system.folder / f"{WEBHOOKS}.log")
            if line.get("event") == "webhook.not_stored_because_rows_are_locked"
        }
        return of_refusals(
            github,
            freezes=self._breaker.freezes,
            silences=[*self._breaker.silences, *late],
            contended=contended,
        )

    def _by_history(self, github: Sequence[Any], kubelet: Sequence[Any]) -> list[str]:
        """Judge the whole history.

        Leftovers (law L4) have been judged before. The sampler judges whether a job had two claims at once.
        """
        rows = read_rows(self._engine)
        history = History(
            **rows,
            github=github,
            kubelet=kubelet,
            remapped={claim.id for claim in rows["claims"]},  # all: a row does not say when its claim got its job
            deleted=frozenset(self._breaker.vanished),
        )
        return [each for each in broken(history) if not each.startswith("L4")]

    def _unusual(self) -> Mapping[str, int]:
        """Count the errors that Ostler's processes logged.

        Failures of tasks are counted by task and cause, and other errors by event.
        """
        found: Counter[str] = Counter()
        for path in self._system.folder.glob("*.log"):
            for line in read_log_lines(path):
                if line.get("level") in {"error", "critical"}:
                    event = str(line.get("event"))
                    failed = f"{line.get('task')} failed: {line.get('error')}"
                    found[failed if event == "task.failed" else event[:60]] += 1
        return dict(found.most_common())

    def _wrong_ends(self, hit: Collection[int]) -> list[str]:
        """Describe the jobs whose conclusion is wrong. A cancelled job must be `cancelled`, any other `success`.

        A job in `hit`, whose Pod the run deleted during the execution, may also be a `failure`.
        """
        wrong = []
        for job in self._system.lab("GET", "/jobs")["jobs"]:
            due = {"cancelled"} if job["id"] in self._breaker.cancelled else {"success"}
            if job["id"] in hit:
                due |= {"failure", "success"}
            if job["conclusion"] not in due:
                wrong.append(f"job {job['id']} ended with {job['conclusion']} instead of {' or '.join(sorted(due))}")
        return wrong


def _named(sentence: str) -> Broken:
    law, _, what = sentence.partition(": ")
    return Broken(law, what)


def _timings(over: Mapping[str, str]) -> Timings:
    """Return the timings of this run."""
    return Timings.model_validate_json(merged(scaled(), over)[TIMINGS])
