"""The nodes of the cluster as this process last listed them, shared by the autoscaler and the reconciler.

They are listed once in ten seconds at most. When the list cannot be had nothing is known of any node, so that nobody
is retired or replaced for it (L8). `gone_now` does not use this list: it asks again, right before a Pod is deleted.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import structlog

from k8s_adapters.client import KubeClient
from k8s_adapters.nodes import NodeSeen, get_node, list_nodes
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.sweeps.nodes import Gone, judge_node, nothing_forced
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.runtime import Runtime

EVERY = 10.0
"""Seconds between two lists at least."""

ASKED = 10
"""Nodes that were not in the list and are asked for by name, of one list at most: others are asked for after the next.
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """A list of nodes, None while it is not there, and what was answered for names that were not in it."""

    at: float
    nodes: Mapping[str, NodeSeen] | None = None
    asked: dict[str, NodeSeen | None] = field(default_factory=dict)


_known: weakref.WeakKeyDictionary[KubeClient, _Known] = weakref.WeakKeyDictionary()
_asking = threading.Lock()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The nodes on which some Pods are, in one check. `known`: those of which anything is known at all.

    `gone`: those that are gone, and why.
    """

    known: frozenset[str] = frozenset()
    cordoned: frozenset[str] = frozenset()
    gone: Mapping[str, Gone] = field(default_factory=dict)


def listed_nodes(rt: Runtime) -> Mapping[str, NodeSeen] | None:
    """Return the nodes by name, at most `EVERY` seconds old; None when they cannot be had."""
    return _listed(rt).nodes


def _listed(rt: Runtime) -> _Known:
    kube = rt.kube
    now = time.monotonic()
    with _asking:
        known = _known.get(kube)
        if known is not None and now - known.at < EVERY:
            return known
        known = _known[kube] = _Known(now)  # callers that come meanwhile do not wait
    try:
        known.nodes = {node.name: node for node in list_nodes(kube, policy=calls(SWEEP_ROW))}
    except UpstreamError as error:
        log.warning("nodes.not_listed", error=meaning_of(error))
    return known


def observe_nodes(rt: Runtime, names: Collection[str]) -> NodeSnapshot:
    """Return what is known of these nodes. One that is not in the list is gone only when a GET by name says so."""
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
    """Ask for a node that was not in the list; False when that was not answered, or too many were asked for."""
    if len(known.asked) >= ASKED:
        return False
    try:
        known.asked[name] = get_node(rt.kube, name=name, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("node.not_read", node=name, error=meaning_of(error))
        return False
    return True


def gone_now(rt: Runtime, name: str) -> Gone | None:
    """Return why a node is gone, by a new list and a GET by its name; None while it may live.

    Also None while more than half of all nodes are unreachable (L8). Raises what the client raises.
    """
    listed = {node.name: node for node in list_nodes(rt.kube, policy=calls(SWEEP_ROW))}
    if nothing_forced(node.health for node in listed.values()):
        log.warning("nodes.most_unreachable", nodes=len(listed))
        return None
    node = get_node(rt.kube, name=name, policy=calls(SWEEP_ROW))
    if node is None and name in listed:
        return None  # two answers that contradict each other, or a deletion of this moment
    return judge_node(None if node is None else node.health, lost_after=rt.settings.node_lost_after, now=utcnow())


def forget() -> None:
    """List the nodes again at the next check. For tests, in which ten seconds are long."""
    with _asking:
        _known.clear()
