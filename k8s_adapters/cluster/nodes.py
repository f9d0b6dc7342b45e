"""Nodes of the cluster: health, cordons and capacity, and the resources that a Pod of a pool requests from a node.

Images and addresses are most of a node's JSON, so the typed decoder skips them. `list_nodes` reads from the API
server's cache, which might be out of date by a second or more. `get_node` reads the present state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.runners.runners import build_pod
from ostler.errors import Gone, Retryable
from rules.pools.fleets import NOTHING, Fleet, Needs, Node, Size, Taint, Toleration
from rules.pools.pool_spec import PoolSpec
from rules.sweeps.nodes import NodeHealth, Ready
from rules.upstream.retry import RetryPolicy

_MIB = 1024 * 1024
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_CORDONED = "node.kubernetes.io/unschedulable"
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_UNREACHABLE = "node.kubernetes.io/unreachable"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node. `room` contains what the autoscaler needs: labels, taints and allocatable resources."""

    name: str
    cordoned: bool
    health: NodeHealth
    room: Node


def list_nodes(client: KubeClient, *, policy: RetryPolicy | None = None) -> list[NodeSeen]:
    """Return all nodes.

    Raises `Retryable` if the list cannot be read or is incomplete. Raises `Forbidden` without the right to list nodes.
    """
    page = client.get("/api/v1/nodes", query={"resourceVersion": "0"}, policy=policy, decode=_PAGES.decode)
    if isinstance(page.items, msgspec.UnsetType):
        raise Retryable("the answer to a list of nodes has no field `items`")
    if page.metadata is not None and page.metadata.following:
        raise Retryable("the API server returned only a part of the list of nodes")
    return [_read(item) for item in page.items or ()]


def get_node(client: KubeClient, *, name: str, policy: RetryPolicy | None = None) -> NodeSeen | None:
    """Return the present state of one node, or None if the API server says that no node has this name."""
    try:
        return _read(client.get(f"/api/v1/nodes/{name}", query={}, policy=policy, decode=_ITEMS.decode))
    except Gone:
        return None


def needs_of(pool: PoolSpec) -> Needs:
    """Return the requirements of the Pods of a pool: of all containers and sidecars, with the pool's overlay.

    If the pool has container jobs, the size includes the hook Pods that its account is charged for. Otherwise warm Pods
    could fill all nodes, and the hook Pods of their jobs would wait for each other to end.

    If the pool has a problem, its overlay is ignored, because the overlay might be invalid.
    """
    if pool.problem is not None:
        pool = replace(pool, pod_template=None)
    pod = build_pod(pool=pool, name="any", attempt="any", dispatch_url="", audience="")
    spec: Json = pod["spec"]
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    size = _sum(_requests(each) for each in (*spec["containers"], *sidecars))
    if pool.containers is not None and not pool.containers.shared:
        size += Size(pool.containers.vcpu_millicores, pool.containers.memory_mib).times(pool.containers.count)
    overhead = spec.get("overhead") or {}
    selector = {str(key): str(value) for key, value in (spec.get("nodeSelector") or {}).items()}
    tolerations = tuple(_toleration(each) for each in spec.get("tolerations") or () if isinstance(each, dict))
    return Needs(size + _size(overhead.get("cpu"), overhead.get("memory")), Fleet.of(selector), tolerations)


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, start=NOTHING)


def _requests(container: Json) -> Size:
    """Return the resource requests of a container.

    If a resource has a limit but no request, its limit is returned as its request.
    """
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return _size(asked.get("cpu"), asked.get("memory"))


def _size(cpu: Any, memory: Any) -> Size:
    return Size(math.ceil(_amount(cpu) * 1000), math.ceil(_amount(memory) / _MIB))


def _amount(quantity: Any) -> Decimal:
    """Return a quantity in its base unit.

    Return 0 if the quantity is invalid. The API server refuses a Pod with such a quantity.
    """
    if quantity is None:
        return Decimal(0)
    try:
        amount = Decimal(parse_quantity(quantity))  # type: ignore[no-untyped-call]
    except (ValueError, ArithmeticError):
        return Decimal(0)
    return amount if amount.is_finite() and amount > 0 else Decimal(0)


def _toleration(given: Json) -> Toleration:
    return Toleration(
        key=given.get("key"),
        operator=str(given.get("operator") or "Equal"),
        value=str(given.get("value") or ""),
        effect=given.get("effect"),
    )


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class _Taint(msgspec.Struct, rename="camel"):
    key: str
    effect: str
    value: str | None = None
    time_added: datetime | None = None


class _Spec(msgspec.Struct):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct):
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


class _ListMetadata(msgspec.Struct):
    following: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct):
    """A list of objects. If `items` is null, the list is empty. If `items` is missing, the answer is no list."""

    items: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET
    metadata: _ListMetadata | None = None


_PAGES = msgspec.json.Decoder(_Page)
_ITEMS = msgspec.json.Decoder(_Item)


def _read(item: _Item) -> NodeSeen:
    spec, status = item.spec or _Spec(), item.status or _Status()
    return NodeSeen(item.metadata.name, bool(spec.unschedulable), _health(spec, status), _room(item, spec, status))


def _readiness(status: _Status) -> _Condition:
    """Return the condition Ready. Its status is empty if the node has no such condition."""
    return next((each for each in status.conditions or () if each.type == "Ready"), _Condition("Ready", ""))


def _health(spec: _Spec, status: _Status) -> NodeHealth:
    ready = _readiness(status)
    taints = {each.key: each for each in spec.taints or ()}
    unreachable = taints.get(_UNREACHABLE)
    return NodeHealth(
        ready=Ready(ready.status) if ready.status in set(Ready) else None,
        ready_since=ready.last_transition_time,
        out_of_service=_OUT_OF_SERVICE in taints,
        tainted=unreachable is not None,
        tainted_since=None if unreachable is None else unreachable.time_added,
    )


def _room(item: _Item, spec: _Spec, status: _Status) -> Node:
    allocatable = status.allocatable or {}
    ready = _readiness(status)
    down = ready.status not in {Ready.TRUE, ""}
    taints = tuple(
        Taint(each.key, each.value or "", each.effect)
        for each in spec.taints or ()
        if each.effect in _KEEPS_AWAY and each.key != _CORDONED
    )
    return Node(
        labels=item.metadata.labels or {},
        usable=ready.status == Ready.TRUE and not spec.unschedulable,
        allocatable=Size(
            math.floor(_amount(allocatable.get("cpu")) * 1000), math.floor(_amount(allocatable.get("memory")) / _MIB)
        ),
        taints=taints,
        not_ready=down and not spec.unschedulable,
        not_ready_since=ready.last_transition_time if down else None,
    )
