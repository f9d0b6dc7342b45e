"""The stage of the tests of polls: real web processes on real Postgres and Redis, and a stub of the cluster."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
from cryptography.fernet import Fernet
from sqlalchemy import Engine, text

from k8s_adapters.runners.identity import KeyUnknown, PodIdentity, TokenRejected, Unjudged
from lab.redis import Redis
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.secrets import Secret
from ostler.settings import Settings
from ostler.timings import Timings
from rules.claims.pod_view import PodView
from tests.database import Database
from tests.outbox import Outbox
from tests.rows import insert_pool, run_sql
from tests.timed import changed
from tests.waiting import eventually
from web.app import Web, build_app
from web.edge.connections import Connections
from web.edge.ports import Audience
from web.server import Server, make_server

NAMESPACE = "runners"
JIT = "c2VjcmV0LWppdC1vZi1hLXJ1bm5lcg=="


class StubCluster:
    """A cluster whose tokens are `token-of-<pod name>`, unless `tokens` has others."""

    def __init__(self) -> None:
        self.tokens: dict[str, PodIdentity | Exception] = {}
        self.reviewed: list[str] = []
        self.review_says: bool | None = True
        self.on_review: Callable[[], None] = lambda: None
        self.pods: dict[str, PodView | Exception] = {}
        self.pools: set[str] = set()
        self.looked_up: list[str] = []

        self.keys_are_old = False
        self.unknown_keys: set[str] = set()

    def fetch_keys(self) -> None:
        raise Unjudged("the keys are away")

    def verify(self, token: str) -> PodIdentity:
        if token in self.unknown_keys:
            raise KeyUnknown("unknown")
        found = self.tokens.get(token, TokenRejected("unknown"))
        if isinstance(found, Exception):
            raise found
        return found

    def review(self, token: str, *, pod_uid: str) -> bool | None:
        self.reviewed.append(pod_uid)
        assert token in self.tokens
        self.on_review()
        return self.review_says

    def pod(self, *, namespace: str, name: str) -> PodView | None:
        assert namespace == NAMESPACE
        self.looked_up.append(name)
        found = self.pods.get(name)
        if isinstance(found, Exception):
            raise found
        return found

    def has_pool(self, *, namespace: str, name: str) -> bool:
        assert namespace == NAMESPACE
        return name in self.pools


@dataclass(frozen=True, slots=True)
class Pod:
    """A runner Pod of a test."""

    id: int
    uid: str
    name: str
    pool_id: int

    @property
    def token(self) -> str:
        return f"token-of-{self.name}"


class WebProcess:
    """One web process with its own event loop, in a thread of the test."""

    def __init__(self, settings: Settings, cluster: Any) -> None:
        self.sender = Outbox()
        self._app = build_app(settings, cluster=cluster, sender=self.sender)
        self._server: Server = make_server(settings, app=self._app)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started, "the web process did not start"
        self.url = f"http://127.0.0.1:{self.port_of(Audience.PUBLIC)}"
        self.web: Web = self._app.state.web
        self._clients = ThreadPoolExecutor(16)
        eventually(lambda: self.web.listener.is_hearing)

    def port_of(self, audience: Audience) -> int:
        return self._server.ports.of(audience)

    def cap_of(self, audience: Audience) -> Connections:
        return self._server.ports.caps[self.port_of(audience)]

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(condition)

    def poll(self, token: str, *, accept: str = "application/json", headers: dict[str, str] | None = None) -> Any:
        with httpx.Client(timeout=240) as client:
            return client.post(
                f"{self.url}/runners/v1/dispatch",
                headers={"Authorization": f"Bearer {token}".strip(), "Accept": accept} | (headers or {}),
            )

    def begin_poll(self, token: str, *, accept: str = "application/json") -> Future[httpx.Response]:
        return self._clients.submit(self.poll, token, accept=accept)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=90)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(90)
        assert not self._thread.is_alive(), "the web process does not stop"
        self._clients.shutdown()


@dataclass
class Stage:
    """Rows, and the web processes that read them."""

    engine: Engine
    settings: Settings
    cluster: StubCluster = field(default_factory=StubCluster)
    processes: list[WebProcess] = field(default_factory=list)

    def start_web(self, *, cluster: Any = None, **changes: Any) -> WebProcess:
        process = WebProcess(changed(self.settings, **changes), cluster if cluster is not None else self.cluster)
        self.processes.append(process)
        return process

    def stop_web(self, process: WebProcess) -> None:
        self.processes.remove(process)
        process.stop()

    def execute(self, statement: str, **values: Any) -> Any:
        return run_sql(self.engine, statement, **values)

    def scalar(self, statement: str, **values: Any) -> Any:
        rows = self.execute(statement, **values)
        return rows[0][0] if rows else None

    def pool(self, name: str = "small") -> int:
        return insert_pool(self.engine, name, uid=str(uuid.uuid4()), namespace=NAMESPACE)

    def identity(self, name: str, uid: str, **changes: Any) -> PodIdentity:
        values: dict[str, Any] = {
            "namespace": NAMESPACE,
            "service_account": name,
            "pod_name": name,
            "pod_uid": uid,
            "expires_at": utcnow() + timedelta(hours=1),
        }
        return PodIdentity(**(values | changes))

    def pod(self, pool_id: int, *, bound: bool = True) -> Pod:
        uid = str(uuid.uuid4())
        name = f"small-{uid[:8]}"
        pod_id = self.scalar(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            VALUES (:pool_id, :namespace, :name, :uid, 'a', 'h', now()) RETURNING id
            """,
            pool_id=pool_id,
            namespace=NAMESPACE,
            name=name,
            uid=uid if bound else None,
        )
        pod = Pod(pod_id, uid, name, pool_id)
        self.cluster.tokens[pod.token] = self.identity(name, uid)
        return pod

    def claim(self, pod: Pod, *, state: str = "minted", purpose: str = "job", stamp: str = "on", **values: Any) -> int:
        jit = None
        if state in {"minted", "delivered"}:
            jit = Cipher(self.settings.encryption_keys).encrypt(Secret(JIT))
        self.execute(
            """
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            VALUES (7, 'acme', 10, 10000, 10240, now()) ON CONFLICT DO NOTHING
            """
        )
        columns = {
            "purpose": purpose,
            "runner_pod_id": pod.id,
            "pod_uid": pod.uid,
            "pool_id": pod.pool_id,
            "account_id": 7 if purpose == "job" else None,
            "vcpu": 1000,
            "memory": 1024,
            "state": state,
            "stamp": stamp,
            "runner_name": f"{pod.name}-r" if jit is not None else None,
            "jit": jit,
            "created_at": utcnow(),
            "changed_at": utcnow(),
            **values,
        }
        names = ", ".join(columns)
        holders = ", ".join(f":{name}" for name in columns)
        claim_id: int = self.scalar(f"INSERT INTO claims ({names}) VALUES ({holders}) RETURNING id", **columns)  # noqa: S608
        return claim_id

    def mint(self, claim_id: int, *, notify: bool = True) -> None:
        with self.engine.begin() as db:
            pod_uid = db.execute(
                text("""
                    UPDATE claims SET state = 'minted', jit = :jit, runner_name = 'r-' || id, minted_at = now()
                    WHERE id = :id RETURNING pod_uid
                """),
                {"id": claim_id, "jit": Cipher(self.settings.encryption_keys).encrypt(Secret(JIT))},
            ).scalar_one()
            if notify:
                db.execute(text("SELECT pg_notify('ostler', :payload)"), {"payload": f"minted {claim_id} {pod_uid}"})

    def state(self, claim_id: int) -> str:
        found: str = self.scalar("SELECT state FROM claims WHERE id = :id", id=claim_id)
        return found

    def is_offered(self, pod: Pod, process: WebProcess | None = None) -> bool:
        web_id = self.scalar("SELECT web_id FROM offers WHERE pod_uid = :uid", uid=pod.uid)
        return web_id is not None and (process is None or web_id == process.web.id)


@contextmanager
def open_stage(database: Database, redis_server: Redis) -> Iterator[Stage]:
    """Yield a stage on a test's database and Redis, and stop its web processes."""
    settings = make_settings(database_url=database.url, redis_url=redis_server.url)
    stage = Stage(engine=database.engine, settings=settings)
    yield stage
    for process in stage.processes:
        process.stop()


def make_settings(*, database_url: Secret, redis_url: str) -> Settings:
    return Settings(
        database_url=database_url,
        redis_url=Secret(redis_url),
        github_app_id="1",
        github_private_key=Secret("unused"),
        new_accounts="serve",
        webhook_secrets=(Secret("of-these-tests-alone"),),
        encryption_keys=(Secret(Fernet.generate_key().decode()),),
        namespace=NAMESPACE,
        web_host="127.0.0.1",
        web_port=0,
        web_polls_port=0,
        web_private_port=0,
        timings=Timings(poll_hold_min=180, poll_hold_max=180),
    )
