"""Helm releases of runner scale sets: their values become pools, and nothing of a Secret is ever shown."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.app import app
from cli.output import MISTAKE
from rules.conversion.arc import convert
from rules.conversion.arc_pods import NotConvertible
from tests.unit.rules.test_arc_scale_sets import FILES, one, scale_set, values, values_of

DEFAULTS = {
    "githubConfigUrl": "",
    "githubConfigSecret": {"github_token": ""},
    "template": {"spec": {"containers": [{"name": "runner", "image": "ghcr.io/actions/actions-runner:latest"}]}},
}
"""Values of the chart gha-runner-scale-set."""
CREDENTIAL = "artificial-manifest-credential"


def secret(
    config: dict[str, Any] | None,
    *,
    name: str = "builds",
    revision: int = 1,
    status: str = "deployed",
    chart: str = "gha-runner-scale-set",
    namespace: str = "arc-runners",
    packed: bool = True,
) -> dict[str, Any]:
    """Return a release as `kubectl get secret --output yaml` prints it. Helm packed it, except very old releases."""
    release = {
        "name": name,
        "namespace": namespace,
        "version": revision,
        "info": {"status": status, "notes": CREDENTIAL},
        "chart": {"metadata": {"name": chart, "version": "0.12.1"}, "values": DEFAULTS},
        "config": config,
        "manifest": f"kind: Secret\nstringData: {{github_token: {CREDENTIAL}}}\n",
    }
    text = json.dumps(release).encode()
    inner = base64.b64encode(gzip.compress(text) if packed else text)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {"name": f"sh.helm.release.v1.{name}.v{revision}", "namespace": namespace},
        "data": {"release": base64.b64encode(inner).decode()},
    }


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("file", FILES)
def test_a_release_becomes_the_pool_of_its_values(file: str, packed: bool) -> None:
    given = values_of(file)
    pool, same = one(secret(given, packed=packed)), one({"namespaceOverride": "arc-runners"} | given)
    assert (pool.pool, pool.notes) == (same.pool, same.notes)


def test_the_name_of_a_release_and_the_defaults_of_its_chart_apply() -> None:
    pool = one(secret({"githubConfigUrl": "https://github.com/acme", "maxRunners": 3, "template": None}))
    assert (pool.name, pool.spec["runnerLabels"]) == ("builds", ["builds"])
    assert "metadata.namespace" in {note.field for note in pool.notes}


def test_scale_sets_that_are_parts_of_another_chart_become_pools() -> None:
    config = {"small": values(runnerScaleSetName="small"), "large": values(runnerScaleSetName="large"), "global": {}}
    made = convert([secret(config, chart="our-runners")])
    assert [pool.name for pool in made.pools] == ["small", "large"]


def test_only_the_deployed_revision_becomes_a_pool() -> None:
    items = [
        secret(values(maxRunners=number), revision=number, status=status)
        for number, status in ((9, "superseded"), (10, "deployed"), (11, "failed"))
    ]
    made = convert(items)
    assert [pool.spec["autoscaling"]["maxReplicas"] for pool in made.pools] == [10]
    assert [(note.field, note.open) for note in made.skipped] == [
        ("Helm release builds, revision 11", False),
        ("Helm release builds, revision 9", False),
    ]


def test_a_release_that_is_not_deployed_is_a_decision() -> None:
    made = convert([secret(values(), status="failed"), secret(values(), name="others")])
    assert len(made.pools) == 1
    assert [note.open for note in made.skipped] == [True]


def test_releases_of_one_name_in_two_namespaces_are_two_pools() -> None:
    given = {"githubConfigUrl": "https://github.com/acme"}
    made = convert([secret(given), secret(given, namespace="others")])
    assert len(made.pools) == 2


def test_the_object_that_a_release_made_becomes_no_second_pool() -> None:
    item = scale_set("plain_organisation")
    item["metadata"]["annotations"] = {
        "meta.helm.sh/release-name": "builds",
        "meta.helm.sh/release-namespace": "arc-runners",
    }
    made = convert([item, secret(values())])
    assert [pool.name for pool in made.pools] == ["builds"]
    assert made.skipped[0].what == "no pool, because the pool is made of Helm release builds"
    assert len(convert([item, secret(values(), namespace="others")]).pools) == 2


def test_other_secrets_and_releases_of_other_charts_are_ignored() -> None:
    opaque = {"kind": "Secret", "type": "Opaque", "metadata": {"name": "arc"}, "data": {"github_token": "YQ=="}}
    made = convert([opaque, secret({"githubConfigUrl": 1, "a": [1]}, chart="other"), secret(values())])
    assert (len(made.pools), made.skipped) == (1, [])


BROKEN = secret(values())
BOMB = base64.b64encode(base64.b64encode(gzip.compress(b"{" + b" " * (65 * 2**20)))).decode()


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"release": "%"},
        {"release": BROKEN["data"]["release"][:-40]},
        {"release": base64.b64encode(b"%").decode()},
        {"release": base64.b64encode(base64.b64encode(b"[]")).decode()},
        {"release": BOMB},
    ],
)
def test_a_secret_that_is_no_release_is_refused_without_its_data(data: Any) -> None:
    with pytest.raises(
        NotConvertible, match=r"the Secret sh\.helm\.release\.v1\.builds\.v1 is no complete Helm"
    ) as told:
        convert([BROKEN | {"data": data}])
    assert told.value.__cause__ is None
    assert len(str(told.value)) < 200


@pytest.mark.parametrize("file", FILES)
def test_no_credential_of_a_release_is_printed(file: str, tmp_path: Path) -> None:
    good = secret(values_of(file))
    cut = good | {"data": {"release": good["data"]["release"][:-80]}}
    for item in (good, cut, secret(values_of(file) | {"minRunners": "many"})):
        written = tmp_path / "releases.yaml"
        written.write_text(yaml.safe_dump({"kind": "List", "items": [item]}))
        done = CliRunner().invoke(app, ["pool", "convert", str(written)])
        told = done.stdout + done.stderr + str(done.exception)
        assert "artificial" not in told
        assert item["data"]["release"][:40] not in told
        assert (done.exit_code == MISTAKE) is (item is not good)
