"""Conversion of runner scale sets: six values files become valid pools, every field has a note, no credential leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.app import app
from cli.output import OPEN
from k8s_adapters.crd import crd_manifest
from k8s_adapters.pool_reader import read_pool
from lab.apiserver import schema
from rules.pools.arc import convert
from rules.pools.arc_pods import IMAGE, Converted, NotConvertible

FILES = {each.stem: each for each in sorted((Path(__file__).parent / "scale_sets").glob("*.yaml"))}
DEFINITION = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
ALWAYS = {"allowForks", "githubConfigSecret", "securityContext"}
"""Decisions about every file but the odd one."""
EXPECTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "dind_with_token": (
        {
            "image": IMAGE,
            "runnerLabels": ["docker-builds"],
            "autoscaling": {"enabled": True, "minWarm": 2, "maxReplicas": 40},
            "containers": {"mode": "dind"},
            "security": {"podSecurity": "privileged"},
            "resources": {"cpu": "2", "memory": "8Gi"},
            "podTemplate": {
                "metadata": {"labels": {"team": "web"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "tolerations": [{"key": "ci", "operator": "Exists", "effect": "NoSchedule"}],
                },
            },
        },
        {*ALWAYS, "image", "organization", "containerMode.type"},
    ),
    "kubernetes_with_app": (
        {
            "image": "registry.example/shop/runner:7.2",
            "runnerLabels": ["Shop Tests"],
            "allowedRepositories": ["acme/shop"],
            "autoscaling": {"enabled": True, "minWarm": 0, "maxReplicas": 10},
            "containers": {"mode": "kubernetes"},
            "resources": {"cpu": "1", "memory": "2Gi"},
            "podTemplate": {
                "spec": {
                    "containers": [
                        {"name": "runner", "env": [{"name": "ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER", "value": "false"}]}
                    ]
                }
            },
        },
        {
            *ALWAYS,
            "containerMode.type",
            "containerMode.kubernetesModeWorkVolumeClaim",
            "containerMode.kubernetesModeServiceAccount",
            "serviceAccountName",
        },
    ),
    "novolume_with_named_secret": (
        {
            "image": "ghcr.io/actions/actions-runner:2.330.0",
            "runnerLabels": ["containers", "linux"],
            "runnerGroup": "builders",
            "autoscaling": {"enabled": True, "minWarm": 0, "maxReplicas": 15},
            "containers": {"mode": "kubernetes"},
            "resources": {"cpu": "1", "memory": "2Gi"},
            "podTemplate": {
                "spec": {
                    "containers": [
                        {
                            "name": "runner",
                            "env": [{"name": "ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER", "value": "true"}],
                            "workingDir": "/home/runner",
                        }
                    ]
                }
            },
        },
        {*ALWAYS, "organization", "containerMode.type"},
    ),
    "enterprise_behind_proxy": (
        {
            "image": IMAGE,
            "runnerLabels": ["corporate"],
            "autoscaling": {"enabled": True, "minWarm": 0, "maxReplicas": 25},
            "resources": {"cpu": "2", "memory": "4Gi"},
            "podTemplate": {
                "spec": {
                    "priorityClassName": "ci",
                    "containers": [
                        {
                            "name": "runner",
                            "env": [
                                {"name": "NO_PROXY", "value": ".svc"},
                                {
                                    "name": "REGISTRY_PASSWORD",
                                    "valueFrom": {"secretKeyRef": {"name": "registry", "key": "password"}},
                                },
                                {"name": "https_proxy", "value": "http://proxy.example:3129"},
                                {"name": "HTTPS_PROXY", "value": "http://proxy.example:3129"},
                                {"name": "no_proxy", "value": ".example,10.0.0.0/8"},
                            ],
                        }
                    ],
                }
            },
        },
        {
            *ALWAYS,
            "image",
            "githubConfigUrl",
            "proxy",
            "proxy.http.url",
            "proxy.https.credentialSecretRef",
            "podTemplate",
        },
    ),
    "enterprise_server_with_authority": (
        {
            "image": f"registry.example/runner@sha256:{'0' * 64}",
            "runnerLabels": ["on-premises"],
            "autoscaling": {"enabled": True, "minWarm": 1, "maxReplicas": 8},
            "resources": {"cpu": "4", "memory": "8Gi", "ephemeralStorage": "30Gi"},
            "podTemplate": {
                "spec": {
                    "imagePullSecrets": [{"name": "registry"}],
                    "initContainers": [
                        {
                            "name": "warm-cache",
                            "image": "registry.example/cache:3",
                            "command": ["sh", "-c", "cp -r /cache/. /warm"],
                            "volumeMounts": [{"name": "warm", "mountPath": "/warm"}],
                        }
                    ],
                    "volumes": [
                        {"name": "warm", "emptyDir": {}},
                        {
                            "name": "github-server-tls-cert",
                            "configMap": {"name": "ghes-authority", "items": [{"key": "ca.crt", "path": "ca.crt"}]},
                        },
                    ],
                    "containers": [
                        {
                            "name": "runner",
                            "env": [
                                {
                                    "name": "NODE_EXTRA_CA_CERTS",
                                    "value": "/usr/local/share/ca-certificates/ca.crt",
                                }
                            ],
                            "volumeMounts": [
                                {"name": "warm", "mountPath": "/opt/warm"},
                                {
                                    "name": "github-server-tls-cert",
                                    "mountPath": "/usr/local/share/ca-certificates/ca.crt",
                                    "subPath": "ca.crt",
                                },
                            ],
                        }
                    ],
                }
            },
        },
        {*ALWAYS, "organization", "githubConfigUrl", "githubServerTLS"},
    ),
    "odd_template": (
        {
            "image": "registry.example/odd:latest",
            "runnerLabels": ["odd"],
            "autoscaling": {"enabled": True, "minWarm": 0, "maxReplicas": 10},
            "containers": {"mode": "dind"},
            "security": {"podSecurity": "privileged"},
            "podTemplate": {
                "metadata": {"annotations": {"team": "odd"}},
                "spec": {
                    "volumes": [{"name": "layers", "emptyDir": {}}],
                    "containers": [{"name": "runner", "env": [{"name": "PACKAGES_TOKEN", "value": "WITHHELD"}]}],
                },
            },
        },
        {
            *ALWAYS,
            "organization",
            "image",
            "command",
            "maxRunners",
            "resources",
            "containerMode.type",
            "containers[dind].args",
            "containers[dind].env[DOCKER_TLS_CERTDIR]",
            "containers[dind].image",
            "containers[dind].resources",
            "containers[dind].volumeMounts[/var/lib/docker]",
            "containers[logs]",
            "hostNetwork",
            "serviceAccountName",
            "keyVault",
            "aFieldOfTomorrow",
        },
    ),
}


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
    pool = one(values_of(name))
    assert (pool.spec, decisions(pool)) == EXPECTED[name]
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
        assert done.exit_code == OPEN or given != text
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
    spec, asked = EXPECTED["dind_with_token"]
    assert (pool.spec, decisions(pool)) == (spec, asked)
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
