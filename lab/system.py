"""The whole system on one machine: stores, cluster, GitHub, kubelet and every process of Ostler, each a real one.

The demo and the fault tests start the same thing. Every process logs to a file of the run's folder and dies
with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from k8s_adapters.client import KubeClient, make_client
from k8s_adapters.pools import apply_crd, create_pool
from lab.control_plane import ClusterAccess, ControlPlane
from lab.postgres import Postgres
from lab.processes import Child, StartError, free_port
from lab.redis import Redis

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LabAccount:
    """An account of the lab's GitHub, with its installation and repositories."""

    id: int
    login: str
    type: str
    installation_id: int
    repositories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabPool:
    """A pool to put in place."""

    name: str
    labels: tuple[str, ...]
    replicas: int
    cpu: str = "2"
    memory: str = "4Gi"


ACCOUNTS = (
    LabAccount(1001, "acme", "Organization", 501, ("shop", "billing")),
    LabAccount(1002, "globex", "Organization", 502, ("reactor",)),
    LabAccount(1003, "marvin", "User", 503, ("dotfiles",)),
)
POOLS = (
    LabPool("small", ("self-hosted", "linux", "small"), 14),
    LabPool("large", ("self-hosted", "linux", "large"), 6, cpu="4", memory="8Gi"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """How much of everything, and the settings that differ from their defaults."""

    accounts: Sequence[LabAccount] = ACCOUNTS
    pools: Sequence[LabPool] = POOLS
    webs: int = 1
    workers: int = 1
    beats: int = 2
    real_pods: int = 10
    seed: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    lock_expiry: float = 5


class System:
    """Everything that runs; a context manager that stops what it started."""

    def __init__(
        self, folder: Path, options: Options, *, say: Say, namespace: str = "ostler-runners",
        control_plane: ControlPlane | ClusterAccess | None = None,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.options = options
        self.namespace = namespace
        self._say = say
        self._borrowed = control_plane
        self._control_plane: ControlPlane | None = None
        self.postgres = Postgres(folder / "postgres")
        self.redis = Redis(folder / "redis")
        self.github_log = folder / "github.jsonl"
        self.kubelet_log = folder / "kubelet.jsonl"
        self.github_url = ""
        self.children: dict[str, Child] = {}
        self._web_ports = [free_port() for _ in range(options.webs)]
        self._env: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def web_url(self) -> str:
        """The first web process."""
        return f"http://127.0.0.1:{self._web_ports[0]}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig of the cluster in use."""
        cluster = self._borrowed or self._control_plane
        if cluster is None:
            raise RuntimeError("the control plane was not started")
        return cluster.kubeconfig

    def start(self) -> None:
        """Start everything, in the order in which each needs the ones before it."""
        # All from this thread: a child dies with the thread that started it.
        self._say("starting Postgres, Redis and the Kubernetes control plane")
        self.postgres.start()
        self.redis.start()
        if self._borrowed is None:
            self._control_plane = ControlPlane.start(self.folder / "control-plane", say=self._say)
        self.postgres.create_database("ostler")
        keys = self._make_keys()
        self._start_github(keys)
        self._env = self._environment(keys)
        self._say("migrating the database")
        self._run_once("migrate", ["migrate"])
        self._put_pools_in_place()
        self._say("starting web, worker, beat and the lab's kubelet")
        for number, port in enumerate(self._web_ports):
            self._child(f"web-{number}", ["web"], {"OSTLER_WEB_PORT": str(port)})
        for number in range(self.options.workers):
            self._child(f"worker-{number}", ["worker"], {})
        for number in range(self.options.beats):
            self._child(f"beat-{number}", ["beat"], {})
        self._start_kubelet()
        for number, port in enumerate(self._web_ports):
            self.children[f"web-{number}"].wait_until(lambda port=port: self._healthy(port), timeout=60)  # type: ignore[misc]

    def stop(self) -> None:
        """Stop what was started, the last first, and leave nothing running."""
        ours = [child for name, child in self.children.items() if name.startswith(("web", "worker", "beat"))]
        with ThreadPoolExecutor(8) as side_by_side:
            list(side_by_side.map(lambda child: child.stop(timeout=35), ours))
        for name in ("kubelet", "github"):
            if name in self.children:
                self.children[name].stop(timeout=5)
        self.redis.stop()
        self.postgres.stop()
        if self._control_plane is not None:
            self._control_plane.stop()
            self._control_plane = None

    def secrets(self) -> tuple[str, ...]:
        """Return what must never be seen in a log: webhook secret, encryption key, lines of the App's key."""
        lines = self._env["OSTLER_GITHUB_PRIVATE_KEY"].splitlines()[1:-1]
        return (self._env["OSTLER_WEBHOOK_SECRETS"], self._env["OSTLER_ENCRYPTION_KEYS"], *lines)

    def restart(self, name: str) -> None:
        """Start a process again that was killed."""
        self.children[name].start()

    def lab(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control interface of the lab's GitHub."""
        answer = httpx.request(method, f"{self.github_url}/_lab{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def kube(self) -> KubeClient:
        """Return an administrator's client of the cluster."""
        return make_client(kubeconfig=str(self.kubeconfig))

    def wait_for_warm_pods(self, count: int, *, timeout: float) -> None:
        """Return when so many Pods hold polls; StartError says how far it came."""
        from sqlalchemy import create_engine, text  # noqa: PLC0415  only the lab's own waiting reads rows

        engine = create_engine(self.postgres.url("ostler"))
        end = time.monotonic() + timeout
        try:
            while True:
                with engine.connect() as db:
                    warm = db.execute(text("SELECT count(*) FROM offers WHERE until > now()")).scalar_one()
                if warm >= count:
                    return
                if time.monotonic() > end:
                    raise StartError(
                        f"{warm} of {count} Pods poll after {timeout:.0f} s; see the logs in {self.folder}"
                    )
                time.sleep(0.2)
        finally:
            engine.dispose()

    def _make_keys(self) -> Mapping[str, str]:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        public = self.folder / "app-public-key.pem"
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return {
            "private": private,
            "public_file": str(public),
            "webhook": os.urandom(24).hex(),
            "fernet": Fernet.generate_key().decode(),
        }

    def _start_github(self, keys: Mapping[str, str]) -> None:
        port = free_port()
        self.github_url = f"http://127.0.0.1:{port}"
        child = Child(
            "github",
            [
                sys.executable, "-m", "lab.github", "--port", str(port), "--app-id", "ostler-lab",
                "--app-public-key", keys["public_file"], "--webhook-url", f"{self.web_url}/webhooks/github",
                "--log", str(self.github_log), "--seed", str(self.options.seed),
                "--lock-expiry", str(self.options.lock_expiry),
            ],
            log=self.folder / "github.log",
            env={**os.environ, **self.options.environment, "LAB_WEBHOOK_SECRET": keys["webhook"]},
        )  # fmt: skip
        self.children["github"] = child
        child.start()
        child.wait_until(self._github_answers, timeout=30)
        for account in self.options.accounts:
            self.lab(
                "POST",
                "/accounts",
                {
                    "id": account.id,
                    "login": account.login,
                    "type": account.type,
                    "installation_id": account.installation_id,
                    "repositories": [
                        {"id": account.id * 100 + number, "name": name}
                        for number, name in enumerate(account.repositories)
                    ],
                },
            )

    def _github_answers(self) -> bool:
        try:
            return httpx.get(f"{self.github_url}/_lab/stats", timeout=2).is_success
        except httpx.TransportError:
            return False

    def _environment(self, keys: Mapping[str, str]) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))},
            "PYTHONWARNINGS": "ignore",
            "OSTLER_DATABASE_URL": self.postgres.url("ostler"),
            "OSTLER_REDIS_URL": self.redis.url,
            "OSTLER_GITHUB_API_URL": self.github_url,
            "OSTLER_GITHUB_APP_ID": "ostler-lab",
            "OSTLER_GITHUB_PRIVATE_KEY": keys["private"],
            "OSTLER_WEBHOOK_SECRETS": keys["webhook"],
            "OSTLER_ENCRYPTION_KEYS": keys["fernet"],
            "OSTLER_KUBECONFIG": str(self.kubeconfig),
            "OSTLER_NAMESPACE": self.namespace,
            "OSTLER_DISPATCH_URL": f"{self.web_url}/runners/v1/dispatch",
            "OSTLER_WEB_HOST": "127.0.0.1",
            **self.options.settings,
            **self.options.environment,
        }

    def _child(self, name: str, arguments: Sequence[str], env: Mapping[str, str]) -> Child:
        child = Child(
            name,
            [sys.executable, "-m", "ostler", *arguments],
            log=self.folder / f"{name}.log",
            env={**self._env, **env},
        )
        self.children[name] = child
        child.start()
        return child

    def _run_once(self, name: str, arguments: Sequence[str]) -> None:
        child = Child(
            name, [sys.executable, "-m", "ostler", *arguments], log=self.folder / f"{name}.log", env=self._env
        )
        child.start()
        if status := child.wait(timeout=120):
            raise StartError(f"ostler {' '.join(arguments)} ended with {status}:\n{child.tail()}")

    def _put_pools_in_place(self) -> None:
        kube = self.kube()
        try:
            apply_crd(kube)
            if self._borrowed is None:
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
                kube.request("POST", "/api/v1/namespaces", body=body)
            for pool in self.options.pools:
                create_pool(
                    kube,
                    namespace=self.namespace,
                    name=pool.name,
                    spec={
                        "image": "ghcr.io/actions/actions-runner:2.328.0",
                        "runnerLabels": list(pool.labels),
                        "replicas": pool.replicas,
                        "resources": {"cpu": pool.cpu, "memory": pool.memory},
                    },
                )
        finally:
            kube.close()

    def _start_kubelet(self) -> None:
        child = Child(
            "kubelet",
            [
                sys.executable, "-m", "lab.kubelet", "--kubeconfig", str(self.kubeconfig),
                "--namespace", self.namespace, "--node", f"lab-node-{self.namespace}",
                "--github-url", self.github_url, "--real", str(self.options.real_pods),
                "--log", str(self.kubelet_log), "--work", str(self.folder / "pods"),
            ],
            log=self.folder / "kubelet.log",
            env={**os.environ, **self.options.environment},
        )  # fmt: skip
        self.children["kubelet"] = child
        child.start()

    def _healthy(self, port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).is_success
        except httpx.TransportError:
            return False


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON-lines log."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
