"""Cluster with real nodes: the control plane, a scheduler, and a kubelet with its containerd for each node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from lab.bootstrap import RUNNER_IMAGE
from lab.control_plane import DEFAULT_GRACE, ControlPlane, NodeGrace
from lab.control_plane_access import ClusterAccess, make_node_access, write_kubeconfig
from lab.control_plane_build import binaries
from lab.go_build import Say, quiet
from lab.node.images import pause_image, runner_image
from lab.node.namespace import NODE_ADDRESS, is_isolated
from lab.node.node import Node, NodeAddresses
from lab.node.programs import build
from lab.processes import Child, StartError


def name_of_node(number: int) -> str:
    """Return the name of node `number`, which counts from 1."""
    return f"node-{number}"


def prepare(say: Say = quiet) -> None:
    """Build and fetch everything that a cluster with real nodes needs, while the network can still be reached.

    Raises `StartError`, `ControlPlaneUnavailable`.
    """
    binaries(say)
    build(say)
    pause_image(say)
    runner_image(RUNNER_IMAGE, say)


class NodeCluster:
    """A running control plane with real nodes. It must run in namespaces of its own (`run_isolated`)."""

    def __init__(
        self, *, control_plane: ControlPlane, scheduler: Child, nodes: Sequence[Node], services: Child | None = None
    ) -> None:
        self.control_plane = control_plane
        self.scheduler = scheduler
        self.services = services
        self.nodes = nodes

    @property
    def access(self) -> ClusterAccess:
        """Address of the API server, and the credentials of its administrator."""
        return self.control_plane.access

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.access.kubeconfig

    def running(self) -> bool:
        """Return True if every program of the cluster runs, apart from nodes that were killed on purpose."""
        nodes = all(node.running() for node in self.nodes)
        services = self.services is None or self.services.running()
        return nodes and services and self.scheduler.running() and self.control_plane.running()

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        nodes: int = 1,
        grace: NodeGrace = DEFAULT_GRACE,
        images: Sequence[Path] = (),
        services: bool = False,
        say: Say = quiet,
    ) -> NodeCluster:
        """Start everything in `folder` and wait until each of the `nodes` is Ready.

        `grace` has the delays before a node counts as lost. `images` are archives that each node has from the start,
        besides the pause image. With `services`, Pods reach the Services of the cluster by address and name. Raises
        `StartError`, `ControlPlaneUnavailable`.
        """
        if not is_isolated():
            raise StartError("a real node starts only in namespaces of its own: use `ostler-lab node COMMAND`")
        programs = build(say)
        pause = pause_image(say)
        names = [name_of_node(number) for number in range(1, nodes + 1)]
        credentials = make_node_access(folder / "node-access", names)
        control_plane = ControlPlane.start(folder / "control-plane", say=say, nodes=grace, real_nodes=credentials)
        access = control_plane.access
        kubeconfig = folder / "scheduler.kubeconfig"
        write_kubeconfig(kubeconfig, url=access.url, ca_file=access.ca_file, token=credentials.scheduler)
        scheduler = Child(
            "kube-scheduler",
            [
                str(programs.kubernetes / "kube-scheduler"),
                f"--kubeconfig={kubeconfig}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
            log=folder / "kube-scheduler.log",
        )
        members = [
            Node(
                name,
                folder / name,
                access=access,
                token=credentials.kubelets[name],
                client_ca=credentials.client_ca,
                programs=programs,
                addresses=NodeAddresses.numbered(number),
                dns=NODE_ADDRESS if services else "",
            )
            for number, name in enumerate(names, start=1)
        ]
        proxy = _services(folder, access) if services else None
        cluster = cls(control_plane=control_plane, scheduler=scheduler, nodes=members, services=proxy)
        try:
            scheduler.start()
            if proxy is not None:
                proxy.start()
            for node in members:
                node.start([pause, *images], say)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def stop(self) -> None:
        """Stop everything, the nodes first. Containers that still run end with the namespaces."""
        for node in self.nodes:
            node.stop()
        if self.services is not None:
            self.services.stop(timeout=5)
        self.scheduler.stop(timeout=5)
        self.control_plane.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _services(folder: Path, access: ClusterAccess) -> Child:
    """Return the process that stands in for kube-proxy and the DNS server (`lab.node.services`)."""
    port = urlsplit(access.url).port
    arguments = [f"--kubeconfig={access.kubeconfig}", f"--address={NODE_ADDRESS}", f"--api-port={port}"]
    return Child("services", [sys.executable, "-m", "lab.node.services", *arguments], log=folder / "services.log")
