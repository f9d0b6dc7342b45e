"""No credential appears in a place where it does not belong (law L13), in a full run of the real system.

The searched secrets are every JIT and installation token of the lab's GitHub, the App's private key, the webhook
secret, the encryption key, Flower's password and API tokens. The searched places are the logs of all processes, the
traffic and the contents of Redis, NOTIFY payloads, everything in Kubernetes, every column of Postgres, `/metrics`, the
answers of the API, and Flower's pages and API. A canary in each of these places proves that the search finds it there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import psycopg2
import pytest
from sqlalchemy import Engine, create_engine, text

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import PERSISTENT_POOLS, LabPool
from lab.control_plane import ClusterAccess
from lab.processes import free_port
from lab.system import Options, System
from lab.timings import timings
from models.db.channel import CHANNEL
from ostler.secrets import Secret
from ostler.wakes import producer
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]

LABELS = ("self-hosted", "linux", "small")
ORG = "/orgs/acme/actions/runners/generate-jitconfig"
JOBS = 24
TASK_PAGES = 20
PIECE = 40
"""Number of characters that identify a secret. A leaked secret might be shortened."""

JWT = re.compile(rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")
"""A JWT of the App, or the token of a ServiceAccount, of any issuer."""


class Overhear:
    """A thread that records the data of a socket or a connection until it is stopped."""

    def __init__(self, listen: Callable[[Overhear], None]) -> None:
        self.heard: list[bytes] = []
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=listen, args=(self,), daemon=True)
        self._thread.start()

    def stop(self) -> bytes:
        self.stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return b"".join(self.heard)


def monitor(port: int) -> Callable[[Overhear], None]:
    """Return a listener of all commands that are sent to Redis."""

    def listen(to: Overhear) -> None:
        with socket.create_connection(("127.0.0.1", port)) as redis:
            redis.sendall(b"MONITOR\r\n")
            redis.settimeout(0.2)
            while not to.stopping.is_set():
                try:
                    to.heard.append(redis.recv(1 << 16))
                except TimeoutError:
                    continue

    return listen


def notices(url: str) -> Callable[[Overhear], None]:
    """Return a listener of Ostler's NOTIFY channel."""

    def listen(to: Overhear) -> None:
        connection = psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql"))
        connection.autocommit = True
        connection.cursor().execute(f"LISTEN {CHANNEL}")
        while not to.stopping.is_set():
            if select.select([connection], [], [], 0.2)[0]:
                connection.poll()
                to.heard += [f"{notice.payload}\n".encode() for notice in connection.notifies]
                connection.notifies.clear()
        connection.close()

    return listen


@dataclass
class Stage:
    """The running system, its recorded traffic, and samples of short-lived data."""

    system: System
    kube: KubeClient
    engine: Engine
    metrics_port: int
    redis: Overhear
    notify: Overhear
    token: str
    samples: list[bytes] = field(default_factory=list)

    def rows(self) -> bytes:
        """Return every row of every table as text; binary columns in hex."""
        with self.engine.connect() as db:
            names = db.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
            found = [row for name in names for row in db.execute(text(f'SELECT t::text FROM "{name}" t')).scalars()]  # noqa: S608
        return "\n".join(found).encode()

    def objects(self) -> bytes:
        """Return everything in the namespace that Kubernetes shows, also Events."""
        namespace = self.system.namespace
        paths = [
            f"/api/v1/namespaces/{namespace}/{kind}"
            for kind in ("pods", "events", "serviceaccounts", "configmaps", "secrets")
        ]
        paths.append(f"/apis/ostler.dev/v1alpha1/namespaces/{namespace}/runnerpools")
        return "\n".join(json.dumps(self.kube.request("GET", path)) for path in paths).encode()

    def answers(self) -> bytes:
        """Return the answers of the API, and the metrics and health of all processes."""
        web, private = self.system.web_url, self.system.private_url
        headers = {"Authorization": f"Bearer {self.token}"}
        said = [httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=20).content]
        said += [httpx.get(f"{private}{path}", timeout=20).content for path in ("/metrics", "/readyz", "/healthz")]
        with httpx.Client(base_url=f"{web}/api/v1", headers=headers, timeout=20) as api:
            for kind in ("jobs", "claims", "pools", "accounts"):
                answer = api.get(f"/{kind}", params={"limit": 200})
                answer.raise_for_status()
                said.append(answer.content)
                said += [api.get(f"/{kind}/{item['id']}").content for item in answer.json()["items"]]
            said += [api.get("/jobs", params={"limit": self.token}).content, api.get(f"/jobs/{self.token}").content]
        return b"\n".join(said)

    def flower(self) -> bytes:
        """Return the answers of Flower's API and pages about the workers and every task."""
        with httpx.Client(base_url=self.system.flower_url, auth=self.system.flower_login, timeout=30) as flower:
            tasks = flower.get("/api/tasks", params={"limit": 100_000})
            mints = [uuid for uuid, task in tasks.json().items() if task["name"] == "ostler.mint"][:TASK_PAGES]
            paths = ["/api/workers?refresh=1", "/api/task/types", "/api/queues/length", "/tasks", "/workers", "/broker"]
            paths += [f"{page}/{uuid}" for uuid in mints for page in ("/task", "/api/task/info")]
            answers = [tasks, *(flower.get(path) for path in [*paths, "/metrics"])]
        assert {answer.url.path: answer.status_code for answer in answers if answer.status_code != 200} == {}
        return b"\n".join(answer.content for answer in answers)

    def logs(self) -> bytes:
        """Return the logs of all processes, also of the lab's Postgres and Redis."""
        return b"\n".join(log.read_bytes() for log in sorted(self.system.folder.rglob("*.log")))

    def sample(self) -> None:
        """Record the present rows and objects, because a claim has its JIT for a second or two only."""
        self.samples += [self.rows(), self.objects()]

    def places(self) -> Mapping[str, bytes]:
        """Return all recorded data by place. A further place is one more entry here."""
        return {
            "rows of Postgres": b"\n".join([*self.samples[::2], self.rows()]),
            "Kubernetes": b"\n".join([*self.samples[1::2], self.objects()]),
            "answers of API and metrics": self.answers(),
            "Flower": self.flower(),
            "logs": self.logs(),
            "commands to Redis": b"".join(self.redis.heard),
            "NOTIFY": b"".join(self.notify.heard),
        }


def found_in(place: bytes, secret: str) -> bool:
    """Return whether a place contains a secret or a long piece of it, as text or in hex."""
    pieces = {secret[:PIECE], secret[-PIECE:], secret[len(secret) // 2 :][:PIECE]}
    return any(piece.encode() in place or piece.encode().hex().encode() in place for piece in pieces)


def leaks(places: Mapping[str, bytes], planted: Mapping[str, list[str]]) -> list[str]:
    """Return the kind of each leaked secret with its place, never the secret."""
    seen = [
        f"{kind} in {name}"
        for name, place in places.items()
        for kind, values in planted.items()
        if any(found_in(place, value) for value in values)
    ]
    return seen + [f"a JWT in {name}" for name, place in places.items() if JWT.search(place)]


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system that logs as much as possible, with all listeners."""
    namespace = f"leaks-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    port = free_port()
    options = Options(
        pools=(LabPool("small", LABELS, 6), replace(PERSISTENT_POOLS[0], replicas=1)),
        beats=1,
        real_pods=2,
        settings={**timings(sweep_every=3), "OSTLER_LOG_LEVEL": "DEBUG", "OSTLER_METRICS_PORT": str(port)},
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as system:
        url = system.postgres.url("ostler")
        engine = create_engine(url)
        stage = Stage(
            system=system,
            kube=admin,
            engine=engine,
            metrics_port=port,
            redis=Overhear(monitor(system.redis.port)),
            notify=Overhear(notices(url)),
            token=command(system, "token", "create", "leaks", "--scope", "read"),
        )
        system.start_flower()  # it shows what it hears from now on
        system.wait_for_warm_pods(6, timeout=180)
        eventually(lambda: knows_a_worker(system), within=240)
        yield stage
        stage.redis.stop()
        stage.notify.stop()
        engine.dispose()
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def knows_a_worker(system: System) -> bool:
    """Return whether Flower has received events of a worker."""
    try:
        return bool(httpx.get(f"{system.flower_url}/api/workers?status=1", auth=system.flower_login, timeout=30).json())
    except httpx.TransportError:
        return False


def command(system: System, *arguments: str) -> str:
    """Run a command of the operator, with its stderr in a log of the run, and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))}
    with (system.folder / "command.log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "ostler", *arguments],
            env=env | {"OSTLER_DATABASE_URL": system.postgres.url("ostler")},
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
            timeout=120,
        )
    return done.stdout.decode().strip()


def run_jobs(stage: Stage, count: int) -> None:
    """Run jobs to their end while every kind of mint answer fails once, and record samples all the time."""
    system = stage.system
    for fault in (
        {"status": 500},
        {"status": 502, "after_apply": True},
        {"reset": True, "after_apply": True},
        {"status": 409},
        {"status": 422},
        {"status": 403, "headers": {"Retry-After": "1"}},
    ):
        system.lab("POST", "/faults", [{"method": "POST", "path_regex": ORG, "times": 1, **fault}])
    body = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.5}
    persistent = {**body, "labels": list(PERSISTENT_POOLS[0].labels)}
    wanted = set(system.lab("POST", "/jobs", [*[body] * count, *[persistent] * 3])["ids"])
    web, hook = system.web_url, {"content-type": "application/json", "x-hub-signature-256": "sha256=00"}
    end = time.monotonic() + 240
    while True:
        stage.sample()
        httpx.post(f"{web}/webhooks/github", content=b"{}", headers=hook)
        httpx.get(f"{web}/api/v1/jobs", headers={"Authorization": f"Bearer {stage.token[:-2]}xx"})
        over = {job["id"] for job in system.lab("GET", "/jobs?status=completed")["jobs"]}
        with stage.engine.begin() as db:  # a job whose mint was refused need not wait for its hour
            db.execute(text("UPDATE jobs SET not_before = now() WHERE not_before > now()"))
            db.execute(text("DELETE FROM backoffs"))
        if wanted <= over:
            return
        assert time.monotonic() < end, f"{len(wanted - over)} of {count} jobs are not over"
        time.sleep(0.2)


def test_no_secret_is_seen_where_it_does_not_belong(stage: Stage) -> None:
    system = stage.system
    run_jobs(stage, JOBS)
    given: dict[str, Any] = system.lab("GET", "/secrets")
    webhook, encryption, password, *key_lines = system.secrets()
    planted = {
        "JIT": given["jits"],
        "registration token": given["registration_tokens"],
        "installation token": given["installation_tokens"],
        "webhook secret": [webhook],
        "encryption key": [encryption],
        "private key": [line for line in key_lines if len(line) >= PIECE],
        "API token": [stage.token],
        "Flower's password": [password],
    }
    assert len(planted["JIT"]) >= JOBS
    assert all(planted.values())
    assert b"ostler.mint" in stage.flower()

    assert leaks(stage.places(), planted) == []


def test_the_run_was_counted_where_it_happened(stage: Stage) -> None:
    wait_for_quiet(stage)
    refused = 'ostler_api_requests_total{method="GET",status="422"}'
    web: dict[str, float] = {}

    def scraped() -> bool:
        web.update(series(httpx.get(f"{stage.system.private_url}/metrics", timeout=20).text))
        return web[refused] >= 1

    eventually(scraped, within=20, what="a page of metrics that was made after the last answer of the API")
    worker = series(httpx.get(f"http://127.0.0.1:{stage.metrics_port}/metrics", timeout=20).text)
    assert web['ostler_webhooks_total{event="workflow_job",outcome="accepted"}'] >= 3 * JOBS
    assert web['ostler_webhooks_total{event="other",outcome="unsigned"}'] >= 1
    assert web["ostler_webhook_seconds_count"] >= 3 * JOBS
    assert web['ostler_deliveries_total{outcome="first"}'] >= JOBS
    assert sum(many for series, many in web.items() if series.startswith("ostler_job_wait_seconds_count")) >= JOBS
    assert web['ostler_transitions_total{machine="job",transition="job_finish"}'] >= JOBS
    assert web['ostler_api_unauthorized_total{why="unknown"}'] >= 1
    assert web["ostler_database_up"] == 1
    assert worker['ostler_github_requests_total{endpoint="mint",status="201"}'] >= JOBS
    for status in ("403", "409", "422", "500", "502", "none"):
        assert worker[f'ostler_github_requests_total{{endpoint="mint",status="{status}"}}'] >= 1, status
    assert worker['ostler_task_runs_total{outcome="succeeded",task="stamp"}'] >= JOBS
    assert worker['ostler_task_runs_total{outcome="retried",task="mint"}'] >= 1
    assert worker['ostler_transitions_total{machine="claim",transition="mint"}'] >= JOBS
    assert worker['ostler_sweep_last_success_timestamp_seconds{sweep="resume"}'] > time.time() - 300


def wait_for_quiet(stage: Stage) -> None:
    """Wait until Ostler has recorded that all jobs are over, which is a moment later than at GitHub."""
    end = time.monotonic() + 120
    while True:
        with stage.engine.connect() as db:
            left = db.execute(text("SELECT count(*) FROM jobs WHERE state <> 'completed'")).scalar_one()
        if left == 0 and stage.system.lab("GET", "/stats")["webhooks_in_flight"] == 0:
            return
        assert time.monotonic() < end, f"{left} jobs are not over in the rows"
        time.sleep(0.2)


def series(scrape: str) -> dict[str, float]:
    """Return a scrape as a mapping of series to values."""
    lines = [line for line in scrape.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_canary_is_seen_in_every_place(stage: Stage) -> None:
    canary = f"canary{secrets.token_hex(40)}"
    system = stage.system
    with system.redis.client() as redis:
        redis.set("canary", canary)
        redis.delete("canary")
    with stage.engine.begin() as db:
        db.execute(text("SELECT pg_notify(:channel, :canary)"), {"channel": CHANNEL, "canary": canary})
        db.execute(
            text("UPDATE jobs SET hold_detail = :canary WHERE id = (SELECT min(id) FROM jobs)"), {"canary": canary}
        )
    stage.kube.request(
        "POST",
        f"/api/v1/namespaces/{system.namespace}/events",
        body={
            "metadata": {"name": "canary"},
            "involvedObject": {"kind": "Pod", "namespace": system.namespace, "name": "x"},
            "message": canary,
        },
    )
    with (system.folder / "command.log").open("a") as log:
        log.write(f"{canary[:60]}\n")  # cut short: a piece is enough
    app = producer(Secret(system.redis.url))
    # A task takes no notice of an argument that it does not know, but Flower does.
    app.send_task("ostler.rematch", kwargs={"note": canary}, queue="sweeps", ignore_result=True)
    app.close()
    end = time.monotonic() + 120
    expected = {f"canary in {name}" for name in stage.places()}
    while (seen := set(leaks(stage.places(), {"canary": [canary]}))) != expected:
        assert time.monotonic() < end, expected - seen
        time.sleep(0.2)


def test_a_secret_in_a_binary_column_and_a_jwt_are_seen() -> None:
    secret = secrets.token_urlsafe(60)
    assert leaks({"rows": f"(1,\\x{secret.encode().hex()})".encode()}, {"JIT": [secret]}) == ["JIT in rows"]
    jwt = b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJsYWIifQ.c2lnbmF0dXJlLW9m"
    assert leaks({"logs": b"token " + jwt}, {}) == ["a JWT in logs"]
