"""A whole system with Toxiproxy before Redis and Postgres, with methods to break them and to record the effects."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg2
from sqlalchemy.engine import make_url

from lab.bootstrap import ACCOUNTS, LabPool
from lab.control_plane import ClusterAccess
from lab.processes import free_port
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.toxiproxy import Toxiproxy

POOL = LabPool("small", ("self-hosted", "linux", "small"), 6)
EVERY = 0.25


@dataclass(slots=True)
class Seen:
    """The visible effects of a fault, and the time until they ended. Seconds are counted from the end of the fault."""

    webhooks: Counter[str] = field(default_factory=Counter)
    """Answers to the webhooks of jobs that were queued during the fault."""
    readiness: Counter[int] = field(default_factory=Counter)
    logged: Counter[str] = field(default_factory=Counter)
    """Numbers of warnings and errors, by process and event."""
    ended: tuple[str, ...] = ()
    """Processes that ended by themselves, and were started again as by Kubernetes."""
    ready_after: float = 0
    next_job_after: float = 0
    """Seconds until a job runs that is queued at the end of the fault."""
    all_after: float = 0
    """Seconds until every job is over that was queued before, during or after the fault."""

    def row(self, what: str) -> str:
        """Return the result as a row of a table."""
        logged = ", ".join(f"{count} {name}" for name, count in self.logged.most_common(6))
        return (
            f"| {what} | {dict(self.webhooks)} | {dict(self.readiness)} | {logged} | {', '.join(self.ended)} "
            f"| {self.ready_after:.1f} | {self.next_job_after:.1f} | {self.all_after:.1f} |"
        )


class BadDay:
    """The running system."""

    def __init__(self, system: System, proxy: Toxiproxy) -> None:
        self.system = system
        self.proxy = proxy
        self._redelivered: Counter[str] = Counter()

    def send(self, count: int = 1) -> list[int]:
        """Queue jobs and return their ids."""
        account = ACCOUNTS[0]
        body = {
            "repository": f"{account.login}/{account.repositories[0]}",
            "labels": list(POOL.labels),
            "count": count,
            "duration_seconds": 0.3,
        }
        ids: list[int] = self.system.lab("POST", "/jobs", body)["ids"]
        return ids

    def sql(self, statement: str) -> list[Any]:
        """Run a statement as the administrator, without the proxy."""
        with self.administrator() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def administrator(self) -> Iterator[Any]:
        """Yield a cursor of a separate connection without the proxy."""
        connection = self.connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor
        finally:
            connection.close()

    def connect(self) -> Any:
        """Return a connection to Postgres without the proxy."""
        url = make_url(self.system.postgres.url("ostler"))
        return psycopg2.connect(host=url.query["host"], port=url.query["port"], user=url.username, dbname=url.database)

    def readiness(self) -> int:
        """Return the status of `/readyz`, or 0 if nothing listens there."""
        try:
            return httpx.get(f"{self.system.private_url}/readyz", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def restart(self, *prefixes: str) -> None:
        """Restart processes of Ostler."""
        for name, child in self.system.children.items():
            if name.startswith(prefixes):
                child.kill()
                child.start()

    def suffer(self, begin: Callable[[], None], end: Callable[[], None], *, seconds: float) -> Seen:
        """Break something for a while, queue jobs before, during and after, and wait until all of them have ended."""
        seen = Seen()
        marks = {path: path.stat().st_size for path in self._logs()}
        jobs = self.send(2)
        begin()
        until = time.monotonic() + seconds
        meanwhile: list[int] = []
        while True:
            meanwhile += self.send()
            seen.readiness[self.readiness()] += 1
            self._start_again(seen)
            if time.monotonic() > until:
                break
            time.sleep(min(1.0, seconds / 4))
        end()
        over = time.monotonic()
        (first,) = self.send()
        jobs += [*meanwhile, first]
        self._until(lambda: self.readiness() == 200, seen)
        seen.ready_after = time.monotonic() - over
        self._until(lambda: first in self._begun(), seen)
        seen.next_job_after = time.monotonic() - over
        self._until(lambda: not self._open().intersection(jobs), seen)
        seen.all_after = time.monotonic() - over
        seen.webhooks = self._answers(set(meanwhile))
        seen.logged = self._logged(marks)
        return seen

    def _until(self, happened: Callable[[], bool], seen: Seen, *, within: float = 240) -> None:
        end = time.monotonic() + within
        while not happened():
            assert time.monotonic() < end, f"not within {within:.0f} s; {seen}"
            self._start_again(seen)
            self._redeliver()
            time.sleep(EVERY)

    def _start_again(self, seen: Seen) -> None:
        for name, child in self.system.children.items():
            if not child.running():
                seen.ended += (name,)
                child.start()

    def _redeliver(self) -> None:
        """Request failed webhooks again, as the sweep `redelivery` does."""
        for each in self.system.lab("GET", "/deliveries")["deliveries"]:
            if each["delivered_at"] and each["status"] != "OK" and self._redelivered[each["guid"]] < 20:
                self._redelivered[each["guid"]] += 1
                self.system.lab("POST", f"/deliveries/{each['guid']}/redeliver")

    def _begun(self) -> set[int]:
        return {each["job"] for each in read_log(self.system.github_log) if each["event"] == "job_started"}

    def _open(self) -> set[int]:
        return {job["id"] for job in self.system.lab("GET", "/jobs")["jobs"] if job["status"] != "completed"}

    def _answers(self, jobs: set[int]) -> Counter[str]:
        """Return the first answer to each `queued` webhook of these jobs."""
        first: dict[int, str] = {}
        for each in read_log(self.system.github_log):
            if each["event"] in {"webhook_sent", "webhook_lost"} and each["action"] == "queued" and each["job"] in jobs:
                first.setdefault(each["job"], str(each.get("status") or each["reason"]))
        return Counter(first.values())

    def _logs(self) -> list[Path]:
        return [path for name in ("web", "worker", "beat") for path in self.system.folder.glob(f"{name}-*.log")]

    def _logged(self, marks: dict[Path, int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self._logs():
            for line in path.read_bytes()[marks.get(path, 0) :].decode(errors="replace").splitlines():
                if not line.startswith("{"):  # a banner, or what a traceback is made of
                    if line.startswith(("Traceback", "ostler: ")):
                        found[f"{path.stem}: {line[:80]}"] += 1
                    continue
                event = json.loads(line)
                if event["level"] in {"warning", "error", "critical"}:
                    words = " ".join(w for w in str(event["event"]).split() if "[" not in w)
                    found[f"{path.stem}: {words[:60]} {event.get('error', '')}".strip()] += 1
        return found


@contextmanager
def running(folder: Path, access: ClusterAccess, namespace: str) -> Iterator[BadDay]:
    """Start a system, and yield it when its Pods are warm."""
    given = {
        **timings(due_after=3, pools_every=5, sweep_every=10, unused_after=20),
    }
    options = Options(pools=(POOL,), real_pods=0, settings=given, postgres_port=free_port())
    system = System(folder, options, say=lambda _: None, namespace=namespace, control_plane=access)
    upstreams = {"redis": system.redis.port, "postgres": options.postgres_port or 0}
    with Toxiproxy(folder, upstreams) as proxy:
        given["OSTLER_DATABASE_URL"] = f"postgresql+psycopg2://postgres@127.0.0.1:{proxy.ports['postgres']}/ostler"
        given["OSTLER_REDIS_URL"] = f"redis://127.0.0.1:{proxy.ports['redis']}/0"
        with system:
            system.wait_for_warm_pods(POOL.replicas, timeout=120)
            yield BadDay(system, proxy)
