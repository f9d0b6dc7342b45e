"""Helm for the tests of the chart: it renders the chart, and installs it on the lab's control plane.

It is built once per machine from `lab/helm/go.mod`, which takes about two minutes. Helm's state in the user's home is
neither read nor written: each call has a folder of its own for it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.go_build import GoPrograms, Say, quiet
from ostler.errors import OstlerError

CHART = Path(__file__).parent.parent / "charts" / "ostler"
"""The chart of this project."""

_PROGRAM = GoPrograms(
    name="helm",
    what="Helm",
    module=Path(__file__).with_name("helm"),
    packages={"helm": "helm.sh/helm/v3/cmd/helm"},
    takes="about two minutes",
)
_KUBERNETES = "1.36.3"  # version that `render` assumes; a Helm built from source assumes 1.20
_TIMEOUT = 300.0  # seconds for one call, generous

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class HelmRefused(OstlerError):
    """Helm failed. The message is its output."""


def build(say: Say = quiet) -> Path:
    """Return the path of the program. Build it first unless it is cached. Raises `StartError`."""
    return _PROGRAM.had(say) / "helm"


def render(
    chart: Path = CHART,
    values: Values | None = None,
    *,
    namespace: str = "ostler",
    release: str = "ostler",
    crds: bool = False,
    api_versions: Iterable[str] = (),
    upgrade: bool = False,
    kubeconfig: Path | None = None,
) -> list[Manifest]:
    """Return every object that the chart renders, including hooks. With `crds`, also those in its folder crds/.

    `api_versions` are kinds that the cluster has besides Kubernetes' own, as `group/version/Kind`. `upgrade` renders as
    `helm upgrade` does. With a `kubeconfig` the templates see that cluster. Without one, web uses an existing
    certificate unless the values set one. Raises `HelmRefused` for values that the chart rejects.
    """
    if kubeconfig is None:
        values = _with_certificate(values or {})
    with _values_file(values) as file:
        extra = [f"--kube-version={_KUBERNETES}", *(f"--api-versions={each}" for each in api_versions)]
        extra += ["--include-crds"] if crds else []
        extra += ["--is-upgrade"] if upgrade else []
        extra += ["--validate", "--dry-run=server"] if kubeconfig is not None else []
        command = ["template", release, str(chart), f"--namespace={namespace}", f"--values={file}"]
        said = _run([*command, *extra], kubeconfig=kubeconfig)
    return [each for each in yaml.safe_load_all(said) if each]


def upgrade_install(
    chart: Path = CHART,
    values: Values | None = None,
    *,
    kubeconfig: Path,
    namespace: str,
    release: str = "ostler",
    hooks: bool = False,
    crds: bool = False,
) -> None:
    """Install the release, or upgrade it to exactly these values. The namespace is created if it is missing.

    Hooks are omitted by default. Without a kubelet their Pods would never end. Raises `HelmRefused`.
    """
    with _values_file(values) as file:
        extra = [] if hooks else ["--no-hooks"]
        extra += [] if crds else ["--skip-crds"]
        command = ["upgrade", "--install", release, str(chart), f"--values={file}", "--create-namespace"]
        _run([*command, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def rollback(
    *, kubeconfig: Path, namespace: str, release: str = "ostler", revision: int = 0, hooks: bool = False
) -> None:
    """Roll the release back to a revision; 0 is the previous one. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["rollback", release, str(revision), f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def uninstall(*, kubeconfig: Path, namespace: str, release: str = "ostler", hooks: bool = False) -> None:
    """Remove the release. Objects with the resource policy `keep` stay. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["uninstall", release, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def lint(chart: Path = CHART, values: Values | None = None) -> str:
    """Return the output of `helm lint --strict` for the chart. Raises `HelmRefused` if it finds an error."""
    with _values_file(values) as file:
        return _run(
            ["lint", "--strict", str(chart), f"--values={file}", f"--kube-version={_KUBERNETES}"], kubeconfig=None
        )


def _with_certificate(values: Values) -> Values:
    """Return the values with an existing certificate, so that the chart need not create one.

    TLS settings in the given values take precedence.
    """
    web = values.get("web")
    if web is not None and (not isinstance(web, Mapping) or "tls" in web):
        return values
    tls = {"existingSecret": "ostler-polls-tls", "caConfigMap": "ostler-polls-ca"}
    return {**values, "web": {**(web or {}), "tls": tls}}


def _run(arguments: Sequence[str], *, kubeconfig: Path | None) -> str:
    with tempfile.TemporaryDirectory(prefix="ostler-helm-") as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))},
            "HELM_CONFIG_HOME": f"{home}/config",
            "HELM_CACHE_HOME": f"{home}/cache",
            "HELM_DATA_HOME": f"{home}/data",
            # Never the user's own cluster: without a given kubeconfig, the path names a missing file.
            "KUBECONFIG": str(kubeconfig or f"{home}/none"),
        }
        done = subprocess.run(
            [str(build()), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT,
        )
    if done.returncode != 0:
        raise HelmRefused(done.stderr.strip() or done.stdout.strip())
    return done.stdout


@contextmanager
def _values_file(values: Values | None) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", prefix="ostler-values-", suffix=".yaml") as file:
        yaml.safe_dump(dict(values or {}), file)
        file.flush()
        yield Path(file.name)
