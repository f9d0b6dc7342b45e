"""Helm, for the tests of the chart: renders it, and installs it on the lab's control plane. Built once per machine.

`lab/helm/go.mod` names it; the build takes about two minutes. Nothing of Helm's own state in the user's home is read
or written: each call has a folder of its own for it.
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
_KUBERNETES = "1.36.3"  # what `render` is to think that it renders for: built from source, Helm believes in 1.20
_TIMEOUT = 300.0  # seconds for one call, on a bad day

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class HelmRefused(OstlerError):
    """Helm did not do it; the message is what it said."""


def build(say: Say = quiet) -> Path:
    """Return the program, built first where it is not cached. Raises `StartError`."""
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
    """Return every object that the chart renders to, hooks included; `crds` adds those of its folder crds/.

    `api_versions` are kinds that the cluster is to have besides Kubernetes' own, as `group/version/Kind`; `upgrade`
    renders as `helm upgrade` would. With a `kubeconfig` templates see that cluster; without one the certificate of
    web is taken for somebody else's, unless the values say what it is. Raises `HelmRefused` for values that the chart
    does not take.
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
    """Install the release, or upgrade it to these values alone; the namespace is made where it is not there.

    Hooks are left out by default, as where no kubelet runs them: nothing would end. Raises `HelmRefused`.
    """
    with _values_file(values) as file:
        extra = [] if hooks else ["--no-hooks"]
        extra += [] if crds else ["--skip-crds"]
        command = ["upgrade", "--install", release, str(chart), f"--values={file}", "--create-namespace"]
        _run([*command, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def rollback(
    *, kubeconfig: Path, namespace: str, release: str = "ostler", revision: int = 0, hooks: bool = False
) -> None:
    """Roll the release back to a revision; 0 is the one before. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["rollback", release, str(revision), f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def uninstall(*, kubeconfig: Path, namespace: str, release: str = "ostler", hooks: bool = False) -> None:
    """Remove the release; what its resource policy keeps stays. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["uninstall", release, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def lint(chart: Path = CHART, values: Values | None = None) -> str:
    """Return what `helm lint --strict` says of the chart. Raises `HelmRefused` where it finds fault."""
    with _values_file(values) as file:
        return _run(
            ["lint", "--strict", str(chart), f"--values={file}", f"--kube-version={_KUBERNETES}"], kubeconfig=None
        )


def _with_certificate(values: Values) -> Values:
    """Return the values with a certificate that the chart need not make; what they say of TLS themselves wins."""
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
            # Never the user's own cluster: a file that is not there when none was named.
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
