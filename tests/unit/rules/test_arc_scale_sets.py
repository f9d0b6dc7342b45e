"""Conversion of runner scale sets: values files and Helm releases become valid pools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.app import app
from cli.output import OPEN
from k8s_adapters.pools.crd import crd_manifest
from k8s_adapters.pools.pool_reader import read_pool
from lab.apiserver import schema
from rules.conversion.arc import convert
from rules.conversion.arc_pods import Converted, NotConvertible
from rules.conversion.arc_scale_sets import _NEEDLESS, _READ

FILES = {each.stem: each for each in sorted((Path(__file__).parent / "scale_sets").glob("*.yaml"))}
DEFINITION = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
POOLS = {name: (file.parent / "pools" / file.name).read_text() for name, file in FILES.items()}
"""Output of the command for each file: the decisions as comments, and the pool."""
PAGE = Path(__file__).parents[3] / "docs" / "operations" / "migrating-from-scale-sets.md"
FREE = {"arm_nodes_of_one_repository", "plain_organisation"}
"""Files that need no decision."""


def values_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILES[name].read_text())
    return found


def one(item: dict[str, Any]) -> Converted:
    (pool,) = convert([item]).pools
    return pool


def values(**given: Any) -> dict[str, Any]:
    return {"githubConfigUrl": "https://github.com/acme", "runnerScaleSetName": "builds"} | given


def decisions(pool: Converted) -> set[str]:
    return {note.field for note in pool.notes if note.open}


@pytest.mark.parametrize("name", FILES)
def test_a_values_file_becomes_a_valid_pool_and_its_decisions(name: str) -> None:
    done = CliRunner().invoke(app, ["pool", "convert", str(FILES[name])])
    assert (done.stdout, done.exit_code) == (POOLS[name], 0 if name in FREE else OPEN)
    pool = one(values_of(name))
    assert pool.pool == yaml.safe_load(POOLS[name])
    assert list(schema.problems(DEFINITION, pool.pool, "")) == []
    assert read_pool({**pool.pool, "metadata": pool.pool["metadata"] | {"namespace": "", "uid": ""}}).problem is None


@pytest.mark.parametrize("name", FILES)
def test_every_field_of_a_values_file_has_a_note(name: str) -> None:
    given = values_of(name)
    template = given["template"]
    runner = next(each for each in template["spec"]["containers"] if each["name"] == "runner")
    fields = {*given, *template["spec"], *runner} - {"template", "containers", "name"}
    said = [note.field for note in one(given).notes]
    missing = {field for field in fields if not any(field in each for each in said)}
    assert missing - {"labels", "annotations", "namespaceOverride", "scaleSetLabels"} == set()


@pytest.mark.parametrize("name", FILES)
def test_no_credential_is_printed_or_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "values.yaml"
    text = FILES[name].read_text()
    monkeypatch.chdir(tmp_path)
    for given in (text, f"{text}minRunners: many\n", f"{text}: [\n"):
        file.write_text(given)
        done = CliRunner().invoke(app, ["pool", "convert", str(file)])
        assert "artificial" not in done.stdout + done.stderr + str(done.exception)
        assert done.exit_code == (0 if name in FREE else OPEN) or given != text
    assert list(tmp_path.iterdir()) == [file]


def test_the_note_names_the_keys_of_the_credentials_and_the_command_for_the_secret() -> None:
    (note,) = [each for each in one(values_of("kubernetes_with_app")).notes if each.field == "githubConfigSecret"]
    assert "github_app_id, github_app_installation_id, github_app_private_key" in note.what
    assert "`ostler setup github --organization acme --webhook-url" in note.what
    assert "OSTLER_GITHUB_PRIVATE_KEY" in note.what
    server = one(values_of("enterprise_server_with_authority")).notes
    assert any("--github-url https://ghes.example:8443 " in each.what for each in server)


def scale_set(name: str) -> dict[str, Any]:
    """Return the object that the chart renders from a values file without its own additions."""
    spec = {key: value for key, value in values_of(name).items() if key not in {"labels", "annotations"}}
    metadata = {
        "name": "rendered",
        "namespace": "arc-runners",
        "labels": {"helm.sh/chart": "gha-runner-scale-set-0.12.1", "team": "web"},
        "annotations": {"actions.github.com/values-hash": "1"},
    }
    return {"kind": "AutoscalingRunnerSet", "metadata": metadata, "spec": spec | {"githubConfigSecret": "arc"}}


def test_an_object_of_the_cluster_becomes_the_pool_of_its_values() -> None:
    item = scale_set("dind_with_token")
    runner = item["spec"]["template"]["spec"]["containers"][0]
    del item["spec"]["containerMode"]
    runner["env"] = [
        {"name": "DOCKER_HOST", "value": "unix:///var/run/docker.sock"},
        {"name": "RUNNER_WAIT_FOR_DOCKER_IN_SECONDS", "value": "120"},
    ]
    runner["volumeMounts"] = [{"name": "work", "mountPath": "/home/runner/_work"}]
    item["spec"]["template"]["spec"] |= {
        "initContainers": [
            {"name": "init-dind-externals", "image": "a"},
            {
                "name": "dind",
                "image": "docker:dind",
                "args": ["dockerd", "--host=unix:///var/run/docker.sock", "--group=$(DOCKER_GROUP_GID)"],
                "env": [{"name": "DOCKER_GROUP_GID", "value": "123"}],
            },
        ],
        "volumes": [{"name": "dind-sock", "emptyDir": {}}, {"name": "work", "emptyDir": {}}],
    }
    parts = [{"kind": kind, "metadata": {"name": "a"}} for kind in ("AutoscalingListener", "EphemeralRunnerSet")]
    made = convert([item, *parts])
    (pool,) = made.pools
    of_values = one(values_of("dind_with_token"))
    assert (pool.spec, decisions(pool)) == (of_values.spec, decisions(of_values))
    assert pool.pool["metadata"] == {"name": "rendered", "labels": {"team": "web"}}
    assert {"metadata.namespace", "metadata.annotations"} <= {note.field for note in pool.notes}
    assert [note.what for note in made.skipped] == ["no pool; convert its AutoscalingRunnerSet instead"] * 2


def test_container_jobs_of_an_object_are_found_by_the_variables_of_the_hooks() -> None:
    env = [
        {"name": "ACTIONS_RUNNER_CONTAINER_HOOKS", "value": "/home/runner/k8s/index.js"},
        {"name": "ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER", "value": "true"},
    ]
    pool = one(values(template={"spec": {"containers": [{"name": "runner", "env": env}]}}))
    assert pool.spec["containers"] == {"mode": "kubernetes"}
    assert pool.spec["podTemplate"]["spec"]["containers"] == [{"name": "runner", "env": env[1:]}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"runnerScaleSetName": ""}, "have no runnerScaleSetName; write the name of their Helm release there"),
        ({"maxRunners": "many"}, "values of gha-runner-scale-set does not have the structure of its kind"),
        ({"template": {"spec": "text"}}, "does not have the structure of its kind"),
    ],
)
def test_values_that_cannot_become_a_pool_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(NotConvertible, match=says):
        convert([values(**given)])


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"containerMode": {"type": "podman"}}, "containerMode.type"),
        ({"containerMode": {"type": "dind", "a": 1}}, "containerMode.a"),
        ({"proxy": {"ftp": {}}}, "proxy.ftp"),
        ({"template": {"spec": {}, "kind": "Pod"}}, "template.kind"),
        ({"template": {"metadata": {"name": "a"}}}, "template.metadata.name"),
        ({"template": {"spec": {"containers": [{"name": "runner", "tty": True}]}}}, "containers[runner].tty"),
        ({"githubConfigUrl": "https://github.com"}, "githubConfigUrl"),
    ],
)
def test_a_field_without_a_counterpart_is_a_decision(given: dict[str, Any], field: str) -> None:
    assert field in decisions(one(values(**given)))


def test_scale_sets_with_the_same_labels_are_a_decision() -> None:
    made = convert([values(), values(githubConfigUrl="https://github.com/acme/shop")])
    assert {"metadata.name", "runnerLabels"} <= decisions(made.pools[1])


@pytest.mark.parametrize(("address", "asks"), [("https://github.com/acme", True), ("https://github.com/globex", False)])
def test_scale_sets_of_two_organisations_can_have_the_same_name(address: str, asks: bool) -> None:
    made = convert([values(), values(githubConfigUrl=address)])
    assert ("runnerLabels" in decisions(made.pools[1])) is asks


def test_devices_stay_limits_of_the_runner() -> None:
    runner = {"name": "runner", "resources": {"limits": {"nvidia.com/gpu": 1, "hugepages-2Mi": "1Gi"}}}
    pool = one(values(template={"spec": {"containers": [runner]}}))
    assert pool.spec["podTemplate"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert "resources[hugepages-2Mi]" in decisions(pool)


@pytest.mark.parametrize(("user", "asks"), [(1001, False), (1000, True)])
def test_the_user_that_ostler_sets_is_no_decision(user: int, asks: bool) -> None:
    pod = {"securityContext": {"fsGroup": user}}
    assert ("securityContext" in decisions(one(values(template={"spec": pod})))) is asks


def rows() -> dict[str, str]:
    """Return what the table of the page says about each field."""
    table = PAGE.read_text().partition("| field | becomes |")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {name: right for left, right in lines for name in re.findall(r"`([\w.]+)`", left)}


def test_the_table_of_the_page_has_every_field_that_is_converted() -> None:
    assert {field.partition(".")[0] for field in rows()} == (
        _READ | set(_NEEDLESS) | {"githubConfigSecret", "keyVault"}
    ) - {"runnerScaleSetLabels"}  # the name of scaleSetLabels in an object


@pytest.mark.parametrize(
    "field", [field for field, becomes in rows().items() if re.match("nothing$|a decision$", becomes)]
)
def test_a_field_of_the_table_gets_the_note_that_the_page_promises(field: str) -> None:
    given = {"annotations": {"a": "b"}, "namespaceOverride": "arc"}.get(field, {"a": "b"})
    (note,) = [each for each in one(values(**{field: given})).notes if field.removesuffix("Override") in each.field]
    assert note.open is (rows()[field] == "a decision")
    assert note.open or note.what.startswith("nothing")
