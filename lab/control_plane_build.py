"""Build a real Kubernetes control plane from Go modules, once per machine.

`lab/controlplane/go.mod` pins kube-apiserver, kube-controller-manager and etcd. If `KUBEBUILDER_ASSETS` names a folder
that holds all three programs, that folder is used instead. A first build takes about five minutes, downloads included.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lab.go_build import BuildUnavailable, GoPrograms, Say, quiet
from ostler.errors import OstlerError

__all__ = ["PROGRAMS", "ControlPlaneUnavailable", "Say", "binaries", "build", "cached", "quiet"]

_MODULE = Path(__file__).with_name("controlplane")
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
PROGRAMS = tuple(_PACKAGES)


class ControlPlaneUnavailable(OstlerError):
    """The control plane cannot be built or started.

    The message is one line that names the missing part and the remedy.
    """


def cached() -> Path | None:
    """Return the folder that already has the three programs, or None."""
    programs = _programs()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and programs.are_in(Path(assets)):
        return Path(assets)
    return programs.cached()


def binaries(say: Say = quiet) -> Path:
    """Return the folder with the three programs. Build them first if they are not cached.

    Raises `ControlPlaneUnavailable`.
    """
    return cached() or build(say)


def build(say: Say = quiet) -> Path:
    """Build the programs that are not cached, and return the folder with all three.

    If another process on this machine is building, wait for it. Raises `ControlPlaneUnavailable`.
    """
    found = cached()
    if found is not None:
        say(f"the control plane is already built: {found}")
        return found
    try:
        return _programs().build(say)
    except BuildUnavailable as error:
        raise ControlPlaneUnavailable(
            f"no Kubernetes control plane: {error}; run `make control-plane` with Go on PATH or access to the network, "
            "or set KUBEBUILDER_ASSETS to a folder with kube-apiserver, kube-controller-manager and etcd"
        ) from error


def kubernetes_flags(module: Path) -> str:
    """Return the linker flags that make programs of a module report its version of Kubernetes."""
    version = _kubernetes_version(module)
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


def _programs() -> GoPrograms:
    return GoPrograms(
        name="control-plane",
        what="the control plane",
        module=_MODULE,
        packages=_PACKAGES,
        takes="about five minutes",
        linker_flags=kubernetes_flags(_MODULE),
    )


def _kubernetes_version(module: Path) -> str:
    found = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (module / "go.mod").read_text())
    if found is None:
        raise ControlPlaneUnavailable(f"{module / 'go.mod'} names no k8s.io/kubernetes: restore it from the project")
    return found[1]
