"""Programs of the node: kubelet, kube-scheduler, containerd and runc, built from Go modules once per machine.

There are two modules. Kubernetes and containerd need different versions of the same libraries, so one `go.mod` for both
does not build. `lab/node/kubernetes` has the requirements of the control plane, so most of it is compiled already.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from lab.control_plane_build import kubernetes_flags
from lab.go_build import GoPrograms, Say, quiet
from lab.node.images import base_is_cached
from lab.processes import StartError

_MODULES = Path(__file__).parent
CNI_FOLDER = Path("/usr/lib/cni")
"""Folder in which Debian's containernetworking-plugins installs the network plugins."""

_NEEDED = {
    "bridge": ("containernetworking-plugins", CNI_FOLDER / "bridge"),
    "ip": ("iproute2", None),
    "iptables": ("iptables", None),
    "mount": ("mount", None),
}


@dataclass(frozen=True, slots=True)
class NodePrograms:
    """The folders of the built programs."""

    kubernetes: Path
    """Holds kubelet and kube-scheduler."""
    containers: Path
    """Holds containerd, containerd-shim-runc-v2, ctr and runc."""


def build(say: Say = quiet) -> NodePrograms:
    """Return the programs, built first if they are not cached. Raises `StartError` with the cause and the cure."""
    check_packages()
    return NodePrograms(_kubernetes().had(say), _containers().had(say))


def check_packages() -> None:
    """If Debian packages are missing, raise `StartError` with the command that installs these packages."""
    missing = missing_packages()
    if missing:
        raise StartError(f"a real node needs Debian packages that are missing: apt-get install {' '.join(missing)}")


def missing_packages() -> list[str]:
    """Return the Debian packages that a real node needs and this machine lacks."""
    found = [
        package
        for program, (package, path) in _NEEDED.items()
        if not (path.exists() if path is not None else shutil.which(program))
    ]
    if _containers().cached() is None and not Path("/usr/include/seccomp.h").exists():
        found.append("libseccomp-dev")
    if not base_is_cached() and shutil.which("mmdebstrap") is None:
        found.append("mmdebstrap")
    return sorted(found)


def _kubernetes() -> GoPrograms:
    module = _MODULES / "kubernetes"
    return GoPrograms(
        name="node-kubernetes",
        what="the kubelet and the scheduler",
        module=module,
        packages={"kubelet": "k8s.io/kubernetes/cmd/kubelet", "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler"},
        takes="about five minutes",
        linker_flags=kubernetes_flags(module),
    )


def _containers() -> GoPrograms:
    containerd = "github.com/containerd/containerd/v2/cmd"
    return GoPrograms(
        name="node-containers",
        what="containerd and runc",
        module=_MODULES / "containers",
        packages={
            "runc": "github.com/opencontainers/runc",
            "containerd": f"{containerd}/containerd",
            "containerd-shim-runc-v2": f"{containerd}/containerd-shim-runc-v2",
            "ctr": f"{containerd}/ctr",
        },
        takes="about two minutes",
        tags="seccomp no_btrfs",
        with_c=frozenset({"runc"}),
    )
