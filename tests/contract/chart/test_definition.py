"""The definition of RunnerPool has one source: the chart's file equals the printed definition."""

from __future__ import annotations

import yaml
from typer.testing import CliRunner

from cli.app import app
from k8s_adapters.pools.crd import crd_manifest
from lab import helm

FILE = helm.CHART / "crds" / "runnerpools.yaml"


def test_the_chart_has_what_ostler_crd_prints() -> None:
    printed = CliRunner().invoke(app, ["crd", "--print"], catch_exceptions=False)

    assert printed.exit_code == 0
    assert yaml.safe_load(printed.stdout) == crd_manifest()
    assert printed.stdout == FILE.read_text(), f"copy k8s_adapters/pools/runnerpools.yaml to {FILE}"


def test_helm_takes_it_from_the_chart_as_it_is() -> None:
    (found,) = [each for each in helm.render(crds=True) if each["kind"] == "CustomResourceDefinition"]
    assert found == crd_manifest()
