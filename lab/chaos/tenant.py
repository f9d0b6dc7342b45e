"""A run with one malicious tenant beside honest accounts: `ostler-lab chaos --scenario tenant`.

The tenant's jobs take a tenth of a second and leave a process behind, so that their Pods do not end. The tenant queues
many of them, requests labels that no pool has, and polls continuously with forged tokens. Each honest account
sends one job a second.

The verdict comes from the logs of the lab's GitHub and kubelet and from the sampler. No honest job may fail or wait
longer than a minute, and no account may ever have more Pods than its budget. At least one job of the tenant must run,
and the sampler must run until the end. The run injects no faults, so the tenant is the cause of every problem.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from lab.bootstrap import ACCOUNTS, POOLS
from lab.chaos.laws import Broken, of_executions
from lab.chaos.sampler import Sampler
from lab.chaos.waits import scaled
from lab.kubelet.simulated import LINGERS
from lab.system import Options, System, read_log

Say = Callable[[str], None]

TENANT = ACCOUNTS[0]
HONEST = ACCOUNTS[1:]

BUDGET = 4
"""Pods of each account. If all three accounts use their budgets, two of the small pool's 14 Pods are free."""

WITHIN = 60.0
"""Longest time in seconds that an honest job may wait until it starts."""

PAGE = 500
"""Number of jobs that the tenant queues in one call.

GitHub starts at most 500 runs of a repository in 10 seconds, of up to 256 jobs each. The next call follows at once, so
that the webhooks of the whole burst are in flight together.
"""

TRICKLE = 10
"""Number of jobs that the tenant queues every second after the burst."""

FEW = 100
"""Number of webhooks in flight below which the burst counts as handed over.

The jobs that run now always have some webhooks in flight.
"""

POLLERS = 8
"""Number of threads that poll continuously."""

EVERY = 1.0
"""Seconds between two honest jobs of one account."""

STALLED = 120.0
"""Seconds without the end of an honest job after which the run is given up."""

SAY_EVERY = 5.0

TRICKS: Sequence[Sequence[str]] = (
    ("self-hosted", "linux", "small", "x" * 200),
    ("SELF-HOSTED", "Linux", "huge"),
    tuple(f"label-{number}" for number in range(100)),
    ("self-hosted", "'; DROP TABLE jobs; --"),
    ("self-hosted", "linux", "small", "größe"),
)
"""Labels that no pool has."""


@dataclass(frozen=True, kw_only=True)
class TenantResult:
    """Result of a run. `waits` are the seconds from queue to start of each honest job, in ascending order.

    `most` is the largest number of Pods that each account had at one moment (`most_pods`).
    """

    honest: int
    queued: int
    served: int
    polls: int
    waits: Sequence[float]
    most: Mapping[str, int]
    samples: int
    problems: tuple[str, ...]
    broken: tuple[Broken, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem and no violation of a law."""
        return not self.problems and not self.broken

    def lines(self) -> Iterable[str]:
        """Yield the lines of the report."""
        worst = self.waits[-1] if self.waits else 0.0
        median = self.waits[len(self.waits) // 2] if self.waits else 0.0
        yield f"the tenant queued {self.queued} jobs and polled {self.polls} times; {self.served} of its jobs ran"
        yield f"{self.honest} honest jobs waited {median:.1f} s (median), {worst:.1f} s at most"
        yield "most Pods at a time, budget {}: {}".format(
            BUDGET, ", ".join(f"{login} {count}" for login, count in sorted(self.most.items()))
        )
        yield f"{self.samples} samples of the rows"
        yield from (f"problem: {each}" for each in self.problems)
        yield from (f"law broken: {each}" for each in self.broken)
        yield "nothing is wrong" if self.ok else "NOT OK"


def run_tenant(
    folder: Path, *, jobs: int, honest: int, seed: int, cluster: str, say: Say, tree: Path | None = None
) -> TenantResult:
    """Start a system, let the tenant queue `jobs` and each honest account send `honest` jobs, and return the result.

    `tree` is the folder of another version of Ostler to attack; None means this version. Raises the errors of `System`.
    """
    settings = {**scaled(), "OSTLER_DEFAULT_BUDGET_COUNT": str(BUDGET)}
    options = Options(workers=2, real_pods=0, seed=seed, settings=settings, tree=tree)
    with System(folder, options, say=say, cluster=cluster) as system:
        system.wait_for_warm_pods(sum(pool.replicas for pool in POOLS) // 2, timeout=180)
        sampler = Sampler(system, vanished=frozenset())
        pollers = _Pollers(system.web_urls)
        sampler.start()
        pollers.start()
        try:
            problem = _work(system, sampler, jobs=jobs, honest=honest, say=say)
        finally:
            polls = pollers.stop()
            sampler.stop()
        return _judge(system, sampler, polls=polls, problem=problem)


def _work(system: System, sampler: Sampler, *, jobs: int, honest: int, say: Say) -> str | None:
    """Send jobs until the burst is handed over and every honest job is over.

    Return the reason if the run is given up, else None.
    """
    labels, ids = list(POOLS[0].labels), set[int]()
    repository = f"{TENANT.login}/{TENANT.repositories[0]}"
    mine = {"repository": repository, "labels": labels, "name": f"{LINGERS} on", "duration_seconds": 0.1}
    for trick in TRICKS:
        system.lab("POST", "/jobs", {"repository": repository, "labels": list(trick), "name": "trick"})
    burst = _Burst(system, mine, jobs=jobs)
    burst.start()
    sent, over = 0, 0
    next_at = said_at = moved_at = began = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= next_at and (sent < honest or not burst.handed_over):
            bodies = [
                {
                    "repository": f"{each.login}/{each.repositories[0]}",
                    "labels": labels,
                    "name": "build",
                    "duration_seconds": 1.0,
                }
                for each in HONEST
            ]
            with suppress(HTTPError):  # GitHub is busy with the burst; the next second tries again
                ids.update(system.lab("POST", "/jobs", bodies)["ids"])
                sent += 1
                if burst.queued >= jobs:
                    system.lab("POST", "/jobs", {**mine, "count": TRICKLE})
            next_at = max(next_at + EVERY, now)
        with suppress(HTTPError):
            ended = {each["id"] for each in system.lab("GET", "/jobs?status=completed")["jobs"]} & ids
            if len(ended) != over:
                over, moved_at = len(ended), now
        if burst.failed:
            return f"the burst ended early: {burst.failed}"
        if burst.handed_over and sent >= honest and over == len(ids):
            return None
        if now - moved_at > STALLED:
            return f"no honest job has ended for {STALLED:.0f} s; {len(ids) - over} jobs are open"
        if now - said_at > SAY_EVERY:
            said_at = now
            say(
                f"{now - began:4.0f} s  the tenant queued {burst.queued}, honest jobs {over} of {len(ids)} over, "
                f"laws broken {len(sampler.broken)}"
            )
        time.sleep(EVERY / 2)  # a list of 100,000 jobs takes the lab's GitHub some time


class _Burst:
    """Queues the tenant's jobs page by page in a thread, while the honest accounts send their jobs."""

    def __init__(self, system: System, body: Mapping[str, Any], *, jobs: int) -> None:
        self.queued = 0
        self.handed_over = False
        self.failed = ""
        self._system = system
        self._body = body
        self._jobs = jobs
        self._thread = threading.Thread(target=self._queue, name="burst", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _queue(self) -> None:
        try:
            while self.queued < self._jobs:
                count = min(PAGE, self._jobs - self.queued)
                self._system.lab("POST", "/jobs", {**self._body, "count": count})
                self.queued += count
            while self._system.lab("GET", "/stats")["webhooks_in_flight"] > FEW:
                time.sleep(EVERY)
            self.handed_over = True
        except HTTPError as error:
            self.failed = f"the lab's GitHub did not answer: {error}"


def _judge(system: System, sampler: Sampler, *, polls: int, problem: str | None) -> TenantResult:
    github, kubelet = read_log(system.github_log), read_log(system.kubelet_log)
    owners = {
        event["job"]: str(event["repository"]).split("/")[0] for event in github if event["event"] == "job_queued"
    }
    honest_jobs = {job for job, owner in owners.items() if owner != TENANT.login}
    waits = sorted(waits_of(github, honest_jobs).values())
    most = most_pods(kubelet, owners)
    problems = [] if problem is None else [problem]
    problems += list(problems_of(github, honest_jobs, waits=waits, most=most))
    if sampler.blind:
        problems.append("the sampler ended before the run, so later violations of laws were not seen")
    served = sum(1 for event in github if event["event"] == "job_started" and event["job"] not in honest_jobs)
    if not served:
        problems.append("no job of the tenant ran, so nothing was attacked")
    return TenantResult(
        honest=len(honest_jobs),
        queued=len(owners) - len(honest_jobs),
        served=served,
        polls=polls,
        waits=waits,
        most=most,
        samples=sampler.samples,
        problems=tuple(problems),
        broken=(*sampler.broken, *of_executions(kubelet, vanished=frozenset(), github=github)),
    )


def waits_of(github: Iterable[Mapping[str, Any]], jobs: set[int]) -> dict[int, float]:
    """Return the seconds from its queue to its first start for each of these jobs that started."""
    queued: dict[int, float] = {}
    waits: dict[int, float] = {}
    for event in github:
        job = event.get("job")
        if job in jobs and event["event"] == "job_queued":
            queued[job] = float(event["at"])
        elif job in jobs and event["event"] == "job_started" and job not in waits:
            waits[job] = float(event["at"]) - queued[job]
    return waits


def problems_of(
    github: Iterable[Mapping[str, Any]], jobs: set[int], *, waits: Sequence[float], most: Mapping[str, int]
) -> Iterable[str]:
    """Yield the problems of the honest jobs and of the number of Pods of each account."""
    ends = {event["job"]: event["conclusion"] for event in github if event["event"] == "job_completed"}
    for job in sorted(jobs):
        if ends.get(job) != "success":
            yield f"honest job {job} " + (f"ended as {ends[job]}" if job in ends else "did not end")
    late = [wait for wait in waits if wait > WITHIN]
    if late:
        yield f"{len(late)} honest jobs waited for longer than {WITHIN:.0f} s, one of them {max(late):.0f} s"
    for login, count in most.items():
        if count > BUDGET:
            yield f"L2: {login} had {count} Pods at a time; its budget is {BUDGET}"


def most_pods(kubelet: Iterable[Mapping[str, Any]], owners: Mapping[int, str]) -> dict[str, int]:
    """Return the largest number of Pods of each account at one moment.

    A Pod counts from the start of the account's job until the Pod has ended.
    """
    alive: dict[str, str] = {}
    now: Counter[str] = Counter()
    most: defaultdict[str, int] = defaultdict(int)
    for event in kubelet:
        uid = str(event.get("uid"))
        if event["event"] == "job_started" and uid not in alive:
            owner = alive[uid] = owners[event["job"]]
            now[owner] += 1
            most[owner] = max(most[owner], now[owner])
        elif event["event"] in {"pod_ended", "pod_deleted"} and uid in alive:
            now[alive.pop(uid)] -= 1
    return dict(most)


class _Pollers:
    """Threads that poll for work with forged tokens, with a pause of 50 ms after each answer."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._polls = 0
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._poll, name="bad polls", daemon=True) for _ in range(POLLERS)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """Stop the threads. Return the number of polls that were answered."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=30)
        return self._polls

    def _poll(self) -> None:
        with urllib3.PoolManager(retries=False) as http:
            headers = {"Authorization": "Bearer " + ".".join(["e30" * 20] * 3)}
            while not self._stopped.wait(0.05):
                with suppress(HTTPError):
                    http.request("POST", f"{self._urls[0]}/runners/v1/dispatch", headers=headers, timeout=10)
                    self._polls += 1
