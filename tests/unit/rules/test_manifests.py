"""Parsed manifests: kinds, namespaces, Pods that roll, addresses of Services, and malformed objects."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.addresses import Addresses, blocks
from deploys.intervals import Intervals
from deploys.manifests import OWNER_LABEL, POOL_LABEL, WEB_ADDRESSES, Manifests, addresses_of, read_manifests, title_of
from deploys.network_reach import Pod, Ports
from deploys.selectors import Malformed

Json = dict[str, Any]


def thing(kind: str, name: str = "a", *, group: str = "v1", **more: Any) -> Json:
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, **more}


def read(*bodies: Any) -> Manifests:
    return read_manifests(bodies, namespace="home")


def test_an_object_is_known_by_its_kind_group_namespace_and_name() -> None:
    found = read(
        thing("ConfigMap"),
        thing("ConfigMap", metadata={"namespace": "other"}),
        thing("Deployment", group="apps/v1"),
        thing("Namespace"),
        {"kind": "Secret", "metadata": {"name": "old"}},
    )
    assert list(found.objects) == [
        ("ConfigMap.", "home", "a"),
        ("ConfigMap.", "other", "a"),
        ("Deployment.apps", "home", "a"),
        ("Namespace.", "", "a"),
        ("Secret.", "home", "old"),
    ]
    assert [title_of(key) for key in found.objects][1:4] == ["ConfigMap other/a", "Deployment home/a", "Namespace a"]


@pytest.mark.parametrize(
    "kind",
    [
        "Namespace",
        "CustomResourceDefinition",
        "PriorityClass",
        "StorageClass",
        "PersistentVolume",
        "APIService",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "IngressClass",
        "RuntimeClass",
        "Node",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "MutatingAdmissionPolicy",
    ],
)
def test_an_object_of_the_cluster_has_no_namespace(kind: str) -> None:
    ((_, namespace, _),) = read(thing(kind, metadata={"namespace": "other"})).objects
    assert namespace == ""


def test_lists_are_taken_apart() -> None:
    items = [thing("Secret", "b"), {"kind": "ConfigMapList", "items": [thing("ConfigMap", "c")]}]
    assert [key[2] for key in read({"kind": "List", "items": items}, thing("Secret", "d")).objects] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "not a Kubernetes object"),
        ("text", "not a Kubernetes object"),
        ({}, "no kind"),
        ({"kind": 7}, "no kind"),
        ({"kind": "Secret"}, "an object of kind Secret has no metadata.name"),
        ({"kind": "Secret", "metadata": {}}, "an object of kind Secret has no metadata.name"),
        ({"kind": "Secret", "metadata": {"name": 7}}, "an object of kind Secret has no metadata.name"),
        (thing("NetworkPolicy", group="networking.k8s.io/v1"), "NetworkPolicy home/a: spec is missing"),
        (thing("Service", spec={"externalIPs": ["here"]}), "Service home/a: 'here'"),
        (thing("Service", spec={"externalIPs": 7}), "Service home/a lacks a field or has a field of the wrong type"),
        (thing("Deployment", spec={"template": {"spec": {"containers": 7}}}), "Deployment home/a lacks a field or has"),
    ],
)
def test_what_is_no_object_is_malformed(body: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(body)


def test_an_object_that_is_there_twice_is_malformed() -> None:
    with pytest.raises(Malformed, match="Secret home/a appears twice"):
        read(thing("Secret"), thing("Secret"))


def test_helm_keeps_an_object_or_makes_it_beside_the_release() -> None:
    found = read(
        thing("Secret", "plain", metadata={"annotations": {"helm.sh/resource-policy": "delete"}}),
        thing("Secret", "kept", metadata={"annotations": {"helm.sh/resource-policy": "keep"}}),
        thing("Secret", "hook", metadata={"annotations": {"helm.sh/hook": "pre-upgrade"}}),
    )
    assert [(key[2], each.kept, each.hook) for key, each in found.objects.items()] == [
        ("plain", False, False),
        ("kept", True, False),
        ("hook", False, True),
    ]


def test_objects_of_the_same_text_differ_in_name_and_status_alone() -> None:
    one, two, other = (
        next(iter(read(thing("Secret", name, data={"b": 1, "a": value}, status={"at": name})).objects.values()))
        for name, value in (("a", 1), ("b", 1), ("a", 2))
    )
    assert one.text == two.text != other.text


def template(containers: list[Json], labels: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": containers, **spec}}


PORTS = [{"name": "http", "containerPort": 80}, {"containerPort": 82}, {"containerPort": 53, "protocol": "UDP"}]


@pytest.mark.parametrize(
    "body",
    [
        *(
            thing(kind, group="apps/v1", spec={"template": template([{"ports": PORTS}], {"app": "x"})})
            for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job")
        ),
        thing("CronJob", spec={"jobTemplate": {"spec": {"template": template([{"ports": PORTS}], {"app": "x"})}}}),
    ],
)
def test_pods_of_a_workload_have_its_labels_and_ports(body: Json) -> None:
    (workload,) = read(body).workloads
    assert workload.pod == Pod(f"{body['kind']} home/a", "home", {"app": "x"}, {"http": frozenset({("TCP", 80)})})
    assert workload.ports == Ports((("TCP", Intervals.of([(80, 80), (82, 82)])), ("UDP", Intervals.of([(53, 53)]))))


def test_ports_of_init_containers_count_only_if_they_are_sidecars() -> None:
    once = {"ports": [{"name": "setup", "containerPort": 90}]}
    sidecar = {"ports": PORTS[:1], "restartPolicy": "Always"}
    (workload,) = read(thing("Pod", spec={"containers": [{}], "initContainers": [once, sidecar]})).workloads
    assert workload.pod.named_ports == {"http": {("TCP", 80)}}
    assert workload.ports == Ports((("TCP", Intervals.of([(80, 80)])),))


def test_port_name_of_two_containers_has_the_ports_of_both() -> None:
    ports = [[{"name": "dns", "protocol": "UDP", "containerPort": 53}], [{"name": "dns", "containerPort": 5353}]]
    (workload,) = read(thing("Pod", spec={"containers": [{"ports": each} for each in ports]})).workloads
    assert workload.pod.named_ports == {"dns": {("UDP", 53), ("TCP", 5353)}}


def test_a_pod_is_a_workload_of_its_own_and_runner_pods_are_none() -> None:
    pod = thing("Pod", spec={"containers": [{"ports": PORTS[:1]}]})
    pod["metadata"]["labels"] = {"app": "x"}
    (workload,) = read(pod).workloads
    assert (workload.pod.labels, workload.pod.named_ports) == ({"app": "x"}, {"http": frozenset({("TCP", 80)})})
    pod["metadata"]["labels"] = {POOL_LABEL: "linux"}
    assert read(pod).workloads == ()
    assert read(thing("Deployment", spec={"template": None}), thing("ConfigMap")).workloads == ()
    assert read(thing("Deployment", spec={"template": 7})).workloads == ()


def test_pools_namespaces_and_hooks_are_told_apart() -> None:
    overlay = {"podTemplate": {"metadata": {"labels": {"team": "red"}}}}
    found = read(
        thing("RunnerPool", "linux", group="ostler.dev/v1alpha1", spec=overlay),
        thing("RunnerPool", "plain", group="ostler.dev/v1alpha1", spec={}),
        thing("RunnerPool", "hook", group="ostler.dev/v1alpha1", metadata={"annotations": {"helm.sh/hook": "x"}}),
        thing("RunnerPool", "other", group="example.com/v1"),
        thing("Namespace", "n", metadata={"labels": {"team": "red", "number": 7}}),
    )
    assert [(pool.namespace, pool.name, pool.labels) for pool in found.pools] == [
        ("home", "linux", {"team": "red"}),
        ("home", "plain", {}),
    ]
    assert found.namespaces == {"n": {"team": "red", "number": "7"}}
    assert found.runner_namespaces == {"home"}


def test_runners_are_where_the_settings_say() -> None:
    env = [
        {"name": "OTHER", "value": "no"},
        {"name": "OSTLER_NAMESPACE", "value": "by-env"},
        {"name": "OSTLER_NAMESPACE", "valueFrom": {}},
    ]
    found = read(
        thing("ConfigMap", data={"OSTLER_NAMESPACE": "by-map", "OTHER": "no"}),
        thing("Secret", data={"OSTLER_NAMESPACE": "no"}),
        thing("Deployment", spec={"template": template([{"env": env}])}),
    )
    assert found.runner_namespaces == {"by-map", "by-env"}


@pytest.mark.parametrize("value", ["", None])
def test_empty_variable_names_no_namespace_of_runners(value: str | None) -> None:
    env = [{"name": "OSTLER_NAMESPACE", "value": "home"}, {"name": "OSTLER_ELEVATED_NAMESPACE", "value": value}]
    found = read(
        thing("ConfigMap", data={"OSTLER_ELEVATED_NAMESPACE": ""}),
        thing("Deployment", spec={"template": template([{"env": env}])}),
    )
    assert found.read_namespaces == found.runner_namespaces == {"home"}


def test_kinds_that_are_not_evaluated_are_named() -> None:
    found = read(
        thing("CiliumNetworkPolicy", "c", group="cilium.io/v2"),
        thing("AdminNetworkPolicy", "b", group="policy.networking.k8s.io/v1alpha1"),
        thing("CiliumNetworkPolicy", "d", group="example.com/v1"),
    )
    assert found.not_evaluated == ("AdminNetworkPolicy home/b", "CiliumNetworkPolicy home/c")


SERVICE = {
    "selector": {"app": "web"},
    "clusterIP": "10.0.0.1",
    "clusterIPs": ["10.0.0.1", "fd00::1"],
    "externalIPs": ["192.0.2.1"],
    "loadBalancerIP": "192.0.2.2",
}
INGRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.3"}, {"hostname": "web.example.com"}]}}
WEB = thing("Deployment", spec={"template": template([], {"app": "web", "tier": "front"})})


def reached(*bodies: Json) -> Addresses:
    found = read(WEB, *bodies)
    return addresses_of(found, found.workloads)


def test_pods_are_reached_at_every_address_of_their_service() -> None:
    everything = ("10.0.0.1", "fd00::1", "192.0.2.1", "192.0.2.2", "192.0.2.3")
    assert reached(thing("Service", spec=SERVICE, status=INGRESS)) == blocks(everything)
    only_cluster_ip = {"selector": {"app": "web"}, "clusterIP": "10.0.0.1"}
    assert reached(thing("Service", spec=only_cluster_ip)) == blocks(["10.0.0.1"])


@pytest.mark.parametrize(
    "body",
    [
        thing("Service", spec=SERVICE | {"selector": {"app": "api"}}),
        thing("Service", spec=SERVICE | {"selector": {}}),
        thing("Service", spec=SERVICE, metadata={"namespace": "other"}),
        thing("Service", spec={"selector": {"app": "web"}, "clusterIP": "None", "loadBalancerIP": ""}),
        thing("Service", spec={"selector": {"app": "web"}}),
        thing("Service"),
    ],
)
def test_a_service_of_others_or_without_an_address_adds_none(body: Json) -> None:
    assert reached(body) == Addresses()


def test_addresses_of_web_are_read_from_the_annotation_of_a_policy() -> None:
    def policy(text: str) -> Json:
        spec: Json = {"podSelector": {}}
        metadata = {"annotations": {WEB_ADDRESSES: text}, "labels": {OWNER_LABEL: "1"}}
        return thing("NetworkPolicy", group="networking.k8s.io/v1", spec=spec, metadata=metadata)

    assert read(policy("192.0.2.0/24, 2001:db8::/32,")).web_addresses == blocks(["192.0.2.0/24", "2001:db8::/32"])
    assert read(policy("")).web_addresses == Addresses()
    with pytest.raises(Malformed, match=f"NetworkPolicy home/a: annotation {WEB_ADDRESSES}: 'here'"):
        read(policy("here"))


def test_an_item_of_a_list_is_told_from_an_object_with_items() -> None:
    assert [key[2] for key in read(thing("Odd", "a", items=[thing("Secret", "b")])).objects] == ["a"]
    assert [key[2] for key in read(thing("OddList", "a", items={})).objects] == ["a"]


def test_runners_of_several_settings_of_one_object_are_all_known() -> None:
    env = [[{"name": "OSTLER_NAMESPACE", "value": name}] for name in ("one", "two")]
    found = read(thing("Deployment", spec={"template": template([{"env": each} for each in env])}))
    assert found.runner_namespaces == {"one", "two"}
