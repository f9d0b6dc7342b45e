"""CustomResourceDefinitions of other projects. The chart renders objects of these kinds.

KEDA's Go module contains KEDA's definitions as files. The Prometheus operator's module contains only Go types. That
project generates its definitions with `controller-gen`, and this module does the same. The Go modules and the generated
files stay in the user's cache folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from lab.go_build import BuildUnavailable, GoPrograms, Say, quiet
from lab.processes import StartError

Manifest = dict[str, Any]

_GENERATOR = GoPrograms(
    name="foreign",
    what="controller-gen",
    module=Path(__file__).with_name("foreign"),
    packages={"controller-gen": "sigs.k8s.io/controller-tools/cmd/controller-gen"},
    takes="about half a minute",
)
_MONITORING = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
_MONITORS = tuple(
    f"monitoring.coreos.com_{kind}.yaml" for kind in ("servicemonitors", "podmonitors", "prometheusrules")
)
_KEDA = "github.com/kedacore/keda/v2@v2.21.0"
_KEDA_SUM = "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="
_KEDAS = ("keda.sh_scaledobjects.yaml", "keda.sh_triggerauthentications.yaml")


def definitions(say: Say = quiet) -> list[Manifest]:
    """Return the CustomResourceDefinitions of the Prometheus operator and of KEDA that the chart uses.

    Raises `StartError`.
    """
    try:
        folder = _GENERATOR.cached() or _GENERATOR.build(say)
        files = [*_monitors(folder), *_kedas()]
    except (BuildUnavailable, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise StartError(
            f"no definitions of other projects' kinds: {said}; run the command with Go on PATH or access to the network"
        ) from error
    return [yaml.safe_load(file.read_text()) for file in files]


def _monitors(folder: Path) -> list[Path]:
    """Return the files with the Prometheus operator's definitions. Generate them if they are not cached."""
    made = folder / "definitions"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            generate = [str(folder / "controller-gen"), "crd", f"paths={_MONITORING}", f"output:crd:dir={partial}/made"]
            # controller-gen runs `go` to find the folder of the module.
            path = f"{Path(_GENERATOR.go()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            environment = {"PATH": path, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
            _run(generate, environment, Path(__file__).with_name("foreign"))
            try:
                Path(partial, "made").rename(made)
            except OSError:  # another process generated them first
                if not made.exists():
                    raise
    return [made / name for name in _MONITORS]


def _kedas() -> list[Path]:
    """Return the files with KEDA's definitions. Raises `StartError` if the module does not have the pinned checksum."""
    with tempfile.TemporaryDirectory() as outside_of_any_module:
        environment = {"GOSUMDB": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        said = _run([_GENERATOR.go(), "mod", "download", "-json", _KEDA], environment, Path(outside_of_any_module))
    module = json.loads(said)
    if module["Sum"] != _KEDA_SUM:
        raise StartError(
            f"the checksum of {_KEDA} is {module['Sum']} instead of {_KEDA_SUM}: the module is not the pinned one; "
            "check GOPROXY, or correct lab/foreign.py"
        )
    return [Path(module["Dir"]) / "config" / "crd" / "bases" / name for name in _KEDAS]


def _run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout
