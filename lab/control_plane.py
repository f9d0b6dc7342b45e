"""A real Kubernetes control plane on this machine: etcd, kube-apiserver and kube-controller-manager.

It starts in about three seconds, without Docker. It has no scheduler and no kubelet of its own, so clients write the
status of Pods unless real nodes join (`lab.node`). By default, a Node becomes Unknown 50 seconds after the last renewal
of its Lease, and its Pods are then evicted as in any cluster. `lab.kubelet.node` and `tests.nodes` renew Leases.

Data are not synced to disk and are deleted when the control plane stops. On Linux the three programs die with the
thread that started them, so that a killed test run leaves no process behind. Start the control plane from the main
thread: if a shorter-lived thread starts it, it ends with that thread.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from lab.control_plane_access import ClusterAccess, NodeAccess, write_credentials, write_kubeconfig
from lab.control_plane_build import ControlPlaneUnavailable, Say, binaries, build, cached, quiet
from lab.processes import die_with_parent, free_ports

__all__ = [
    "ClusterAccess",
    "ControlPlane",
    "ControlPlaneUnavailable",
    "binaries",
    "build",
    "cached",
    "write_kubeconfig",
]

ISSUER = "https://kubernetes.default.svc"
_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "statefulset-controller",
    "job-controller",
    "disruption-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "resourcequota-controller",
    "ttl-after-finished-controller",
    "persistentvolumeclaim-protection-controller",
    "validatingadmissionpolicy-status-controller",
)
AUDIT_LOG = "audit.jsonl"
"""Name of the audit log in the control plane's folder, with one line for each call.

It exists only if `audit` was set.
"""

_CONTROLLERS_OF_REAL_NODES = (
    "deployment-controller",
    "replicaset-controller",
    "endpointslice-controller",
    "persistentvolume-binder-controller",
)
"""Further controllers for clusters with real nodes.

In other clusters, tests write the objects that these controllers manage. The controllers would overwrite these objects.
"""

_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
_READY_WITHIN = 120.0  # seconds; long, because the machine might be busy with a build
_TRIES = 4  # attempts: another process might take a free port before the program binds it


@dataclass(frozen=True, kw_only=True)
class NodeGrace:
    """Delays in whole seconds before a node without heartbeats counts as lost. The defaults are those of Kubernetes."""

    silence: int = 50
    """Seconds after the last renewal of a node's Lease before the node becomes Unknown and is tainted."""
    toleration: int = 300
    """Seconds that a Pod without tolerations of its own stays on a node that is Unknown or not Ready."""
    checked_every: int = 5
    """Seconds between two checks of the nodes by the node controller."""


DEFAULT_GRACE = NodeGrace()


class _DiedEarly(Exception):
    """A program exited before it was ready."""


class ControlPlane:
    """Three running programs. `stop()` or the end of the context stops them."""

    def __init__(self, *, folder: Path, access: ClusterAccess, programs: list[subprocess.Popen[bytes]]) -> None:
        self.folder = folder
        self.access = access
        self._programs = programs

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return self.access.kubeconfig

    @property
    def url(self) -> str:
        """Return the address of the API server."""
        return self.access.url

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that clients must trust."""
        return self.access.ca_file

    @property
    def token(self) -> str:
        """Return the administrator's bearer token."""
        return self.access.token

    @property
    def etcd_url(self) -> str:
        """Address at which etcd answers without a login.

        A test uses it to write objects that the API server would refuse.
        """
        flag = "--advertise-client-urls="
        return next(each.removeprefix(flag) for each in _arguments(self.program("etcd")) if each.startswith(flag))

    def program(self, name: str) -> subprocess.Popen[bytes]:
        """Return one of the three processes by the name of its program, for example `kube-apiserver`."""
        return next(each for each in self._programs if Path(_arguments(each)[0]).name == name)

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        say: Say = quiet,
        audit: bool = False,
        nodes: NodeGrace = DEFAULT_GRACE,
        real_nodes: NodeAccess | None = None,
    ) -> ControlPlane:
        """Start all three programs in `folder`, wait until they are ready and write `folder/kubeconfig`.

        With `audit`, the API server logs each call and its user in `folder/audit.jsonl` (`AUDIT_LOG`). `nodes` shortens
        the delays before a node counts as lost, for tests about lost nodes. `real_nodes` has the credentials of the
        real kubelets and of the scheduler that join the cluster (`lab.node`); None means that none join. Raises
        `ControlPlaneUnavailable` if the programs cannot be built or do not become ready.
        """
        programs_in = binaries(say)
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _TRIES + 1):
            running: list[subprocess.Popen[bytes]] = []
            try:
                access = _start_all(programs_in, folder, running, say, audit=audit, nodes=nodes, real_nodes=real_nodes)
            except _DiedEarly as error:
                _stop(running)
                if attempt == _TRIES:
                    raise ControlPlaneUnavailable(
                        f"the Kubernetes control plane did not start: {error}; see the logs in {folder}"
                    ) from error
            except BaseException:
                _stop(running)
                raise
            else:
                return cls(folder=folder, access=access, programs=running)
        raise AssertionError("unreachable")

    def running(self) -> bool:
        """Return whether all three programs are alive."""
        return all(program.poll() is None for program in self._programs)

    def stop(self) -> None:
        """End the controllers, the API server and etcd, in this order, and delete etcd's data.

        The order matters: an API server whose etcd is gone ignores SIGTERM for a minute.
        """
        _stop(self._programs)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _arguments(process: subprocess.Popen[bytes]) -> list[str]:
    return cast("list[str]", process.args)


def _start_all(
    programs: Path,
    folder: Path,
    running: list[subprocess.Popen[bytes]],
    say: Say,
    *,
    audit: bool,
    nodes: NodeGrace,
    real_nodes: NodeAccess | None,
) -> ClusterAccess:
    began = time.monotonic()
    shutil.rmtree(folder / "etcd", ignore_errors=True)
    shutil.rmtree(folder / "certs", ignore_errors=True)
    client_port, peer_port, api_port = free_ports(3)
    etcd_url = f"http://127.0.0.1:{client_port}"
    etcd = _run(
        [
            str(programs / "etcd"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
            "--log-level=info",
        ],
        folder / "etcd.log",
    )
    running.append(etcd)
    # The log is checked, not the port: if another etcd took the port first, the other etcd would answer.
    _wait_for(
        lambda: b"ready to serve client requests" in (folder / "etcd.log").read_bytes(), process=etcd, name="etcd"
    )
    token = write_credentials(folder, nodes=real_nodes)
    url = f"https://127.0.0.1:{api_port}"
    command = _api_server(programs, folder, etcd_url, api_port, nodes)
    command += _audit(folder) if audit else []
    command += [] if real_nodes is None else [*_kubelet_access(real_nodes), "--bind-address=0.0.0.0"]
    api_server = _run(command, folder / "kube-apiserver.log")
    running.append(api_server)
    ca_file = folder / "certs" / "apiserver.crt"
    _wait_for(lambda: _answers(f"{url}/readyz", ca_file, token), process=api_server, name="kube-apiserver")
    access = ClusterAccess(kubeconfig=folder / "kubeconfig", url=url, ca_file=ca_file, token=token)
    write_kubeconfig(access.kubeconfig, url=url, ca_file=ca_file, token=token)
    wanted = (*_CONTROLLERS, *(() if real_nodes is None else _CONTROLLERS_OF_REAL_NODES))
    command = _controller_manager(programs, folder, access, nodes, controllers=wanted)
    controllers = _run(command, folder / "kube-controller-manager.log")
    running.append(controllers)
    # The controllers work once they have created this ServiceAccount, which every Pod needs.
    made = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait_for(lambda: _answers(url + made, ca_file, token), process=controllers, name="kube-controller-manager")
    say(f"the control plane is ready after {time.monotonic() - began:.1f} s: {url}")
    return access


def _api_server(programs: Path, folder: Path, etcd_url: str, port: int, nodes: NodeGrace) -> list[str]:
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--cert-dir={folder / 'certs'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={folder / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        f"--api-audiences={ISSUER}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",  # as in other clusters: admission decides, not the validation of Pods
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--endpoint-reconciler-type=none",
        f"--default-unreachable-toleration-seconds={nodes.toleration}",
        f"--default-not-ready-toleration-seconds={nodes.toleration}",
    ]


def _kubelet_access(access: NodeAccess) -> list[str]:
    return [
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={access.client_certificate}",
        f"--kubelet-client-key={access.client_key}",
    ]


def _audit(folder: Path) -> list[str]:
    (folder / "audit-policy.yaml").write_text(_AUDIT_POLICY)
    return [f"--audit-policy-file={folder / 'audit-policy.yaml'}", f"--audit-log-path={folder / AUDIT_LOG}"]


def _controller_manager(
    programs: Path, folder: Path, access: ClusterAccess, nodes: NodeGrace, *, controllers: Sequence[str]
) -> list[str]:
    return [
        str(programs / "kube-controller-manager"),
        f"--kubeconfig={access.kubeconfig}",
        f"--controllers={','.join(controllers)}",
        f"--root-ca-file={access.ca_file}",
        f"--service-account-private-key-file={folder / 'service-accounts.key'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        f"--node-monitor-grace-period={nodes.silence}s",
        f"--node-monitor-period={nodes.checked_every}s",
        "--secure-port=0",
    ]


def _answers(url: str, ca_file: Path, token: str) -> bool:
    """Return whether a GET is answered with status 200 by our own server.

    The certificate proves that the answer comes from our own server.
    """
    if not ca_file.exists():
        return False
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    try:
        context = ssl.create_default_context(cafile=str(ca_file))
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            return bool(answer.status == HTTPStatus.OK)
    except (OSError, urllib.error.URLError):
        return False


def _wait_for(condition: Callable[[], bool], *, process: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while not condition():
        if process.poll() is not None:
            raise _DiedEarly(f"{name} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise ControlPlaneUnavailable(
                f"{name} was not ready after {_READY_WITHIN:.0f} s: see {name}.log in the folder of the control plane"
            )
        time.sleep(0.05)


def _run(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, which dies with this process.

    Without its own session, a Ctrl-C would end etcd before the API server.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  it calls one function of libc
        )


def _stop(running: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(running):
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    running.clear()
