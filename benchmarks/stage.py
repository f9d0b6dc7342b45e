"""Test stage with Ostler's own processes in a minimal environment, so that the figures show only their cost.

Postgres, Redis, `ostler web` and `ostler worker` are real. GitHub is the lab's. The API server answers at once
(`benchmarks.load.upstream`), and Pods are rows and polls. Whole-system figures come from `lab.system` instead.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import Engine, text

from benchmarks.load.tokens import NAMESPACE, BenchPod
from lab.postgres import Postgres
from lab.processes import Child, StartError, free_port
from lab.redis import Redis
from lab.timings import merged, timings
from models.db import epochs, migrate
from models.db.engine import make_engine
from ostler.clock import utcnow
from ostler.secrets import Secret

APP_ID = "ostler-lab"
LABELS = ("self-hosted", "linux")
ACCOUNTS = ((1001, "acme", 501), (1002, "globex", 502), (1003, "initech", 503))
NEVER = 86400
_CONNECTIONS = 130


class Stage:
    """Stores, upstreams and the started processes. A context manager that stops all of them."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
        # If root runs the benchmark, another user runs Postgres.
        self.folder.chmod(0o755)
        self.postgres = Postgres(self.folder / "postgres")
        self.redis = Redis(self.folder / "redis")
        self.children: dict[str, Child] = {}
        self.secret = os.urandom(24).hex()
        self.web_port = free_port()
        self.polls_port = free_port()
        self.private_port = free_port()
        self.github_url = ""
        self.upstream_url = ""
        self._settings = settings
        self._private_key = self.folder / "key.pem"
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def engine(self) -> Engine:
        """Return the connections of the benchmark itself. Raises RuntimeError outside the context."""
        if self._engine is None:
            raise RuntimeError("the stage has no connections yet: enter its context first")
        return self._engine

    @property
    def web_url(self) -> str:
        """URL of the web process for webhooks and the API."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def private_url(self) -> str:
        """URL of the web process for metrics and health."""
        return f"http://127.0.0.1:{self.private_port}"

    def _start(self) -> None:
        self._make_key()
        self.postgres.start()
        self.redis.start()
        self.postgres.create_database("ostler")
        self._engine = make_engine(Secret(self.postgres.url("ostler")), pool_size=2, application="benchmark")
        migrate.upgrade(self._engine)
        with self._engine.begin() as db:  # there is no cluster to compare the epoch with
            now = utcnow()
            epochs.confirm(db, epochs.read(db, now=now).epoch, trusted_for=timedelta(days=365), now=now)
        port = free_port()
        self.upstream_url = f"http://127.0.0.1:{port}"
        self.module(
            "upstream",
            "benchmarks.load.upstream",
            "--port",
            str(port),
            "--public-key",
            str(self._public_key),
            ready=lambda: _answers(f"{self.upstream_url}/_calls"),
        )
        self._write_kubeconfig()

    def stop(self) -> None:
        """Stop all started processes in reverse order."""
        for child in reversed(self.children.values()):
            child.stop(timeout=30)
        if self._engine is not None:
            self._engine.dispose()
        self.redis.stop()
        self.postgres.stop()

    # Processes

    def module(
        self, name: str, module: str, *arguments: str, ready: Callable[[], bool] | None = None, **env: str
    ) -> Child:
        """Start `python -m module` and return it when it is ready; its output is `<name>.log` of the folder."""
        child = Child(
            name,
            [sys.executable, "-m", module, *arguments],
            log=self.folder / f"{name}.log",
            env={**self.environment(), **env},
        )
        self.children[name] = child
        child.start()
        if ready is not None:
            child.wait_until(ready, timeout=60)
        return child

    def start_github(self, **knobs: float) -> None:
        """Start the lab's GitHub with its accounts. `knobs` are settings for `/_lab/settings`."""
        port = free_port()
        self.github_url = f"http://127.0.0.1:{port}"
        self.module(
            "github",
            "lab.github",
            "--port",
            str(port),
            "--app-id",
            APP_ID,
            "--app-public-key",
            str(self._public_key),
            "--webhook-url",
            f"{self.web_url}/webhooks/github",
            "--log",
            str(self.folder / "github.jsonl"),
            ready=lambda: _answers(f"{self.github_url}/_lab/stats"),
            LAB_WEBHOOK_SECRET=self.secret,
        )
        for number, login, installation in ACCOUNTS:
            body = {
                "id": number,
                "login": login,
                "type": "Organization",
                "installation_id": installation,
                "repositories": [{"id": number * 100, "name": "app"}],
            }
            self.github("POST", "/accounts", body)
        if knobs:
            self.github("POST", "/settings", knobs)

    def github(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control interface of the lab's GitHub."""
        answer = httpx.request(method, f"{self.github_url}/_lab{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def start_web(self) -> Child:
        """Start the web process, wait until it is ready, and return it."""
        return self.module("web", "ostler", "web", ready=lambda: _answers(f"{self.private_url}/readyz"))

    def start_worker(self, name: str, *, queues: str, threads: int) -> Child:
        """Start a worker, wait until it accepts tasks, and return it."""
        child = self.module(name, "ostler", "worker", "--queues", queues, OSTLER_WORKER_THREADS=str(threads))
        child.wait_until(lambda: "ready." in child.log.read_text(), timeout=60)
        return child

    def start_polls(
        self, name: str, pods: Sequence[BenchPod], *, ramp: float, port: int = 0, ca: Path | None = None
    ) -> Child:
        """Start a process in which Pods poll. Return it when all tokens of the Pods are signed.

        With `ca`, the Pods poll by TLS and trust this certificate.
        """
        listed = self.folder / f"{name}.json"
        listed.write_text(json.dumps([{"name": pod.name, "uid": pod.uid} for pod in pods]))
        child = self.module(
            name,
            "benchmarks.load.polls",
            "--port",
            str(port or self.polls_port),
            "--pods",
            str(listed),
            "--private-key",
            str(self._private_key),
            "--ramp",
            str(ramp),
            *([] if ca is None else ["--ca", str(ca)]),
        )
        child.wait_until(lambda: bool(self.said(name, "ready")), timeout=180)
        return child

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        """Return the events of a kind in the output of a process that writes JSON lines."""
        with (self.folder / f"{name}.log").open(errors="replace") as lines:
            found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
        return [each for each in found if each.get("event") == event]

    def run(self, module: str, *arguments: str, **env: str) -> Any:
        """Run a load to its end and return the JSON that it prints. Raises StartError if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={**self.environment(), "LAB_WEBHOOK_SECRET": self.secret, **env},
        )
        if done.returncode:
            raise StartError(f"{module} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout)

    def environment(self) -> dict[str, str]:
        """Return the environment of Ostler's processes."""
        own = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))},
            "OSTLER_DATABASE_URL": self.postgres.url("ostler"),
            "OSTLER_CONNECTION_SHARE": "16",
            "OSTLER_CONNECTION_BUDGET": str(_CONNECTIONS),
            "OSTLER_REDIS_URL": self.redis.url,
            "OSTLER_GITHUB_API_URL": self.github_url or "http://127.0.0.1:9",
            "OSTLER_GITHUB_APP_ID": APP_ID,
            "OSTLER_GITHUB_PRIVATE_KEY": self._private_key.read_text(),
            "OSTLER_GITHUB_MINTS_PER_MINUTE": "60000",
            "OSTLER_WEBHOOK_SECRETS": self.secret,
            "OSTLER_ENCRYPTION_KEYS": self._fernet,
            "OSTLER_KUBECONFIG": str(self.folder / "kubeconfig"),
            "OSTLER_NAMESPACE": NAMESPACE,
            "OSTLER_WEB_HOST": "127.0.0.1",
            "OSTLER_WEB_PORT": str(self.web_port),
            "OSTLER_WEB_POLLS_PORT": str(self.polls_port),
            "OSTLER_WEB_PRIVATE_PORT": str(self.private_port),
            "OSTLER_NEW_ACCOUNTS": "serve",
            "OSTLER_DEFAULT_BUDGET_COUNT": "100000",
            "OSTLER_DEFAULT_BUDGET_VCPU": "1000000",
            "OSTLER_DEFAULT_BUDGET_MEMORY_GIB": "1000000",
            # Pods exist only as rows and polls, so no process must search for them in a cluster.
            **timings(pools_every=NEVER, sweep_every=NEVER),
        }
        return merged(own, self._settings)

    # Rows

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        """Run a statement and return its rows."""
        with self.engine.begin() as db:
            result = db.execute(text(statement), values)
            return result.all() if result.returns_rows else ()

    def scalar(self, statement: str, **values: Any) -> Any:
        """Return the one value of a query."""
        return self.rows(statement, **values)[0][0]

    def system(self, statement: str) -> None:
        """Run a statement that cannot run in a transaction."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.exec_driver_sql(statement)

    def upstream_calls(self) -> dict[str, int]:
        """Return how often each endpoint of the API server was called."""
        found: dict[str, int] = httpx.get(f"{self.upstream_url}/_calls", timeout=5).json()
        return found

    def add_pool(self, name: str, labels: Sequence[str] = LABELS) -> int:
        """Insert a pool and return its id."""
        return int(
            self.scalar(
                """
                INSERT INTO pools (uid, namespace, name, image, labels, runner_group_id, vcpu, memory, replicas,
                                   allowed_accounts, allowed_repositories, routing_priority, template_hash, created_at)
                VALUES (:name, :namespace, :name, 'image', :labels, 1, 2000, 4096, 1, '{}', '{}', 0, 'hash', now())
                RETURNING id
                """,
                name=name,
                namespace=NAMESPACE,
                labels=list(labels),
            )
        )

    def add_pods(self, pool_id: int, count: int) -> list[BenchPod]:
        """Insert runner Pods that never polled, and return them."""
        rows = self.rows(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT :pool, :namespace, 'bench-' || left(uid, 18), uid, 'a', 'hash', now()
            FROM (SELECT gen_random_uuid()::text AS uid FROM generate_series(1, :count)) made RETURNING name, uid
            """,
            pool=pool_id,
            namespace=NAMESPACE,
            count=count,
        )
        return [BenchPod(*row) for row in rows]

    def wait(self, done: Callable[[], bool], *, timeout: float, what: str, every: float = 0.1) -> None:
        """Wait until `done()` is true. Raises StartError, which names `what`, after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not done():
            if time.monotonic() > end:
                raise StartError(f"{what} did not come within {timeout:.0f} s; the logs are in {self.folder}")
            time.sleep(every)

    def offered(self) -> int:
        """Return the number of Pods that are offered now."""
        return int(self.scalar("SELECT count(*) FROM offers WHERE until > now()"))

    # pgbench

    def pgbench(
        self, script: str, *, clients: int, transactions: int = 0, seconds: float = 0, rate: float = 0
    ) -> tuple[list[float], float]:
        """Run raw SQL. Return the milliseconds of each transaction, and the transactions per second.

        Raises StartError if pgbench or a statement fails.
        """
        path = self.folder / "bound.sql"
        path.write_text(script)
        for old in self.folder.glob("bound-log*"):
            old.unlink()
        done = subprocess.run(
            [
                str(self.postgres.program("pgbench")),
                "-n",
                "-M",
                "prepared",
                "-f",
                str(path),
                "-c",
                str(clients),
                "-l",
                f"--log-prefix={self.folder / 'bound-log'}",
                "-U",
                "postgres",
                "-h",
                str(self.postgres.socket),
                *(["-T", str(int(seconds))] if seconds else ["-t", str(transactions)]),
                *(["-R", str(rate)] if rate else []),
                "ostler",
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
        )
        if done.returncode or "ERROR" in done.stderr:
            raise StartError(f"pgbench failed: {done.stderr[-2000:]}")
        times = [
            int(line.split()[2]) / 1000
            for found in self.folder.glob("bound-log*")
            for line in found.read_text().splitlines()
        ]
        tps = next(line for line in done.stdout.splitlines() if line.startswith("tps")).split()[2]
        return times, float(tps)

    # Details

    def _make_key(self) -> None:
        self._fernet = Fernet.generate_key().decode()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._private_key.touch(mode=0o600)
        self._private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self._public_key = self.folder / "public.pem"
        self._public_key.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def _write_kubeconfig(self) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "clusters": [{"name": "bench", "cluster": {"server": self.upstream_url}}],
            "users": [{"name": "bench", "user": {"token": "bench"}}],
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).is_success
    except httpx.TransportError:
        return False
