"""kubectl for the test that runs the commands of the docs. Built once per machine.

`lab/kubectl/go.mod` pins it to the version of the lab's API server. The build takes about a minute if the control plane
was built before, because both need mostly the same packages. kubectl has a module of its own, because a change of the
control plane's module would change the hash of its build on every machine.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.go_build import GoPrograms, Say, quiet
from lab.processes import StartError

_MODULE = Path(__file__).with_name("kubectl")
_NAME = "kubectl"


def build(say: Say = quiet) -> Path:
    """Return the path of the program. Build it first unless it is cached. Raises `StartError`."""
    return _program().had(say) / _NAME


def _program() -> GoPrograms:
    """Return the description of the build. It sets kubectl's version; otherwise kubectl warns about every server."""
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
