"""The chart in corporate clusters: proxies, private authorities, OpenShift, and mistakes in pools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s_adapters.pools.crd import crd_manifest
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.runners import build_pod
from lab import helm

Json = dict[str, Any]

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "corporate-networks.md"

EXTRA: Json = {
    "extraEnv": [
        {"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}},
        {"name": "NO_PROXY", "value": ".svc,10.0.0.0/8"},
    ],
    "extraVolumes": [{"name": "authorities", "configMap": {"name": "corporate-ca"}}],
    "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/ostler/ca", "readOnly": True}],
    "settings": {"OSTLER_CA_BUNDLE": "/etc/ostler/ca/ca.crt"},
    "podLabels": {"example.com/cost-centre": "ci"},
    "image": {"pullSecrets": ["registry"]},
}
POOL: Json = {"image": "runner:1", "runnerLabels": ["small"]}


def pods(values: Json) -> Iterator[tuple[str, Json]]:
    """Yield the Pod template of each component of the control plane, with the component's name."""
    for each in helm.render(values=values):
        if each["kind"] in {"Deployment", "Job"}:
            yield each["metadata"]["labels"]["app.kubernetes.io/component"], each["spec"]["template"]


def containers(template: Json) -> list[Json]:
    return [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]


def test_extra_values_reach_every_container_of_the_control_plane() -> None:
    found = dict(pods(EXTRA))
    assert set(found) == {"web", "worker", "beat", "watch", "flower", "migrate", "uninstall"}
    for component, template in found.items():
        assert template["metadata"]["labels"]["example.com/cost-centre"] == "ci", component
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert EXTRA["extraVolumes"][0] in template["spec"]["volumes"]
        for container in containers(template):
            assert EXTRA["extraVolumeMounts"][0] in container["volumeMounts"], container["name"]
            if container["name"] == "definition":  # it asks the API server alone
                continue
            for variable in EXTRA["extraEnv"]:
                assert variable in container["env"], container["name"]
    for component in set(found) - {"migrate", "uninstall"}:
        (container,) = containers(found[component])
        assert {"name": "OSTLER_CA_BUNDLE", "value": "/etc/ostler/ca/ca.crt"} in container["env"], component


FIXED = {"runAsUser", "runAsGroup", "fsGroup"}


def refusals_of_restricted_v2(spec: Json) -> list[str]:
    """Return the reasons why OpenShift's restricted-v2 would refuse a Pod that requests no user."""
    pod = spec.get("securityContext", {})
    found = [f"pod: {field} is fixed" for field in FIXED & pod.keys()]
    found += [f"pod: {field}" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    if pod.get("runAsNonRoot") is not True:
        found.append("pod: may run as root")
    if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("pod: seccomp")
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - kinds]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        security, name = container.get("securityContext", {}), container["name"]
        found += [f"{name}: {field} is fixed" for field in FIXED & security.keys()]
        if security.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name}: privilege escalation")
        if security.get("capabilities") != {"drop": ["ALL"]}:
            found.append(f"{name}: capabilities")
        if security.get("privileged"):
            found.append(f"{name}: privileged")
    return found


NO_USER = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}


@pytest.mark.parametrize("values", [{"openshift": {"enabled": True}}, NO_USER], ids=["openshift", "null"])
def test_restricted_v2_accepts_every_pod_of_the_control_plane(values: Json) -> None:
    assert {component: refusals_of_restricted_v2(each["spec"]) for component, each in pods(values | EXTRA)} == {
        each: [] for each in ("web", "worker", "beat", "watch", "flower", "migrate", "uninstall")
    }


def test_users_stay_as_they_were_by_default_and_one_can_be_changed() -> None:
    for _, each in pods({}):
        context = each["spec"]["securityContext"]
        assert {field: context[field] for field in FIXED} == dict.fromkeys(FIXED, 10001)
    for _, each in pods({"podSecurityContext": {"runAsUser": 1000700000, "fsGroup": None}}):
        context = each["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (1000700000, 10001)
        assert "fsGroup" not in context


def runner_pod(values: Json) -> Json:
    (pool,) = (each for each in helm.render(values=values) if each["kind"] == "RunnerPool")
    seen = read_pool({**pool, "metadata": {**pool["metadata"], "uid": "u-1"}})
    assert seen.problem is None
    return build_pod(pool=seen, name="small-0", attempt="a", dispatch_url="http://web/", audience="ostler")


def test_restricted_v2_accepts_runner_pods_of_pools_in_the_values() -> None:
    values = {"openshift": {"enabled": True}, "pools": {"small": POOL}}
    assert refusals_of_restricted_v2(runner_pod(values)["spec"]) == []

    own = {"openshift": {"enabled": True}, "pools": {"small": {**POOL, "assignedUser": False}}}
    assert runner_pod(own)["spec"]["securityContext"]["runAsUser"] == 1001
    usual = runner_pod({"pools": {"small": POOL}})["spec"]
    assert set(refusals_of_restricted_v2(usual)) == {f"pod: {field} is fixed" for field in FIXED}


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"replicsa": 5}, "pools.*small.*replicsa"),
        ({"replicas": "5"}, "/pools/small/replicas"),
        ({"replicas": -1}, "/pools/small/replicas"),
        ({"autoscaling": {"enable": True}}, "/pools/small/autoscaling.*enable"),
        ({"autoscaling": {"enabled": "yes"}}, "/pools/small/autoscaling/enabled"),
        ({"autoscaling": {"scaleDownDelay": "10 minutes"}}, "/pools/small/autoscaling/scaleDownDelay"),
        (
            {"autoscaling": {"enabled": True, "minWarm": 2, "maxReplicas": 1}},
            "autoscaling: minWarm 2 is more",
        ),
        ({"runnerLabels": []}, "/pools/small/runnerLabels"),
        ({"runnerLabels": "small"}, "/pools/small/runnerLabels"),
        ({"runnerLabels": ["a", "a"]}, "/pools/small/runnerLabels"),
        ({"runnerGroup": 0}, "/pools/small/runnerGroup"),
        ({"runnerGroup": ""}, "/pools/small/runnerGroup"),
        ({"allowedAccounts": ["acme"]}, "/pools/small/allowedAccounts/0"),
        ({"allowedRepositories": ["acme"]}, "/pools/small/allowedRepositories/0"),
        ({"image": ""}, "/pools/small/image"),
        ({"image": None}, "/pools/small.*image"),
        ({"resources": {"cpu": 0}}, "/pools/small/resources/cpu"),
        ({"resources": {"memory": "4 GB"}}, "/pools/small/resources/memory"),
        ({"resources": {"gpu": 1}}, "/pools/small/resources.*gpu"),
        ({"podTemplate": {"containers": []}}, "/pools/small/podTemplate.*containers"),
        ({"podTemplate": {"metadata": {"labels": {"team": 3}}}}, "/pools/small/podTemplate/metadata/labels/team"),
        ({"rollout": {"maxUnavailablePercent": 0}}, "/pools/small/rollout/maxUnavailablePercent"),
        ({"provisioning": {"maxConcurrent": 0}}, "/pools/small/provisioning/maxConcurrent"),
        ({"maxJobDuration": "forever"}, "/pools/small/maxJobDuration"),
        ({"drainTimeout": 60}, "/pools/small/drainTimeout"),
        ({"paused": "no"}, "/pools/small/paused"),
        ({"assignedUser": 1000}, "/pools/small/assignedUser"),
    ],
)
def test_mistake_in_a_pool_is_refused_by_its_path(mistake: Json, named: str) -> None:
    with pytest.raises(helm.HelmRefused, match=f"(?s){named}"):
        helm.render(values={"pools": {"small": {**POOL, **mistake}}})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"extraEnv": [{"name": "OSTLER_NAMESPACE", "value": "x"}]}, "/extraEnv/0/name"),
        ({"extraEnv": [{"name": "HTTPS_PROXY", "valueFrom": {}}]}, "/extraEnv/0/valueFrom"),
        ({"extraEnv": {"HTTPS_PROXY": "x"}}, "/extraEnv"),
        ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "/extraVolumes/0/name"),
        ({"extraVolumeMounts": [{"name": "a", "mountPath": "ca"}]}, "/extraVolumeMounts/0/mountPath"),
        ({"extraVolumeMounts": [{"name": "a", "mountPath": "/tmp"}]}, "/extraVolumeMounts/0/mountPath"),  # noqa: S108
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "/podLabels/app.kubernetes.io"),
        ({"podSecurityContext": {"runAsUser": 0}}, "/podSecurityContext/runAsUser"),
        ({"podSecurityContext": {"privileged": True}}, "/podSecurityContext.*privileged"),
        ({"openshift": True}, "/openshift"),
    ],
)
def test_mistake_in_an_extra_value_is_refused_by_its_path(values: Json, named: str) -> None:
    with pytest.raises(helm.HelmRefused, match=f"(?s){named}"):
        helm.render(values=values)


def test_good_pools_are_taken_as_they_are_written() -> None:
    full: Json = {
        **POOL,
        "runnerGroup": "Default",
        "routingPriority": -1,
        "allowedAccounts": [7],
        "allowForks": True,
        "serveUnlabelled": True,
        "startTarget": "2m",
        "allowedRepositories": ["acme/app"],
        "assignedUser": True,
        "replicas": 0,
        "paused": False,
        "resources": {"cpu": "500m", "memory": "1.5Gi", "ephemeralStorage": 10, "ephemeralStorageLimit": "12Gi"},
        "podTemplate": {"metadata": {"labels": {"team": "ci"}}, "spec": {"nodeSelector": {"a": "b"}}},
        "security": {"podSecurity": "restricted", "allowPrivilegeEscalation": False, "allowForks": False},
        "containers": {"mode": "kubernetes", "vcpu": "500m", "memoryMib": 512},
        "workload": "Pod",
        "volumes": {
            "claims": [
                {
                    "name": "cache",
                    "mountPath": "/cache",
                    "storage": "1Gi",
                    "storageClassName": "fast",
                    "accessMode": "ReadWriteOncePod",
                }
            ],
            "reclaim": "Delete",
        },
        "lifecycle": "persistent",
        "registration": {"organization": "acme"},
        "maxRunnerAge": "168h",
        "drainTimeout": "1h30m",
        "maxJobDuration": "2h",
        "rollout": {"maxUnavailablePercent": 100, "maxSurge": 1},
        "autoscaling": {
            "enabled": True,
            "minWarm": 0,
            "maxReplicas": 5,
            "scaleDownDelay": "90s",
            "targetBusyPercent": 75,
        },
        "provisioning": {"startTimeout": "10m", "maxConcurrent": 1},
    }
    fixed = {name: value for name, value in full.items() if name != "autoscaling"}
    scaled = {name: value for name, value in full.items() if name != "replicas"}
    for spec in (fixed, scaled):  # the chart refuses replicas beside autoscaling
        (pool,) = (each for each in helm.render(values={"pools": {"small": spec}}) if each["kind"] == "RunnerPool")
        assert pool["spec"] == spec
    builds: Json = {**POOL, "replicas": 0, "containers": {"mode": "buildkit", "cache": "10Gi"}}
    (pool,) = (each for each in helm.render(values={"pools": {"small": builds}}) if each["kind"] == "RunnerPool")
    assert pool["spec"] == builds
    schema = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(full) == set(schema["properties"]), "a field of the definition is missing in values.schema.json"


def examples() -> list[Json]:
    found = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
    assert len(found) > 5
    return found


def test_every_values_example_of_the_page_is_taken() -> None:
    for values in (each for each in examples() if "kind" not in each):
        assert helm.render(values=values)


def test_pool_of_the_page_gives_the_way_out_to_the_runner_alone() -> None:
    (pool,) = (each for each in examples() if "kind" in each)
    with_uid = {**pool, "metadata": {**pool["metadata"], "uid": "u-1"}}
    seen = read_pool(with_uid)
    assert seen.problem is None
    spec = build_pod(pool=seen, name="c-0", attempt="a", dispatch_url="http://web/", audience="ostler")["spec"]
    named = {each["name"]: {variable["name"] for variable in each["env"]} for each in spec["containers"]}
    wanted = {"https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "GIT_SSL_CAINFO"}
    assert wanted | {"NODE_EXTRA_CA_CERTS"} <= named["runner"]
    assert {each for each in named["poller"] if not each.startswith("OSTLER_")} == set()
    mounts = {each["name"]: {mount["name"] for mount in each["volumeMounts"]} for each in spec["containers"]}
    assert "corporate-ca" in mounts["runner"] - mounts["poller"]


def test_hash_of_a_pool_changes_only_if_its_user_is_assigned() -> None:
    def digest(**more: Any) -> str:
        metadata = {"name": "small", "namespace": "runners", "uid": "u-1"}
        return read_pool({"metadata": metadata, "spec": {**POOL, **more}}).template_hash

    assert digest() == digest(assignedUser=False) != digest(assignedUser=True)
