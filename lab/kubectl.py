"""kubectl, for the test that runs the commands that the docs give to operators. It is built once per machine.

`lab/kubectl/go.mod` pins it to the version of the lab's API server. The build takes about a minute if the control plane
was built before, because the two share most packages. kubectl has a module of its own, because the hash of the control
plane's module identifies its build: one more program in that module would make every machine build the control plane
again.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.go_build import GoPrograms, Say, quiet
from lab.processes import StartError

_MODULE = Path(__file__).with_name("kubectl")
_NAME = "kubectl"


def build(say: Say = quiet) -> Path:
    """Return the path of kubectl. Build it first if it is not cached. Raises `StartError`."""
    return _program().had(say) / _NAME


def _program() -> GoPrograms:
    """Return the program to build.

    The linker flags give kubectl its version, because without one it warns about every server.
    """
    found = re.search(r"k8s\.io/kubernetes v((\d+)\.(\d+)[\d.]*)", (_MODULE / "go.mod").read_text())
    if found is None:
        raise StartError("lab/kubectl/go.mod names no k8s.io/kubernetes: restore it from the project")
    stamp = "k8s.io/component-base/version"
    return GoPrograms(
        name=_NAME,
        what=_NAME,
        module=_MODULE,
        packages={_NAME: "k8s.io/kubernetes/cmd/kubectl"},
        takes="about a minute",
        linker_flags=(
            f"-s -w -X {stamp}.gitVersion=v{found[1]} -X {stamp}.gitMajor={found[2]} -X {stamp}.gitMinor={found[3]}"
        ),
    )
