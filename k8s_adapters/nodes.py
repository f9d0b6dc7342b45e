"""Nodes as the autoscaler counts them, and what a Pod of a pool asks of one.

A node's object is mostly images and addresses: the typed decoder skips them. The list is read from the API server's
cache: a second too old does no harm here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.client import Json, KubeClient
from k8s_adapters.pools import PoolSeen
from k8s_adapters.retry import RetryPolicy
from k8s_adapters.runners import build_pod
from ostler.errors import Retryable
from rules.fleets import NOTHING, Fleet, Node, Size, Taint, Toleration

_MIB = 1024 * 1024
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_CORDONED = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a Pod of a pool asks of the nodes: how much, which, and what it tolerates there."""

    size: Size
    fleet: Fleet
    tolerations: tuple[Toleration, ...]


def list_nodes(client: KubeClient, *, policy: RetryPolicy | None = None) -> list[Node]:
    """Return all nodes. Raises `Retryable` when they cannot be had, `Forbidden` when we may not see them."""
    page = client.get("/api/v1/nodes", query={"resourceVersion": "0"}, policy=policy, decode=_DECODER.decode)
    if isinstance(page.items, msgspec.UnsetType):
        raise Retryable("the list of nodes came without its items")
    return [_read(item) for item in page.items or ()]


def needs_of(pool: PoolSeen) -> Needs:
    """Return what a Pod of this pool asks of the nodes, its overlay and the poller included.

    An overlay that may not be is left out: nothing of it is known to have the right shape.
    """
    if pool.problem is not None:
        pool = replace(pool, pod_template=None)
    pod = build_pod(pool=pool, name="any", attempt="any", dispatch_url="", audience="")
    spec: Json = pod["spec"]
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    size = _sum(_requests(each) for each in (*spec["containers"], *sidecars))
    overhead = spec.get("overhead") or {}
    selector = {str(key): str(value) for key, value in (spec.get("nodeSelector") or {}).items()}
    tolerations = tuple(_toleration(each) for each in spec.get("tolerations") or () if isinstance(each, dict))
    return Needs(size + _size(overhead.get("cpu"), overhead.get("memory")), Fleet.of(selector), tolerations)


def _sum(sizes: Iterable[Size]) -> Size:
    return sum(sizes, start=NOTHING)


def _requests(container: Json) -> Size:
    """Return what a container requests; a limit alone is a request too."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return _size(asked.get("cpu"), asked.get("memory"))


def _size(cpu: Any, memory: Any) -> Size:
    return Size(math.ceil(_amount(cpu) * 1000), math.ceil(_amount(memory) / _MIB))


def _amount(quantity: Any) -> Decimal:
    """Return a quantity in its unit; 0 for what is none: the API server refuses such a Pod anyway."""
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
    labels: dict[str, str] | None = None


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str | None = None


class _Spec(msgspec.Struct):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


class _Page(msgspec.Struct):
    """A list; null is how an empty one may be written, and without items it is none."""

    items: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET


_DECODER = msgspec.json.Decoder(_Page)


def _read(item: _Item) -> Node:
    spec, status = item.spec or _Spec(), item.status or _Status()
    allocatable = status.allocatable or {}
    ready = any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())
    taints = tuple(
        Taint(each.key, each.value or "", each.effect)
        for each in spec.taints or ()
        if each.effect in _KEEPS_AWAY and each.key != _CORDONED
    )
    return Node(
        labels=item.metadata.labels or {},
        usable=ready and not spec.unschedulable,
        allocatable=Size(
            math.floor(_amount(allocatable.get("cpu")) * 1000), math.floor(_amount(allocatable.get("memory")) / _MIB)
        ),
        taints=taints,
    )
