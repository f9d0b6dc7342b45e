"""kubectl, for the test that runs what the docs tell an operator to type. Built once per machine.

`lab/kubectl/go.mod` names it, at the version of the lab's API server; the build takes about a minute where the control
plane was built, which needs most of the same packages. The module is not the control plane's own: another program in
there would change the hash that identifies a build on every machine.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.go_build import GoPrograms, Say, quiet
from lab.processes import StartError

_MODULE = Path(__file__).with_name("kubectl")
_NAME = "kubectl"


def build(say: Say = quiet) -> Path:
    """Return the program, built first where it is not cached. Raises `StartError`."""
    return _program().had(say) / _NAME


def _program() -> GoPrograms:
    """Return what to build; kubectl says which version it is, or it warns of every server."""
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
