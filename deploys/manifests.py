"""Manifests of a deploy: policies, pools, namespaces and workloads, parsed from Kubernetes objects.

The objects come from manifests that Helm rendered, or from a cluster. This module calls no server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deploys.addresses import Addresses, blocks
from deploys.intervals import Intervals
from deploys.network_policies import Policy, parse_policy
from deploys.network_reach import Pod, Ports
from deploys.selectors import Malformed

T = TypeVar("T")

POOL_LABEL = "ostler.dev/pool"
OWNER_LABEL = "ostler.dev/runner-pool-owner"
HOOK_OF_LABEL = "ostler.dev/hook-of"
HOOK_POOL_LABEL = "ostler.dev/hook-pool"
CONTAINERS_LABEL = "ostler.dev/containers"
CONTAINERS_KUBERNETES = "kubernetes"
API_SERVER_ADDRESSES = "ostler.dev/api-server-addresses"
"""Annotation of a policy. It lists the address blocks at which runner Pods with container jobs reach the API server.

The blocks are separated by commas.
"""

WEB_ADDRESSES = "ostler.dev/web-addresses"
"""Annotation of a policy. It lists the address blocks at which clients outside the cluster reach web.

The blocks are separated by commas.
"""

POOL_KIND = "RunnerPool.ostler.dev"
POLICY_KIND = "NetworkPolicy.networking.k8s.io"
DEFINITION = "CustomResourceDefinition.apiextensions.k8s.io", "", "runnerpools.ostler.dev"
NOT_EVALUATED = frozenset(
    {
        "CiliumNetworkPolicy.cilium.io",
        "CiliumClusterwideNetworkPolicy.cilium.io",
        "NetworkPolicy.crd.projectcalico.org",
        "GlobalNetworkPolicy.crd.projectcalico.org",
        "NetworkPolicy.projectcalico.org",
        "GlobalNetworkPolicy.projectcalico.org",
        "AdminNetworkPolicy.policy.networking.k8s.io",
        "BaselineAdminNetworkPolicy.policy.networking.k8s.io",
    }
)
"""Kinds of objects that also control traffic, but that the checks do not evaluate."""

_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}

Key = tuple[str, str, str]
"""Kind with its API group, namespace (empty for a cluster-wide object), and name of an object."""


@dataclass(frozen=True, slots=True)
class Object:
    """One Kubernetes object.

    `kept` is true if Helm does not delete the object when the object is missing from a new version of the release.
    `hook` is true if the object is a Helm hook. Helm creates and deletes hooks apart from the release.
    """

    key: Key
    body: Mapping[str, Any]
    kept: bool
    hook: bool

    @property
    def text(self) -> str:
        """Content without metadata and status. Objects with the same text differ at most in metadata and status."""
        return json.dumps(
            {k: v for k, v in self.body.items() if k not in {"metadata", "status"}}, sort_keys=True, default=str
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods that a deploy replaces.

    `pod` describes these Pods for policies. `ports` are the ports that the Pods declare.
    """

    pod: Pod
    ports: Ports


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool. `labels` are the labels that its Pods have besides the pool's label and the label of their manager.

    These are the labels of the pool's template, and the label of pools whose jobs may use containers. `paused` is None
    if the manifest does not say it.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    paused: bool | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A Service. `selector` selects the Service's Pods, and `addresses` are the addresses of the Service itself."""

    namespace: str
    selector: Mapping[str, str]
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class Manifests:
    """Parsed objects.

    `namespaces` has the labels of each Namespace. `runner_namespaces` are the namespaces of runner Pods according to
    the objects, and `read_namespaces` those that a process of Ostler reads. `web_addresses` and `api_addresses` come
    from annotations of policies. `not_evaluated` names the objects that also control traffic but that the checks do not
    evaluate.
    """

    objects: Mapping[Key, Object] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    workloads: tuple[Workload, ...] = ()
    pools: tuple[Pool, ...] = ()
    services: tuple[Service, ...] = ()
    runner_namespaces: frozenset[str] = frozenset()
    read_namespaces: frozenset[str] = frozenset()
    web_addresses: Addresses = field(default_factory=Addresses)
    api_addresses: Addresses = field(default_factory=Addresses)
    not_evaluated: tuple[str, ...] = ()


def read_manifests(bodies: Iterable[Any], *, namespace: str) -> Manifests:
    """Return the parsed objects. An object that names no namespace gets `namespace`. Lists are expanded.

    Raises `Malformed` in each of these cases:

    - An object is not a Kubernetes object: it has no kind or no name.
    - An object appears twice.
    - A network policy is malformed.
    - Another object lacks a field that this module reads, or the field has the wrong type.
    - An address of a Service or of an annotation is malformed.

    The message names the object. If the object has no kind, the message quotes the beginning of the object.
    """
    objects: dict[Key, Object] = {}
    for body in _flat(bodies):
        found = _object(body, namespace)
        if found.key in objects:
            raise Malformed(f"{title_of(found.key)} appears twice; remove one of the two objects")
        objects[found.key] = found
    mine = [each for each in objects.values() if not each.hook]
    policies = [each for each in mine if each.key[0] == POLICY_KIND]
    return Manifests(
        objects=objects,
        policies=tuple(_shaped(_policy, each) for each in policies),
        namespaces={each.key[2]: _texts(_metadata(each).get("labels")) for each in _of(mine, "Namespace.")},
        workloads=tuple(pods for each in mine if (pods := _shaped(_workload, each)) is not None),
        pools=tuple(_shaped(_pool, each) for each in _of(mine, POOL_KIND)),
        services=tuple(_shaped(_service, each) for each in _of(mine, "Service.")),
        runner_namespaces=frozenset(name for each in mine for name in _shaped(_runner_namespaces, each)),
        read_namespaces=frozenset(name for each in mine for name in _shaped(_read_namespaces, each)),
        web_addresses=_annotated_addresses(policies, WEB_ADDRESSES),
        api_addresses=_annotated_addresses(policies, API_SERVER_ADDRESSES),
        not_evaluated=tuple(sorted(title_of(each.key) for each in mine if each.key[0] in NOT_EVALUATED)),
    )


def _of(objects: Iterable[Object], kind: str) -> list[Object]:
    return [each for each in objects if each.key[0] == kind]


def _shaped(read: Callable[[Object], T], given: Object) -> T:
    """Return the result of `read` for an object.

    Raises `Malformed` if the object lacks a field that `read` needs, or if a field has the wrong type.
    """
    try:
        return read(given)
    except Malformed:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Malformed(
            f"{title_of(given.key)} lacks a field or has a field of the wrong type; compare its spec with the API "
            f"reference of {given.body['kind']}, as `kubectl explain {given.body['kind'].lower()}.spec` shows it"
        ) from None


def _policy(given: Object) -> Policy:
    return parse_policy(given.body, namespace=given.key[1])


def title_of(key: Key) -> str:
    """Return the name of an object for messages, such as `Service ostler/web`."""
    kind = key[0].partition(".")[0]
    return f"{kind} {key[1]}/{key[2]}" if key[1] else f"{kind} {key[2]}"


def addresses_of(manifests: Manifests, pods: Iterable[Workload]) -> Addresses:
    """Return the addresses of Services, load balancers and annotations at which clients reach the given Pods."""
    found = manifests.web_addresses
    for workload in pods:
        for service in manifests.services:
            selected = service.selector and service.selector.items() <= dict(workload.pod.labels).items()
            if selected and service.namespace == workload.pod.namespace:
                found = found.union(service.addresses)
    return found


def _flat(bodies: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    for body in bodies:
        if not isinstance(body, Mapping) or not isinstance(body.get("kind"), str):
            raise Malformed(f"{str(body)[:60]!r} is not a Kubernetes object: it has no kind")
        if body["kind"].endswith("List") and isinstance(body.get("items"), list):
            yield from _flat(body["items"])
        else:
            yield body


def _object(body: Mapping[str, Any], namespace: str) -> Object:
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        raise Malformed(f"an object of kind {body['kind']} has no metadata.name")
    group = str(body.get("apiVersion") or "").rpartition("/")[0]
    kind = f"{body['kind']}.{group}"
    annotations = metadata.get("annotations") or {}
    place = "" if _is_of_cluster(body["kind"]) else str(metadata.get("namespace") or namespace)
    return Object(
        key=(kind, place, metadata["name"]),
        body=body,
        kept=annotations.get("helm.sh/resource-policy") == "keep",
        hook="helm.sh/hook" in annotations,
    )


def _is_of_cluster(kind: str) -> bool:
    return kind.startswith(("Cluster", "ValidatingAdmission", "MutatingAdmission", "ValidatingWebhook")) or kind in {
        "Namespace",
        "CustomResourceDefinition",
        "PriorityClass",
        "StorageClass",
        "PersistentVolume",
        "APIService",
        "MutatingWebhookConfiguration",
        "IngressClass",
        "RuntimeClass",
        "Node",
    }


def _metadata(given: Object) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = given.body["metadata"]
    return metadata


def _texts(given: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in given.items()} if isinstance(given, Mapping) else {}


def _within(body: Any, *path: str) -> Any:
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def _template(given: Object) -> Mapping[str, Any] | None:
    path = _TEMPLATES.get(given.body["kind"])
    found = None if path is None else _within(given.body, *path)
    return found if isinstance(found, Mapping) else None


def _workload(given: Object) -> Workload | None:
    template = _template(given)
    labels = _texts(_within(template, "metadata", "labels"))
    if template is None or POOL_LABEL in labels:
        return None
    named: dict[str, frozenset[tuple[str, int]]] = {}
    numbers: dict[str, list[tuple[int, int]]] = {}
    for container in _serving_containers(template):
        for port in container.get("ports") or []:
            protocol, number = str(port.get("protocol") or "TCP"), int(port.get("containerPort") or 0)
            numbers.setdefault(protocol, []).append((number, number))
            if port.get("name"):
                name = str(port["name"])
                named[name] = named.get(name, frozenset()) | {(protocol, number)}
    ports = Ports(tuple((each, Intervals.of(numbers[each])) for each in sorted(numbers)))
    return Workload(Pod(title_of(given.key), given.key[1], labels, named), ports)


def _containers(template: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    spec = template.get("spec") or {}
    for field_name in ("containers", "initContainers"):
        yield from (each for each in spec.get(field_name) or [] if isinstance(each, Mapping))


def _serving_containers(template: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the containers that can serve while a Pod runs. Init containers that are not sidecars end earlier."""
    spec = template.get("spec") or {}
    sidecars = [each for each in spec.get("initContainers") or [] if _within(each, "restartPolicy") == "Always"]
    yield from (each for each in (*(spec.get("containers") or []), *sidecars) if isinstance(each, Mapping))


def _pool(given: Object) -> Pool:
    labels = _texts(_within(given.body, "spec", "podTemplate", "metadata", "labels"))
    if _within(given.body, "spec", "containers", "mode") == CONTAINERS_KUBERNETES:
        labels[CONTAINERS_LABEL] = CONTAINERS_KUBERNETES
    return Pool(given.key[1], given.key[2], labels, _within(given.body, "spec", "paused"))


def _service(given: Object) -> Service:
    spec, status = given.body.get("spec") or {}, _within(given.body, "status", "loadBalancer", "ingress") or []
    wanted = [
        spec.get("clusterIP"),
        *(spec.get("clusterIPs") or []),
        *(spec.get("externalIPs") or []),
        spec.get("loadBalancerIP"),
        *(each.get("ip") for each in status),
    ]
    texts = {each for each in wanted if isinstance(each, str) and each not in {"", "None"}}
    try:
        return Service(given.key[1], _texts(spec.get("selector")), blocks(sorted(texts)))
    except ValueError as error:
        raise Malformed(f"{title_of(given.key)}: {error}; correct the addresses of the Service") from None


NAMESPACE_VARIABLES = frozenset({"OSTLER_NAMESPACE", "OSTLER_ELEVATED_NAMESPACE"})
"""Variables of the processes of Ostler that name a namespace of runner Pods."""


def _runner_namespaces(given: Object) -> list[str]:
    """Return the namespaces of runner Pods that an object names.

    The runner Pods of a pool are in the namespace of the pool's object.
    """
    return [given.key[1]] if given.key[0] == POOL_KIND else _read_namespaces(given)


def _read_namespaces(given: Object) -> list[str]:
    """Return the namespaces that an object names in `OSTLER_NAMESPACE` and `OSTLER_ELEVATED_NAMESPACE`.

    A ConfigMap or a container has these variables of a process. An empty variable names no namespace.
    """
    found: list[str | None] = []
    if given.body["kind"] == "ConfigMap":
        found += [value for key, value in _texts(given.body.get("data")).items() if key in NAMESPACE_VARIABLES]
    for container in _containers(_template(given) or {}):
        variables = container.get("env") or []
        found += [each.get("value") for each in variables if each["name"] in NAMESPACE_VARIABLES]
    return [name for name in found if name]


def _annotated_addresses(policies: Iterable[Object], annotation: str) -> Addresses:
    found = Addresses()
    for each in policies:
        text = _texts(_metadata(each).get("annotations")).get(annotation, "")
        try:
            found = found.union(blocks(part.strip() for part in text.split(",") if part.strip()))
        except ValueError as error:
            raise Malformed(
                f"{title_of(each.key)}: annotation {annotation}: {error}; write blocks such as 10.1.0.0/16, separated "
                "by commas"
            ) from None
    return found
