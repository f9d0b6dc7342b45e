"""Nodes, as the last shared lists of Pods and the rows of runner Pods show them. Ostler stores no nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.pools import pod_lists
from rules.pools.starts import Trouble


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node with runner Pods. `name` is None for Pods that are in no list.

    `jobs` counts the Pods with a live job claim. `lost` counts the Pods whose node was found gone, first at
    `lost_since`.
    """

    name: str | None
    pods: int
    jobs: int
    lost: int
    lost_since: datetime | None


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes with lost Pods first, the pools whose Pods no node accepts, and the pools without a list of Pods."""

    nodes: Sequence[NodeSeen]
    full: Sequence[Row[Any]]
    unlisted: Sequence[str]


def read_nodes(db: Connection) -> Nodes:
    """Return the nodes that have runner Pods."""
    pools = db.execute(
        text(
            "SELECT id, namespace, name, start_trouble, start_detail FROM pools WHERE deleted_at IS NULL ORDER BY name"
        )
    ).all()
    lists = pod_lists.nodes_of_pods(db)
    places = {uid: node for share in lists.values() for uid, node in share}
    rows = db.execute(
        text("""
            SELECT p.uid, p.node_gone_at, c.id IS NOT NULL AS job
            FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL AND c.purpose = 'job'
            WHERE p.gone_at IS NULL AND p.uid IS NOT NULL AND (p.uid = ANY(:uids) OR p.node_gone_at IS NOT NULL)
        """),
        {"uids": list(places)},
    )
    found: dict[str | None, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        found[places.get(row.uid)].append(row)
    nodes = [_node(name, pods) for name, pods in found.items()]
    return Nodes(
        sorted(nodes, key=lambda each: (each.lost_since is None, each.name is None, each.name or "")),
        [pool for pool in pools if pool.start_trouble == Trouble.UNSCHEDULABLE],
        [pool.name for pool in pools if (pool.namespace, pool.name) not in lists],
    )


def lost_pods(db: Connection) -> int:
    """Return the number of Pods whose node was found gone."""
    found: int = db.execute(
        text("SELECT count(*) FROM runner_pods WHERE node_gone_at IS NOT NULL AND gone_at IS NULL")
    ).scalar_one()
    return found


def _node(name: str | None, pods: Sequence[Row[Any]]) -> NodeSeen:
    lost = [pod.node_gone_at for pod in pods if pod.node_gone_at is not None]
    return NodeSeen(name, len(pods), sum(pod.job for pod in pods), len(lost), min(lost, default=None))
