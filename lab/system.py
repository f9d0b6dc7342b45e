"""The whole system on one machine: stores, cluster, GitHub, kubelet and every process of Ostler.

The stores and Ostler's processes are real, and GitHub is the lab's. The kind of the cluster decides whether the API
server and the kubelet are real. The demo, the fault tests and chaos runs use a system. Every process logs to a file in
the run's folder and dies with the thread that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import urllib3
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import create_engine, text
from urllib3.exceptions import HTTPError

from k8s_adapters.calls.client import KubeClient, make_client
from lab import helm
from lab.bootstrap import (
    ACCOUNTS,
    POOLS,
    RUNNER_IMAGE,
    LabAccount,
    LabPool,
    add_accounts,
    on_real_node,
    put_pools_in_place,
)
from lab.control_plane import DEFAULT_GRACE, ClusterAccess, ControlPlane, NodeGrace
from lab.embedded import EmbeddedCluster
from lab.faults import Fault, FaultPlan, kubeconfig_through
from lab.identities import Identities
from lab.levers import pull
from lab.node.cluster import NodeCluster
from lab.node.images import runner_image
from lab.node.journal import NodeJournal
from lab.node.namespace import NODE_ADDRESS
from lab.node.node import Node
from lab.postgres import Postgres
from lab.processes import Child, StartError, free_port
from lab.redis import Redis
from models.db import migrate
from models.db.connections import WEB
from ostler.errors import UpstreamError

Say = Callable[[str], None]
_SAY_EVERY = 3.0
"""Seconds between two progress lines on the number of warm Pods."""

_CLOSE = {"Connection": "close"}
"""Header that closes the connection after one call.

Programs here are killed and restarted, so a kept connection might be broken at the next call.
"""

OURS = ("web", "worker", "beat", "watch", "flower")
WITHOUT_CLUSTER = ("beat", "flower")
"""Processes that have no access to the cluster, as in the chart."""

GITHUB_NAME = "api.github.invalid"
"""Host name under which GitHub is reachable only through the forward proxy."""

CLUSTERS = ("embedded", "real")
"""Clusters that need no namespaces of their own: the lab's API server in memory, or a real control plane."""

NODE = "node"
"""A real control plane with a real node. It starts only in namespaces of its own (`lab.node.namespace`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Number of each kind of process, and settings that differ from their defaults.

    If a plan of faults is given for GitHub or Kubernetes, Ostler reaches this upstream through a fault proxy. This also
    applies to an empty plan. The kubelet does not use these proxies.
    """

    accounts: Sequence[LabAccount] = ACCOUNTS
    pools: Sequence[LabPool] = POOLS
    webs: int = 1
    workers: int = 1
    beats: int = 2
    watches: int = 1
    real_pods: int = 10
    seed: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further variables by kind of process ("web", "worker"). `command` also uses the variables of its process."""
    lock_expiry: float = 5
    github_faults: FaultPlan | None = None
    kubernetes_faults: FaultPlan | None = None
    postgres_port: int | None = None
    """Additional port of Postgres on the loopback interface, for a proxy in front of it. None: unix socket only."""
    worker_program: Sequence[str] = ("ostler",)
    """Module that is started as a worker, and its first arguments. A test can start a worker with a planted bug."""
    own_identities: bool = True
    """Run each process of Ostler as its own ServiceAccount of the chart, with that account's Roles.

    This needs Helm. It has no effect on an embedded cluster that this system starts.
    """
    chart_values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the chart for the identities and the admission policies."""
    own_roles: bool = False
    """Connect each web and worker process to Postgres as a role with the name of the process.

    The sessions of a process can then be identified.
    """
    kubernetes_url: str | None = None
    """Address at which Ostler's processes reach the API server, for a test's own proxy.

    None: directly, or by a fault proxy.
    """
    by_forward_proxy: bool = False
    """Let Ostler's processes reach GitHub only through a forward proxy.

    Their GitHub address is a name that no resolver knows.
    """
    nodes: Sequence[str] = ()
    """Further nodes with a lab kubelet each. A Pod runs there if its node selector requests that name."""
    real_nodes: int = 1
    """Number of real nodes of a cluster of the kind `NODE`."""
    images: Sequence[Path] = ()
    """Archives of further images that real nodes have from the start."""
    services: bool = False
    """If True, Pods on real nodes reach the Services of the cluster."""
    hooks_url: str | None = None
    """Address at which the sidecars of container jobs reach the API server. None: directly."""
    webhook_url: str | None = None
    """Receiver of the webhooks of the lab's GitHub. None: the first web process of this system."""
    node_grace: NodeGrace = DEFAULT_GRACE
    """Delays before a node of the system's own control plane counts as lost."""
    tree: Path | None = None
    """Folder of another version of Ostler, whose processes are started instead. None: the processes of this version."""


@dataclass(frozen=True, slots=True)
class WebPorts:
    """Ports of one web process."""

    public: int
    polls: int
    private: int

    def environment(self) -> dict[str, str]:
        """Return the environment variables that set these ports."""
        return {
            "OSTLER_WEB_PORT": str(self.public),
            "OSTLER_WEB_POLLS_PORT": str(self.polls),
            "OSTLER_WEB_PRIVATE_PORT": str(self.private),
        }


class System:
    """All running processes of one system. A context manager that stops everything that it started."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        *,
        say: Say,
        namespace: str = "ostler-runners",
        control_plane: ControlPlane | ClusterAccess | None = None,
        cluster: str = "real",
    ) -> None:
        """Prepare a system without starting it.

        `control_plane` is a running cluster to borrow. If it is None, `start` starts a cluster of the kind `cluster`,
        which is one of `CLUSTERS` or `NODE`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.options = options
        self.namespace = namespace
        self._say = say
        self._borrowed = control_plane
        self._starts = cluster
        self._control_plane: ControlPlane | EmbeddedCluster | NodeCluster | None = None
        self.host = NODE_ADDRESS if cluster == NODE else "127.0.0.1"
        """The address at which the Pods reach the programs of this system."""
        self._journal: NodeJournal | None = None
        self.postgres = Postgres(folder / "postgres", port=options.postgres_port)
        self.redis = Redis(folder / "redis")
        self.github_log = folder / "github.jsonl"
        self.kubelet_log = folder / "kubelet.jsonl"
        self.github_url = ""
        self.proxy_log = folder / "forward-proxy.jsonl"
        self._proxies: dict[str, str] = {}
        self._forward_proxy: str | None = None
        self.identities: Identities | None = None
        self._flower_port = free_port()
        self.flower_login = ("ostler", secrets.token_urlsafe(12))
        self.children: dict[str, Child] = {}
        self.web_ports = [WebPorts(free_port(), free_port(), free_port()) for _ in range(options.webs)]
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
        """Public address of the first web process, which gets the webhooks unless the options name another receiver.

        Polls go to the last web process.
        """
        return self.web_urls[0]

    @property
    def web_urls(self) -> Sequence[str]:
        """Public addresses of all web processes."""
        return [f"http://127.0.0.1:{ports.public}" for ports in self.web_ports]

    @property
    def private_url(self) -> str:
        """Address of the first web process for metrics and health."""
        return self.private_urls[0]

    @property
    def private_urls(self) -> Sequence[str]:
        """Addresses of all web processes for metrics and health."""
        return [f"http://127.0.0.1:{ports.private}" for ports in self.web_ports]

    @property
    def polls_url(self) -> str:
        """Address at which runner Pods poll, which is the last web process.

        Another version of Ostler might serve polls only at the public port, so that port is used for it.
        """
        ports = self.web_ports[-1]
        return f"http://{self.host}:{ports.polls if self.options.tree is None else ports.public}"

    def is_ready(self, number: int) -> bool:
        """Return whether web process `number` is ready.

        Another version of Ostler might answer this at its public port.
        """
        urls = [self.private_urls[number]] + ([self.web_urls[number]] if self.options.tree is not None else [])
        return any(_answers(f"{url}/readyz") for url in urls)

    @property
    def flower_url(self) -> str:
        """Address of Flower after `start_flower`. Its login is `flower_login`."""
        return f"http://127.0.0.1:{self._flower_port}"

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig of the cluster in use."""
        return self.access.kubeconfig

    @property
    def access(self) -> ClusterAccess:
        """Return the address and the administrator's credentials of the cluster in use."""
        cluster = self._borrowed or self._control_plane
        if cluster is None:
            raise RuntimeError("the system has no cluster yet: call start() first")
        return cluster if isinstance(cluster, ClusterAccess) else cluster.access

    def start(self) -> None:
        """Start everything. Each process is started after the processes that it needs."""
        keys = self._start_upstreams()
        self._put_pools_in_place()
        self._add_accounts()
        self._start_proxies()
        if self.options.own_identities and not self.access.embedded:
            self._put_identities_in_place()
        self._env = self._environment(keys)
        self._migrate()
        self._say("starting web, worker, beat, watch and the lab's kubelet")
        for number, ports in enumerate(self.web_ports):
            self._child(f"web-{number}", ["web"], ports.environment())
        # One worker creates the first Pods. Further workers would only compete with it for CPU.
        for number in range(self.options.workers)[:1]:
            self._start_worker(number)
        for number in range(self.options.watches):
            self.start_watch(number)
        self._start_kubelet()
        for number in range(len(self.web_ports)):
            self.children[f"web-{number}"].wait_until(lambda number=number: self.is_ready(number), timeout=120)  # type: ignore[misc]
        for number in range(self.options.beats):
            self._child(f"beat-{number}", ["beat"], {})
        for number in range(self.options.workers)[1:]:
            self._start_worker(number)
        self._say("web answers; Pods start")

    def start_without_ostler(self) -> Mapping[str, str]:
        """Start the kubelet and the services around Ostler.

        Return the settings for an installation of Ostler on this machine.

        No pool, no definition and no table is created. The installation does that.
        """
        keys = self._start_upstreams()
        self._add_accounts()
        self._env = self._environment(keys)
        self._start_kubelet()
        return self._env

    def _start_upstreams(self) -> Mapping[str, str]:
        """Start GitHub, the stores and the cluster. Return the keys of the App."""
        # Everything starts from this thread, because a child dies with the thread that started it.
        self._say("starting Postgres, Redis, the cluster and GitHub")
        keys = self._make_keys()
        self._start_github(keys)
        self.postgres.start()
        self.redis.start()
        if self._borrowed is None:
            self._control_plane = self._start_cluster()
        self.postgres.create_database("ostler")
        return keys

    def _start_cluster(self) -> ControlPlane | EmbeddedCluster | NodeCluster:
        if self._starts == "embedded":
            return EmbeddedCluster.start(self.folder / "control-plane", say=self._say)
        if self._starts == "real":
            return ControlPlane.start(self.folder / "control-plane", say=self._say, nodes=self.options.node_grace)
        return NodeCluster.start(
            self.folder / "cluster",
            nodes=self.options.real_nodes,
            grace=self.options.node_grace,
            images=[runner_image(RUNNER_IMAGE, self._say), *self.options.images],
            services=self.options.services,
            say=self._say,
        )

    def stop(self) -> None:
        """Stop all started processes.

        The order is: Ostler's processes at once, then kubelets, proxies and GitHub, then the stores, then the cluster.
        """
        ours = [child for name, child in self.children.items() if name.startswith(OURS)]
        with ThreadPoolExecutor(8) as side_by_side:
            list(side_by_side.map(lambda child: child.stop(timeout=35), ours))
        kubelets = [name for name in self.children if name.startswith("kubelet")]
        for name in (*kubelets, "forward-proxy", "github-faults", "kubernetes-faults", "github"):
            if name in self.children:
                self.children[name].stop(timeout=5)
        if "kubelet" in self.children and self._borrowed is not None:
            self._remove_node()
        if self._journal is not None:
            self._journal.stop()
        self.redis.stop()
        self.postgres.stop()
        if self.identities is not None and self._borrowed is not None:
            with contextlib.suppress(UpstreamError):  # the borrowed cluster might be gone
                self.identities.remove()
        if self._control_plane is not None:
            self._control_plane.stop()
            self._control_plane = None

    def secrets(self) -> tuple[str, ...]:
        """Return the texts that must never appear in a log.

        They are the webhook secret, the encryption key, Flower's password and the lines of the App's key.
        """
        lines = self._env["OSTLER_GITHUB_PRIVATE_KEY"].splitlines()[1:-1]
        return (self._env["OSTLER_WEBHOOK_SECRETS"], self._env["OSTLER_ENCRYPTION_KEYS"], self.flower_login[1], *lines)

    def command(
        self, *arguments: str, timeout: float = 300, tree: Path | None = None, process: str = "worker"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Ostler with the settings of `process`, and return the finished process with its output.

        `tree` is the folder of the version to run; None means this version. `timeout` is in seconds.
        """
        return subprocess.run(
            [sys.executable, "-m", "ostler", *arguments],
            cwd=tree,
            env=self._environment_of(process),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )

    def operator_settings(self) -> dict[str, str]:
        """Return the environment of a person's shell: a worker's settings, with the administrator's kubeconfig."""
        mine = {name: value for name, value in self._env.items() if name.startswith("OSTLER_")}
        return mine | {"OSTLER_KUBECONFIG": str(self.kubeconfig)}

    def restart(self, name: str) -> None:
        """Restart a process that was killed."""
        self.children[name].start()

    @property
    def pools(self) -> Sequence[LabPool]:
        """The pools as they are created: on a real node, their runners also find the lab's GitHub."""
        pools = self.options.pools
        return pools if self._starts != NODE else [on_real_node(each, github_url=self.github_url) for each in pools]

    @property
    def real_nodes(self) -> Sequence[Node]:
        """The real nodes of a cluster of the kind `NODE`. Another cluster has none."""
        return self._control_plane.nodes if isinstance(self._control_plane, NodeCluster) else ()

    def cluster_runs(self) -> bool:
        """Return whether the cluster that this system started is running.

        True for a borrowed cluster, which its owner checks. False if the journal of a real node ended with an error,
        because no verdict is possible without it.
        """
        if self._journal is not None and self._journal.failure is not None:
            return False
        return self._control_plane is None or self._control_plane.running()

    def lab(self, method: str, path: str, body: Any = None) -> Any:
        """Call the control interface of the lab's GitHub."""
        return pull(self.github_url, method, path, body)

    def faults(self, upstream: str, fault: Fault | None = None) -> Mapping[str, Any]:
        """Add `fault`, if it is given, to the proxy in front of `github` or `kubernetes`.

        Return the proxy's counts and routes.

        The options must contain a plan of faults for that upstream.
        """
        if fault is not None:
            return self._call_proxy(upstream, "POST", asdict(fault))
        return self._call_proxy(upstream, "GET")

    def no_faults(self, upstream: str) -> None:
        """Remove every fault from the proxy in front of `github` or `kubernetes`. The counts are kept."""
        self._call_proxy(upstream, "DELETE")

    def _call_proxy(self, upstream: str, method: str, body: Any = None) -> Mapping[str, Any]:
        url = f"{self._proxies[upstream]}/_faults"
        answer = urllib3.request(method, url, json=body, headers=_CLOSE, timeout=30, retries=False)
        if answer.status not in range(200, 300):
            raise RuntimeError(f"the fault proxy of {upstream} answered {answer.status}: {answer.data[:500]!r}")
        counts: Mapping[str, Any] = answer.json()
        return counts

    def kube(self) -> KubeClient:
        """Return a client of the cluster with the administrator's permissions."""
        return make_client(kubeconfig=str(self.kubeconfig))

    def wait_for_warm_pods(self, count: int, *, timeout: float) -> None:
        """Wait until `count` Pods hold polls.

        Raises `StartError`, which says how many Pods poll, after `timeout` seconds.
        """
        engine = create_engine(self.postgres.url("ostler"))
        end = time.monotonic() + timeout
        said_at = time.monotonic()
        try:
            while True:
                with engine.connect() as db:
                    warm = db.execute(text("SELECT count(*) FROM offers WHERE until > now()")).scalar_one()
                if warm >= count:
                    return
                if time.monotonic() - said_at > _SAY_EVERY:
                    said_at = time.monotonic()
                    self._say(f"{warm} Pods are warm, {count} are needed to begin")
                if time.monotonic() > end:
                    raise StartError(
                        f"{warm} of {count} Pods poll after {timeout:.0f} s: see the logs in {self.folder}"
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
        self.github_url = f"http://{self.host}:{port}"
        child = Child(
            "github",
            [
                sys.executable,
                "-m",
                "lab.github",
                "--host",
                self.host,
                "--port",
                str(port),
                "--app-id",
                "ostler-lab",
                "--app-public-key",
                keys["public_file"],
                "--webhook-url",
                self.options.webhook_url or f"{self.web_url}/webhooks/github",
                "--log",
                str(self.github_log),
                "--seed",
                str(self.options.seed),
                "--lock-expiry",
                str(self.options.lock_expiry),
            ],
            log=self.folder / "github.log",
            env={**os.environ, **self.options.environment, "LAB_WEBHOOK_SECRET": keys["webhook"]},
        )
        self.children["github"] = child
        child.start()

    def _add_accounts(self) -> None:
        self.children["github"].wait_until(self._github_answers, timeout=90)
        add_accounts(self.github_url, self.options.accounts)

    def _start_proxies(self) -> None:
        cluster = self.access
        for name, plan, upstream in (
            ("github", self.options.github_faults, ["--upstream", self.github_url]),
            (
                "kubernetes",
                self.options.kubernetes_faults,
                ["--upstream", cluster.url, "--ca-file", str(cluster.ca_file)],
            ),
        ):
            if plan is None:
                continue
            path = self.folder / f"{name}-faults.json"
            path.write_text(json.dumps(plan.dump()))
            port = free_port()
            child = Child(
                f"{name}-faults",
                [
                    sys.executable,
                    "-m",
                    "lab.faults",
                    "--port",
                    str(port),
                    "--plan",
                    str(path),
                    "--control",
                    *upstream,
                ],
                log=self.folder / f"{name}-faults.log",
            )
            self.children[child.name] = child
            self._proxies[name] = f"http://127.0.0.1:{port}"
            child.start()
            child.wait_until(lambda name=name: self._plays(name), timeout=90)  # type: ignore[misc]
        if self.options.by_forward_proxy:
            self._start_forward_proxy()

    def _start_forward_proxy(self) -> None:
        port = free_port()
        behind = self._proxies.get("github", self.github_url).removeprefix("http://")
        child = Child(
            "forward-proxy",
            [
                sys.executable,
                "-m",
                "lab.forward_proxy",
                "--port",
                str(port),
                "--map",
                f"{GITHUB_NAME}:80={behind}",
                "--allow",
                f"{GITHUB_NAME}:80",
                "--log",
                str(self.proxy_log),
            ],
            log=self.folder / "forward-proxy.log",
        )
        self.children[child.name] = child
        self._forward_proxy = f"http://127.0.0.1:{port}"
        child.start()
        child.wait_until(lambda: '"url"' in child.log.read_text(), timeout=90)

    def _plays(self, upstream: str) -> bool:
        try:
            return bool(self.faults(upstream))
        except HTTPError:
            return False

    def _put_identities_in_place(self) -> None:
        helm.build(self._say)
        self.identities = Identities(
            self.kube(),
            namespace=f"{self.namespace}-system",
            runners=self.namespace,
            values=self.options.chart_values,
        )
        self.identities.put_in_place()

    def kubeconfig_of(self, process: str) -> Path | None:
        """Return the kubeconfig of a process of Ostler, or None for a process without access to the cluster.

        Without identities of the chart, every process gets a copy of the administrator's kubeconfig.
        """
        if self.identities is None:
            own = self.folder / "kubeconfig"
            own.touch(mode=0o600)
            own.write_bytes(self.kubeconfig.read_bytes())
        elif process in WITHOUT_CLUSTER:
            return None
        elif not (own := self.folder / f"kubeconfig-{process}").exists():
            self.identities.kubeconfig(process, self.access, self.folder)
        url = self.options.kubernetes_url or self._proxies.get("kubernetes")
        return own if url is None else kubeconfig_through(own, url)

    def _environment_of(self, process: str) -> dict[str, str]:
        """Return the environment of a process of Ostler."""
        path = self.kubeconfig_of(process)
        mine = {"OSTLER_REDIS_URL": self.redis.url_of(process, self._env["OSTLER_REDIS_URL"])}
        own = dict(self.options.environment_of.get(process, {}))
        return self._env | mine | ({} if path is None else {"OSTLER_KUBECONFIG": str(path)}) | own

    def _github_answers(self) -> bool:
        return _answers(f"{self.github_url}/_lab/stats")

    def _environment(self, keys: Mapping[str, str]) -> dict[str, str]:
        share = max(WEB, int(self.options.settings.get("OSTLER_WORKER_THREADS", "16")))
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))},
            "PYTHONWARNINGS": "ignore",
            "OSTLER_DATABASE_URL": self.postgres.url("ostler"),
            "OSTLER_CONNECTION_SHARE": str(share),
            "OSTLER_CONNECTION_BUDGET": str(share * (self.options.webs + self.options.workers)),
            "OSTLER_REDIS_URL": self.redis.url,
            "OSTLER_GITHUB_API_URL": self._proxies.get("github", self.github_url),
            "OSTLER_GITHUB_APP_ID": "ostler-lab",
            "OSTLER_GITHUB_PRIVATE_KEY": keys["private"],
            # The lab's three accounts run as many jobs as hundreds of real accounts.
            "OSTLER_GITHUB_MINTS_PER_MINUTE": "6000",
            "OSTLER_NEW_ACCOUNTS": "serve",  # every account of the lab's GitHub belongs to the lab
            "OSTLER_WEBHOOK_SECRETS": keys["webhook"],
            "OSTLER_ENCRYPTION_KEYS": keys["fernet"],
            "OSTLER_NAMESPACE": self.namespace,
            "OSTLER_DISPATCH_URL": f"{self.polls_url}/runners/v1/dispatch",
            "OSTLER_WEB_HOST": "127.0.0.1" if self._starts != NODE else "0.0.0.0",  # noqa: S104 - a private network
            **self._by_proxy(),
            **self.options.settings,
            **self.options.environment,
        }

    def _by_proxy(self) -> dict[str, str]:
        """Return the variables that send traffic to GitHub through the forward proxy.

        Without a forward proxy the result is empty.
        """
        if self._forward_proxy is None:
            return {}
        return {
            "HTTP_PROXY": self._forward_proxy,
            "NO_PROXY": "127.0.0.1,localhost",
            "OSTLER_GITHUB_API_URL": f"http://{GITHUB_NAME}",
        }

    def _child(
        self, name: str, arguments: Sequence[str], env: Mapping[str, str], *, program: Sequence[str] = ("ostler",)
    ) -> Child:
        child = Child(
            name,
            [sys.executable, "-m", *program, *arguments],
            log=self.folder / f"{name}.log",
            env={**self._environment_of(arguments[0]), **env},
            cwd=self.options.tree,
        )
        if self.options.own_roles and arguments[0] in {"web", "worker"} and child.env is not None:
            self.postgres.create_superuser(name)
            child.env["OSTLER_DATABASE_URL"] = self.postgres.url("ostler", role=name)
        self.children[name] = child
        child.start()
        return child

    def _start_worker(self, number: int) -> None:
        self._child(f"worker-{number}", ["worker"], {}, program=self.options.worker_program)

    def start_watch(self, number: int) -> Child:
        """Start a watch process, which no job depends on.

        It gets the settings for Redis, the cluster, its namespaces, timings and logs, and no other setting of Ostler.
        """
        mine = {
            name: value
            for name, value in self._environment_of("watch").items()
            if not name.startswith("OSTLER_")
            or name.startswith(
                (
                    "OSTLER_REDIS",
                    "OSTLER_KUBECONFIG",
                    "OSTLER_NAMESPACE",
                    "OSTLER_ELEVATED_NAMESPACE",
                    "OSTLER_TIMINGS",
                    "OSTLER_LOG",
                )
            )
        }
        child = Child(
            f"watch-{number}",
            [sys.executable, "-m", "ostler", "watch"],
            log=self.folder / f"watch-{number}.log",
            env=mine,
            cwd=self.options.tree,
        )
        self.children[child.name] = child
        child.start()
        return child

    def start_flower(self) -> None:
        """Start Flower, which no job depends on.

        Of Ostler's settings it gets only the address of Redis and the settings of Flower.
        """
        child = Child(
            "flower",
            [sys.executable, "-m", "ostler", "flower"],
            log=self.folder / "flower.log",
            env={
                **{name: value for name, value in self._env.items() if not name.startswith("OSTLER_")},
                "OSTLER_REDIS_URL": self._environment_of("flower")["OSTLER_REDIS_URL"],
                "OSTLER_FLOWER_HOST": "127.0.0.1",
                "OSTLER_FLOWER_PORT": str(self._flower_port),
                "OSTLER_FLOWER_BASIC_AUTH": ":".join(self.flower_login),
                "OSTLER_FLOWER_STATE_FILE": str(self.folder / "flower-state"),
            },
        )
        self.children["flower"] = child
        child.start()

    def _migrate(self) -> None:
        """Create the tables as `ostler migrate` does.

        For this version this process creates them, which saves the second that a new process takes to start. For
        another version, its commands `migrate` and `crd` run.
        """
        if (tree := self.options.tree) is not None:
            self.command("migrate", tree=tree).check_returncode()
            self.command("crd", tree=tree, process="migrate").check_returncode()
            return
        engine = create_engine(self.postgres.url("ostler"))
        try:
            migrate.upgrade(engine)
        finally:
            engine.dispose()

    def _put_pools_in_place(self) -> None:
        kube = self.kube()
        try:
            put_pools_in_place(kube, namespace=self.namespace, pools=self.pools)
        finally:
            kube.close()

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes of this system's Pods in the cluster."""
        return [node.name for node in self.real_nodes] or [self._node]

    @property
    def _node(self) -> str:
        return f"lab-node-{self.namespace}"

    def _remove_node(self) -> None:
        """Delete this system's Nodes, because they would remain as lost nodes in a borrowed cluster."""
        nodes = (
            self._node,
            *(f"{self._node}{name.removeprefix('kubelet')}" for name in self.children if name.startswith("kubelet-")),
        )
        with contextlib.closing(self.kube()) as kube:
            for node in nodes:
                with contextlib.suppress(UpstreamError, OSError):
                    kube.request("DELETE", f"/api/v1/nodes/{node}")

    def _start_kubelet(self) -> None:
        if isinstance(self._control_plane, NodeCluster):
            self._journal = NodeJournal(
                self.kubelet_log,
                pod_logs=[node.pod_logs for node in self._control_plane.nodes],
                containerd_logs=[node.containerd.log for node in self._control_plane.nodes],
                namespace=self.namespace,
                kubeconfig=self.kubeconfig,
            )
            self._journal.start()
            return
        self._start_one_kubelet("kubelet", "--node", self._node, "--real", str(self.options.real_pods))
        for name in self.options.nodes:
            self.start_kubelet_of(name, node=name)

    def start_kubelet_of(self, name: str, *, node: str) -> Child:
        """Start a further node with its own kubelet, for Pods whose node selector requests `name`."""
        whole = self.node_of(node)
        return self._start_one_kubelet(f"kubelet-{node}", "--node", whole, "--real", "0", "--serves", name)

    def node_of(self, node: str) -> str:
        """Return the full name of a further node."""
        return f"{self._node}-{node}"

    def _start_one_kubelet(self, name: str, *arguments: str) -> Child:
        log = self.kubelet_log if name == "kubelet" else self.kubelet_log.with_name(f"{name}.jsonl")
        child = Child(
            name,
            [
                sys.executable,
                "-m",
                "lab.kubelet",
                "--kubeconfig",
                str(self.kubeconfig),
                "--namespace",
                self.namespace,
                "--github-url",
                self.github_url,
                "--log",
                str(log),
                "--work",
                str(self.folder / "pods"),
                *(() if self.options.hooks_url is None else ("--hooks-url", self.options.hooks_url)),
                *arguments,
            ],
            log=self.folder / f"{name}.log",
            env={**os.environ, **self.options.environment},
        )
        self.children[name] = child
        child.start()
        return child


def read_log_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON lines of a log that might also contain other lines."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue  # a killed process left an incomplete line


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a JSON-lines log. A last line without a line end is left out, because it is incomplete."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _answers(url: str) -> bool:
    try:
        return urllib3.request("GET", url, headers=_CLOSE, timeout=2, retries=False).status in range(200, 300)
    except HTTPError:
        return False
