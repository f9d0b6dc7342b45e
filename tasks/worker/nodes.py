"""Cached list of the cluster's nodes in this process. The autoscaler and the reconciler share it.

The cached list is at most ten seconds old. If the list fails, the state of every node is unknown. A reconcile then
retires no Pod because of a cordoned node. A Pod counts as a Pod on a gone node only if its row already says so (law
L8). `gone_now` does not use this cache: it reads the nodes again before a Pod on a gone node is retired or deleted by
force.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import structlog

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.nodes import NodeSeen, get_node, list_nodes
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.sweeps.nodes import Gone, Ready, judge_node, nothing_forced
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.runtime import Runtime

EVERY = 10.0
"""Shortest time in seconds between two lists."""

ASKED = 10
"""Upper bound on nodes that are read by name after one list, because the list lacks them.

Further nodes wait for the next list.
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """One list of nodes.

    `nodes`: the listed nodes by name, or None until the list arrives. `asked`: for names that the list lacks, the node
    that a GET returned, or None if there is no such node.
    """

    at: float
    nodes: Mapping[str, NodeSeen] | None = None
    asked: dict[str, NodeSeen | None] = field(default_factory=dict)


_known: weakref.WeakKeyDictionary[KubeClient, _Known] = weakref.WeakKeyDictionary()
_asking = threading.Lock()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """State of the nodes that `observe_nodes` was asked about.

    `known`: nodes whose state is known. `cordoned`: nodes that accept no new Pods. `gone`: gone nodes, with the reason.
    """

    known: frozenset[str] = frozenset()
    cordoned: frozenset[str] = frozenset()
    gone: Mapping[str, Gone] = field(default_factory=dict)


def listed_nodes(rt: Runtime) -> Mapping[str, NodeSeen] | None:
    """Return the nodes by name, at most `EVERY` seconds old.

    Return None if the last list failed, or if another thread is still waiting for the list.
    """
    return _listed(rt).nodes


def _listed(rt: Runtime) -> _Known:
    kube = rt.kube
    now = time.monotonic()
    with _asking:
        known = _known.get(kube)
        if known is not None and now - known.at < EVERY:
            return known
        known = _known[kube] = _Known(now)  # callers that arrive meanwhile do not wait
    try:
        known.nodes = {node.name: node for node in list_nodes(kube, policy=calls(SWEEP_ROW))}
    except UpstreamError as error:
        log.warning("nodes.not_listed", error=meaning_of(error))
    return known


def observe_nodes(rt: Runtime, names: Collection[str]) -> NodeSnapshot:
    """Return the state of the nodes with the given names.

    If the list lacks a node, the node counts as deleted only if a GET by name finds no such node. If the nodes were not
    listed, or if the GET failed or was not made, the state is unknown, and the result does not contain the node.
    """
    if not names:
        return NodeSnapshot()
    known = _listed(rt)
    if known.nodes is None:
        return NodeSnapshot()
    found: dict[str, NodeSeen | None] = {}
    for name in sorted(names):
        if name in known.nodes:
            found[name] = known.nodes[name]
        elif name in known.asked or _ask(rt, known, name):
            found[name] = known.asked[name]
    lost_after, now = rt.settings.node_lost_after, utcnow()
    judged = {
        name: judge_node(None if node is None else node.health, lost_after=lost_after, now=now)
        for name, node in found.items()
    }
    return NodeSnapshot(
        known=frozenset(found),
        cordoned=frozenset(name for name, node in found.items() if node is not None and node.cordoned),
        gone={name: gone for name, gone in judged.items() if gone is not None},
    )


def _ask(rt: Runtime, known: _Known, name: str) -> bool:
    """Read a node that the list lacks.

    Return True if the node was read; False if the read failed, or if `ASKED` nodes were read after this list already.
    """
    if len(known.asked) >= ASKED:
        return False
    try:
        known.asked[name] = get_node(rt.kube, name=name, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("node.not_read", node=name, error=meaning_of(error))
        return False
    return True


@dataclass(frozen=True, slots=True)
class NodeNow:
    """A node that was just read. Both fields are empty if the evidence is unclear.

    `gone`: why the node is gone, or None. `reports`: True if the kubelet of the node reports that it is Ready.
    """

    gone: Gone | None = None
    reports: bool = False


def gone_now(rt: Runtime, name: str) -> NodeNow:
    """Return whether a node is gone, or whether its kubelet reports.

    The nodes are listed, and the node with this name is read again. The evidence is unclear if the list is empty or
    contradicts the GET, and while more than half of all nodes are unreachable (law L8). Raises what the Kubernetes
    client raises.
    """
    listed = {node.name: node for node in list_nodes(rt.kube, policy=calls(SWEEP_ROW))}
    if nothing_forced(node.health for node in listed.values()):
        log.warning(
            "nodes.list_not_trusted",
            node=name,
            nodes_listed=len(listed),
            why="no node is listed, or more than half of the listed nodes are unreachable",
        )
        return NodeNow()
    node = get_node(rt.kube, name=name, policy=calls(SWEEP_ROW))
    if node is None and name in listed:
        return NodeNow()  # the two answers contradict each other, or the node was deleted between them
    health = None if node is None else node.health
    return NodeNow(
        gone=judge_node(health, lost_after=rt.settings.node_lost_after, now=utcnow()),
        reports=health is not None and health.ready is Ready.TRUE,
    )


def clear() -> None:
    """Drop the cached list, so that the next check lists the nodes again. Only tests call this function."""
    with _asking:
        _known.clear()
