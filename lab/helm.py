"""Helm, for the tests of the chart: renders the chart, and installs it on the lab's control plane.

Helm 3 and Helm 4 are built once per machine. Helm 3 runs, except inside of `using(4)`.

`lab/helm/go.mod` and `lab/helm4/go.mod` pin their versions. Each build takes about two minutes. Each call uses a
temporary folder as Helm's home, so Helm reads and writes nothing in the user's home.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import yaml

from lab.go_build import GoPrograms, Say, quiet
from ostler.errors import OstlerError

CHART = Path(__file__).parent.parent / "charts" / "ostler"
"""The folder of this project's chart."""

_PROGRAMS = {
    major: GoPrograms(
        name=module,
        what=f"Helm {major}",
        module=Path(__file__).with_name(module),
        packages={"helm": f"helm.sh/helm/v{major}/cmd/helm"},
        takes="about two minutes",
    )
    for major, module in ((3, "helm"), (4, "helm4"))
}
VERSIONS = tuple(_PROGRAMS)
"""Major versions of Helm that the chart is tested with."""
_used = ContextVar("version of Helm", default=VERSIONS[0])
_KUBERNETES = "1.36.3"  # version that `render` assumes; a Helm that is built from source assumes 1.20
_TIMEOUT = 300.0  # seconds for one call on a busy machine

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class HelmRefused(OstlerError):
    """A Helm command failed. The message is Helm's own."""


def build(say: Say = quiet) -> Path:
    """Build every version that is not cached, and return the path of the Helm in use. Raises `StartError`."""
    return {version: program.had(say) for version, program in _PROGRAMS.items()}[_used.get()] / "helm"


@contextmanager
def using(version: int) -> Iterator[None]:
    """Let the functions of this module run another major version of Helm, one of `VERSIONS`."""
    before = _used.set(version)
    try:
        yield
    finally:
        _used.reset(before)


def render(
    chart: Path = CHART,
    values: Values | None = None,
    *,
    namespace: str = "ostler",
    release: str = "ostler",
    crds: bool = False,
    api_versions: Iterable[str] = (),
    upgrade: bool = False,
    hooks: bool = True,
    only: str | None = None,
    kubeconfig: Path | None = None,
) -> list[Manifest]:
    """Return every object that the chart renders, `hooks` included. `crds` adds the objects of its folder `crds/`.

    `only` is the path of a template in the chart: the objects of other templates are left out.

    `api_versions` lists kinds, as `group/version/Kind`, that the cluster is assumed to serve besides Kubernetes' own.
    `upgrade` renders as `helm upgrade` would. With a `kubeconfig`, the templates can look up objects in that cluster.
    Without a `kubeconfig`, the values are completed so that the chart uses an existing certificate for web, unless the
    values set TLS themselves. Raises `HelmRefused` if the chart refuses the values.
    """
    if kubeconfig is None:
        values = _with_certificate(values or {})
    with _values_file(with_image(values)) as file:
        extra = [f"--kube-version={_KUBERNETES}", *(f"--api-versions={each}" for each in api_versions)]
        extra += ["--include-crds"] if crds else []
        extra += ["--is-upgrade"] if upgrade else []
        extra += [] if hooks else ["--no-hooks"]
        extra += [f"--show-only={only}"] if only else []
        if kubeconfig is not None:
            extra += ["--dry-run=server", *(["--validate"] if _used.get() == 3 else [])]  # noqa: PLR2004  the version
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
    take_ownership: bool = False,
    force_conflicts: bool = False,
) -> None:
    """Install the release, or upgrade it with only these values. Create the namespace if it does not exist.

    With `take_ownership`, objects that Helm did not make become part of the release. With `force_conflicts`, which
    only Helm 4 has, fields that another client changed get the values of the chart.

    Hooks are left out by default, because hooks need a kubelet. Without a kubelet, Helm would wait for them until it
    gives up. Raises `HelmRefused`.
    """
    with _values_file(with_image(values)) as file:
        extra = [] if hooks else ["--no-hooks"]
        extra += [] if crds else ["--skip-crds"]
        extra += ["--take-ownership"] if take_ownership else []
        extra += ["--force-conflicts"] if force_conflicts else []
        command = ["upgrade", "--install", release, str(chart), f"--values={file}", "--create-namespace"]
        _run([*command, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def rollback(
    *, kubeconfig: Path, namespace: str, release: str = "ostler", revision: int = 0, hooks: bool = False
) -> None:
    """Roll the release back to a revision. 0 means the previous revision. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["rollback", release, str(revision), f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def uninstall(*, kubeconfig: Path, namespace: str, release: str = "ostler", hooks: bool = False) -> None:
    """Remove the release, except for objects that their resource policy keeps. Raises `HelmRefused`."""
    extra = [] if hooks else ["--no-hooks"]
    _run(["uninstall", release, f"--namespace={namespace}", *extra], kubeconfig=kubeconfig)


def lint(chart: Path = CHART, values: Values | None = None) -> str:
    """Run `helm lint --strict` and return its output. Raises `HelmRefused` if it finds an error."""
    with _values_file(with_image(values)) as file:
        return _run(
            ["lint", "--strict", str(chart), f"--values={file}", f"--kube-version={_KUBERNETES}"], kubeconfig=None
        )


def with_image(values: Values | None) -> Values:
    """Return the values with a repository of the image, which the chart requires, unless they set the image's fields.

    Values that are no mapping stay, so that the chart refuses them.
    """
    image = (values or {}).get("image", {})
    if not isinstance(image, Mapping) or "repository" in image:
        return values or {}
    return {**(values or {}), "image": {"repository": "ostler", **image}}


def _with_certificate(values: Values) -> Values:
    """Return the values with the names of an existing certificate, unless they set TLS themselves.

    The chart then does not generate a certificate.
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
            # Without a kubeconfig this names a missing file, so that Helm never uses the user's own cluster.
            "KUBECONFIG": str(kubeconfig or f"{home}/none"),
        }
        done = subprocess.run(
            [str(_PROGRAMS[_used.get()].had() / "helm"), *arguments],
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
