"""kubectl, for tests and for the shell beside a demo.

kubectl is built once per machine.

`lab/kubectl/go.mod` pins it to the version of the lab's API server. The build takes about a minute if the control plane
was built before, because the two share most packages. kubectl has a module of its own, because the hash of the control
plane's module identifies its build: one more program in that module would make every machine build the control plane
again.
"""

from __future__ import annotations

from pathlib import Path

from lab.control_plane_build import kubernetes_flags
from lab.go_build import GoPrograms, Say, quiet

_MODULE = Path(__file__).with_name("kubectl")
_NAME = "kubectl"


def build(say: Say = quiet) -> Path:
    """Return the path of kubectl. Build it first if it is not cached.

    Raises `StartError`, and `ControlPlaneUnavailable` if `go.mod` names no Kubernetes.
    """
    return _program().had(say) / _NAME


def cached() -> Path | None:
    """Return the path of kubectl if it was built before, or None."""
    folder = _program().cached()
    return None if folder is None else folder / _NAME


def _program() -> GoPrograms:
    """Return the program to build.

    The linker flags give kubectl its version, because kubectl without a version warns about every server.
    """
    return GoPrograms(
        name=_NAME,
        what=_NAME,
        module=_MODULE,
        packages={_NAME: "k8s.io/kubernetes/cmd/kubectl"},
        takes="about a minute",
        linker_flags=kubernetes_flags(_MODULE),
    )
