"""Cluster with real nodes: the control plane, a scheduler, and a kubelet with its containerd for each node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.bootstrap import RUNNER_IMAGE
from lab.control_plane import ControlPlane
from lab.control_plane_access import ClusterAccess, make_node_access, write_kubeconfig
from lab.control_plane_build import binaries
from lab.go_build import Say, quiet
from lab.node.images import pause_image, runner_image
from lab.node.namespace import is_isolated
from lab.node.node import FIRST, Node
from lab.node.programs import build
from lab.processes import Child, StartError

NODE = "node-1"


def prepare(say: Say = quiet) -> None:
    """Build and fetch everything that a cluster with real nodes needs, while the network can still be reached.

    Raises `StartError`, `ControlPlaneUnavailable`.
    """
    binaries(say)
    build(say)
    pause_image(say)
    runner_image(RUNNER_IMAGE, say)


class NodeCluster:
    """A running control plane with one real node. It must run in namespaces of its own (`run_isolated`)."""

    def __init__(self, *, control_plane: ControlPlane, scheduler: Child, node: Node) -> None:
        self.control_plane = control_plane
        self.scheduler = scheduler
        self.node = node

    @property
    def access(self) -> ClusterAccess:
        """How to reach the API server as its administrator."""
        return self.control_plane.access

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.access.kubeconfig

    def running(self) -> bool:
        """Return whether every program of the cluster runs."""
        return self.control_plane.running() and all(
            child.running() for child in (self.scheduler, self.node.containerd, self.node.kubelet)
        )

    @classmethod
    def start(cls, folder: Path, *, images: Sequence[Path] = (), say: Say = quiet) -> NodeCluster:
        """Start everything in `folder` and wait until the node is Ready.

        `images` are archives that the node has from the start, besides the pause image. Raises `StartError`,
        `ControlPlaneUnavailable`.
        """
        if not is_isolated():
            raise StartError("a real node starts only in namespaces of its own: use `ostler-lab node COMMAND`")
        programs = build(say)
        pause = pause_image(say)
        nodes = make_node_access(folder / "node-access", [NODE])
        control_plane = ControlPlane.start(folder / "control-plane", say=say, real_nodes=nodes)
        access = control_plane.access
        kubeconfig = folder / "scheduler.kubeconfig"
        write_kubeconfig(kubeconfig, url=access.url, ca_file=access.ca_file, token=nodes.scheduler)
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
        node = Node(
            NODE,
            folder / NODE,
            access=access,
            token=nodes.kubelets[NODE],
            client_ca=nodes.client_ca,
            programs=programs,
            addresses=FIRST,
        )
        cluster = cls(control_plane=control_plane, scheduler=scheduler, node=node)
        try:
            scheduler.start()
            node.start([pause, *images], say)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def stop(self) -> None:
        """Stop everything, the node first. Containers that still run end with the namespaces."""
        self.node.stop()
        self.scheduler.stop(timeout=5)
        self.control_plane.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
