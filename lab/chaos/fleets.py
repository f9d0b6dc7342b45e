"""A day of bad fleets beside two healthy pools: `ostler-lab chaos --scenario fleets`.

There are six bad pools at once. The runners of the first are too old. The image of the second has no `run.sh`. The
third loses its node. The fourth has a sidecar that does not end. GitHub refuses the runner group of the fifth. The
runners of the sixth cannot reach the network. Ostler itself reaches GitHub only through a forward proxy. All jobs of
the bad pools belong to one account, which also has jobs in the healthy pools.

The run is good under four conditions. Every job of a healthy pool succeeds, and none waits longer than a minute.
`ostler pool list` names each cause on a terminal of 80 columns. The bad account's installation uses less than a fifth
of GitHub's hourly quota; this condition applies to runs of four minutes or more. No violation of a law is seen. In
addition, the sampler must run until the end, and calls must go through the forward proxy.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from urllib3.exceptions import HTTPError

from k8s_adapters.calls.client import MERGE_PATCH
from lab.bootstrap import ACCOUNTS, LabAccount, LabPool
from lab.chaos.laws import Broken, of_executions
from lab.chaos.sampler import Sampler
from lab.chaos.tenant import waits_of
from lab.chaos.waits import scaled
from lab.kubelet.pods import SERVED_BY, STAYS
from lab.system import Options, System, read_log

Say = Callable[[str], None]

BAD = ACCOUNTS[0]
"""The account that all jobs of the bad pools belong to."""

GROUP = 7
"""Number of the runner group that GitHub refuses."""

NODE, SPARE = "doomed", "spare"

WITHIN = 60.0
"""Longest time in seconds that a job of a healthy pool may wait until it starts."""

QUOTA = 5000
SHARE = 0.2
HOUR = 3600.0
JUDGED_FROM = 240.0
"""Shortest run in seconds whose calls are extrapolated to an hour.

A shorter run ends during the first waits of the brakes.
"""

EVERY = 1.0
"""Seconds between two jobs of one healthy pool."""

BAD_EVERY = 60.0
"""Seconds between two jobs of the bad account in each healthy pool."""

WAVES, WAVES_APART = 12, 5.0
"""Number of jobs that each bad pool gets, and the seconds between two of these jobs."""

LOST_AT = 45.0
"""Seconds after the start of the run at which the node is lost."""

NAMED_WITHIN = 180.0
"""Seconds after the end of the healthy jobs within which `ostler pool list` must have named every cause."""

STALLED = 120.0
LIST_EVERY = 20.0
SAY_EVERY = 15.0
COLUMNS, ROWS = 80, 200

HEALTHY = (
    LabPool("small", ("self-hosted", "linux", "small"), 8),
    LabPool("large", ("self-hosted", "linux", "large"), 8, cpu="4", memory="8Gi"),
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A bad pool. `reported` is a pattern that its row in `ostler pool list` must match.

    `seconds` is the length of each of its jobs.
    """

    name: str
    reported: str
    spec: Mapping[str, object] = field(default_factory=dict)
    replicas: int = 3
    seconds: float = 0.5
    waves: int = WAVES

    @property
    def pool(self) -> LabPool:
        """The pool to create."""
        return LabPool(
            self.name, ("self-hosted", "linux", self.name), self.replicas, cpu="1", memory="1Gi", spec=self.spec
        )


SIDECAR = {"spec": {"containers": [{"name": "proxy", "image": f"proxy:{STAYS}"}]}}
CAUSES = {
    cause.name: cause
    for cause in (
        Cause(name="too-old", reported=r"RunnersDoNotStart.*too old", spec={"image": "runner:too-old"}),
        Cause(name="no-runner", reported=r"UnusableImage.*no file run.sh", spec={"image": "runner:no-runner"}),
        Cause(name="no-egress", reported=r"RunnersDoNotStart", spec={"image": "runner:no-egress"}),
        Cause(
            name="lost-node",
            reported=r"NodeLost",
            seconds=HOUR,
            waves=2,
            spec={"podTemplate": {"spec": {"nodeSelector": {SERVED_BY: NODE}}}},
        ),
        Cause(name="sidecar", reported=r"PodsOutliveRunners", spec={"podTemplate": SIDECAR}),
        Cause(name="refused", reported=r"403.*Resource not accessible", spec={"runnerGroup": GROUP}),
    )
}
SHORT = ("too-old", "no-runner", "sidecar", "refused")
"""Causes that become visible within seconds."""


@dataclass(frozen=True, kw_only=True)
class FleetsResult:
    """Result of a run. `waits` are the seconds from queue to start of each healthy job, in ascending order.

    `named` has, for each bad pool, the first row of `ostler pool list` that named its cause. `seen` has the last row
    that was read. `calls` has, for each account, the calls that its installation was charged for, and the upper bound
    for an hour.
    """

    healthy: int
    seconds: float
    waits: Sequence[float]
    named: Mapping[str, str]
    seen: Mapping[str, str]
    calls: Mapping[str, tuple[int, float]]
    by_proxy: int
    samples: int
    problems: tuple[str, ...]
    broken: tuple[Broken, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem and no violation of a law."""
        return not self.problems and not self.broken

    def lines(self) -> Iterable[str]:
        """Yield the lines of the report."""
        median = self.waits[len(self.waits) // 2] if self.waits else 0.0
        worst = self.waits[-1] if self.waits else 0.0
        yield f"{self.healthy} jobs of healthy pools waited {median:.1f} s (median), {worst:.1f} s at most"
        for pool, row in sorted(self.named.items()):
            yield f"{pool} is reported as: {row}"
        for login, (made, hour) in sorted(self.calls.items()):
            what = f"at most {hour:.0f} an hour" if self.seconds >= JUDGED_FROM else "too short a run to judge an hour"
            yield f"GitHub calls of {login} in {self.seconds:.0f} s: {made}, {what}"
        yield f"{self.by_proxy} calls by the forward proxy; {self.samples} samples of the rows"
        yield from (f"problem: {each}" for each in self.problems)
        yield from (f"law broken: {each}" for each in self.broken)
        yield "nothing is wrong" if self.ok else "NOT OK"


def run_fleets(
    folder: Path,
    *,
    jobs: int,
    seed: int,
    cluster: str,
    say: Say,
    causes: Sequence[str] = tuple(CAUSES),
    quick: bool = False,
) -> FleetsResult:
    """Start a system with these bad pools, send `jobs` jobs to the healthy pools, and return the result.

    With `quick`, most waits are a twentieth of their length, as in the other scenarios, so that causes become visible
    soon. Such a run is too short for an extrapolation to an hour. Raises the errors of `System`.
    """
    bad = [CAUSES[name] for name in causes]
    settings = {**(scaled() if quick else {}), "OSTLER_DEFAULT_BUDGET_COUNT": "60", "OSTLER_NODE_LOST_AFTER": "60"}
    options = Options(
        pools=(*HEALTHY, *(cause.pool for cause in bad)),
        real_pods=0,
        seed=seed,
        settings=settings,
        beats=1,
        by_forward_proxy=True,
        nodes=(NODE,) if "lost-node" in causes else (),
    )
    with System(folder, options, say=say, cluster=cluster) as system:
        system.lab("PUT", f"/accounts/{BAD.login}/groups/{GROUP}", {"name": "special"})
        system.lab("PUT", f"/accounts/{BAD.login}/refusals", [{"group": GROUP, "because": "permission"}])
        system.wait_for_warm_pods(sum(pool.replicas for pool in HEALTHY), timeout=180)
        sampler = Sampler(system, vanished=frozenset())
        sampler.start()
        day = _Day(system, sampler, bad, cluster=cluster, quick=quick, say=say)
        try:
            problem = day.work(jobs)
        finally:
            sampler.stop()
            day.close()
        return _judge(system, sampler, day, problem=problem)


class _Day:
    """One run. It queues the jobs, loses the node, and reads the list of pools and the calls of each installation."""

    def __init__(
        self, system: System, sampler: Sampler, bad: Sequence[Cause], *, cluster: str, quick: bool, say: Say
    ) -> None:
        self.healthy: dict[int, str] = {}
        self.named: dict[str, str] = {}
        self.seen: dict[str, str] = {}
        self.calls: list[tuple[float, Mapping[str, int]]] = []
        self.bad = bad
        self._system, self._sampler, self._say = system, sampler, say
        self._embedded = cluster == "embedded"
        self._apart = 0.5 if quick else WAVES_APART
        self._lost_at = 5.0 if quick else LOST_AT
        self._engine: Engine = create_engine(system.postgres.url("ostler"), pool_pre_ping=True)
        self._node_is_lost = not any(cause.name == "lost-node" for cause in bad)
        self._conditions = ""
        self._listed_at = 0.0
        self._waves = 0

    def close(self) -> None:
        """Close the connections to Postgres."""
        self._engine.dispose()

    def work(self, jobs: int) -> str | None:
        """Send jobs until every healthy job is over and every cause is named.

        Return the reason if the run is given up, else None.
        """
        began = next_at = bad_at = moved_at = said_at = time.monotonic()
        sent = over = 0
        done_at: float | None = None
        while True:
            now = time.monotonic()
            if sent < jobs and now >= next_at:
                sent += self._send(sent, jobs, of_bad=now >= bad_at)
                bad_at = now + BAD_EVERY if now >= bad_at else bad_at
                next_at += EVERY
            self._strike(now - began)
            over, before = self._look(now - began), over
            moved_at = now if over != before else moved_at
            if sent == jobs and over == jobs:
                done_at = now if done_at is None else done_at
                if len(self.named) == len(self.bad) or now - done_at > NAMED_WITHIN:
                    return None
            elif now - moved_at > STALLED:
                return f"no job of a healthy pool has ended for {STALLED:.0f} s; {sent - over} jobs are open"
            if now - said_at > SAY_EVERY:
                said_at = now
                self._say(
                    f"{now - began:4.0f} s  healthy jobs {over} of {jobs} over, {len(self.named)} of "
                    f"{len(self.bad)} causes named, laws broken {len(self._sampler.broken)}"
                )
            time.sleep(max(0.0, min(0.5, next_at - time.monotonic())) if sent < jobs else 0.5)

    def _send(self, sent: int, jobs: int, *, of_bad: bool) -> int:
        """Queue a job in each healthy pool, for the accounts in turn. Return the number of jobs."""
        bodies = []
        for number, pool in enumerate(HEALTHY[: jobs - sent]):
            owner = BAD if of_bad else ACCOUNTS[1 + (sent // len(HEALTHY) + number) % 2]
            bodies.append({**_job(owner, pool), "duration_seconds": 1.0, "name": "build"})
        ids = self._system.lab("POST", "/jobs", bodies)["ids"]
        self.healthy.update(zip(ids, (str(body["repository"]) for body in bodies), strict=True))
        return len(bodies)

    def _strike(self, elapsed: float) -> None:
        """Queue the next wave of the bad pools' jobs, and lose the node, if they are due."""
        if self._waves < WAVES and elapsed >= self._waves * self._apart:
            self._waves += 1
            self._system.lab(
                "POST",
                "/jobs",
                [
                    {**_job(BAD, cause.pool), "duration_seconds": cause.seconds, "name": cause.name}
                    for cause in self.bad
                    if self._waves <= cause.waves
                ],
            )
        if not self._node_is_lost and elapsed >= self._lost_at:
            self._node_is_lost = True
            self._lose_node()

    def _lose_node(self) -> None:
        """Kill the kubelet of the lost node, and start a node that replaces it."""
        self._say("a node is lost")
        self._system.children[f"kubelet-{NODE}"].kill()
        self._system.start_kubelet_of(NODE, node=SPARE)
        if not self._embedded:
            return  # the node controller detects the loss
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        unknown = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": at}]
        kube = self._system.kube()
        path = f"/api/v1/nodes/{self._system.node_of(NODE)}"
        kube.request("PATCH", f"{path}/status", body={"status": {"conditions": unknown}}, content_type=MERGE_PATCH)
        kube.close()

    def _look(self, elapsed: float) -> int:
        """Read the calls and the jobs, and the list of pools if it might have changed.

        Return the number of healthy jobs that are over.
        """
        over = 0
        with suppress(HTTPError):
            self.calls.append((elapsed, self._system.lab("GET", "/stats")["calls_of_installations"]))
            over = sum(each["id"] in self.healthy for each in self._system.lab("GET", "/jobs?status=completed")["jobs"])
        with self._engine.connect() as db:
            found = str(db.execute(text(_CONDITIONS)).scalars().all())
        if found != self._conditions or elapsed - self._listed_at > LIST_EVERY:
            self._conditions, self._listed_at = found, elapsed
            self._read_list()
        return over

    def _read_list(self) -> None:
        """Run `ostler pool list` and read the rows of the bad pools."""
        rows = rows_of(on_a_terminal(self._system.operator_settings(), "pool", "list"))
        for cause in self.bad:
            row = rows.get(cause.name, "")
            self.seen[cause.name] = row
            if cause.name not in self.named and re.search(cause.reported, row):
                self.named[cause.name] = row
                self._say(f"`ostler pool list`: {row}")


_CONDITIONS = """
    SELECT p.name || ':' || (c ->> 'reason') FROM pools p, jsonb_array_elements(p.status -> 'conditions') c
    WHERE c ->> 'type' = 'Degraded' ORDER BY 1
"""


def _job(owner: LabAccount, pool: LabPool) -> dict[str, object]:
    return {"repository": f"{owner.login}/{owner.repositories[0]}", "labels": list(pool.labels)}


def on_a_terminal(environment: Mapping[str, str], *arguments: str) -> str:
    """Run a command of Ostler on a terminal of 80 columns. Return its output."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(
        [sys.executable, "-m", "ostler", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env={**env, "PYTHONWARNINGS": "ignore", **environment},
    ):
        os.close(its)
        written = b""
        with suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # noqa: PTH123  a terminal ends with EIO
            while piece := terminal.read(65536):
                written += piece
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode(errors="replace")).replace("\r\n", "\n")


def rows_of(table: str) -> dict[str, str]:
    """Return each row of a table as one line, by the name in its first column.

    Continuation lines of a row begin with a space. Raises AssertionError if a line is wider than the terminal.
    """
    found: dict[str, str] = {}
    name = ""
    for line in table.splitlines():
        if len(line) > COLUMNS:
            raise AssertionError(f"the table has a line of {len(line)} columns instead of {COLUMNS} at most: {line!r}")
        if line[:1].strip():
            name = line.split()[0]
        found[name] = " ".join([*found.get(name, "").split(), *line.split()])
    return found


def bound_for_an_hour(series: Sequence[tuple[float, int]]) -> float:
    """Return an upper bound for the calls of one hour that begins with the run.

    `series` has pairs of the seconds since the start and the number of calls until then. The calls of the run count in
    full, because the first minutes of a brake cost the most. The rest of the hour is assumed to continue at the rate of
    the run's second half, although the waits still grow.
    """
    (began, first), (ended, last) = series[0], series[-1]
    length = ended - began
    if length <= 0:
        return 0.0
    middle_at, middle = next(each for each in series if each[0] >= began + length / 2)
    rate = (last - middle) / max(ended - middle_at, 1e-9)
    return (last - first) + max(0.0, HOUR - length) * rate


def _judge(system: System, sampler: Sampler, day: _Day, *, problem: str | None) -> FleetsResult:
    github = read_log(system.github_log)
    healthy = set(day.healthy)
    waits = sorted(waits_of(github, healthy).values())
    seconds = day.calls[-1][0] - day.calls[0][0]
    calls = {account.login: _calls_of(day.calls, account) for account in ACCOUNTS}
    by_proxy = system.proxy_log.read_text().count("\n")
    problems = [] if problem is None else [problem]
    problems += list(problems_of(github, healthy, waits=waits))
    problems += [
        f"`ostler pool list` never named the cause of {cause.name}; its last row: {day.seen.get(cause.name, '')!r}"
        for cause in day.bad
        if cause.name not in day.named
    ]
    if seconds >= JUDGED_FROM and calls[BAD.login][1] >= QUOTA * SHARE:
        problems.append(
            f"{BAD.login} would make {calls[BAD.login][1]:.0f} calls an hour; {QUOTA * SHARE:.0f} are allowed"
        )
    if not by_proxy:
        problems.append("no call went through the forward proxy, so Ostler reached GitHub in another way or not at all")
    if sampler.blind:
        problems.append("the sampler ended before the run, so later violations of laws were not seen")
    return FleetsResult(
        healthy=len(healthy),
        seconds=seconds,
        waits=waits,
        named=day.named,
        seen=day.seen,
        calls=calls,
        by_proxy=by_proxy,
        samples=sampler.samples,
        problems=tuple(problems),
        broken=(*sampler.broken, *of_executions(read_log(system.kubelet_log), vanished=frozenset(), github=github)),
    )


def _calls_of(series: Sequence[tuple[float, Mapping[str, int]]], account: LabAccount) -> tuple[int, float]:
    """Return the calls of an account's installation in the run, and the upper bound for an hour."""
    mine = [(at, int(calls.get(str(account.installation_id), 0))) for at, calls in series]
    return mine[-1][1] - mine[0][1], bound_for_an_hour(mine)


def problems_of(github: Iterable[Mapping[str, object]], jobs: set[int], *, waits: Sequence[float]) -> Iterable[str]:
    """Yield the problems of the jobs of the healthy pools."""
    ends = {event["job"]: event["conclusion"] for event in github if event["event"] == "job_completed"}
    for job in sorted(jobs):
        if ends.get(job) != "success":
            yield f"job {job} of a healthy pool " + (f"ended as {ends[job]}" if job in ends else "did not end")
    late = [wait for wait in waits if wait > WITHIN]
    if late:
        yield f"{len(late)} jobs of healthy pools waited for longer than {WITHIN:.0f} s, one {max(late):.0f} s"
