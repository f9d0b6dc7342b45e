"""Queries for runner Pods: lists of Pods, failed Pods, and one Pod with its claims and their events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.claims import claim_events
from models.browse.page import Order, Page, read
from models.browse.timeline import Moment, in_order, with_deliveries
from models.claims import pod_ends
from models.db.sql import text
from models.pools import pod_lists
from rules.claims.hook_pods import HookPod, read_all
from rules.claims.pod_ends import describe

STARTING = "starting"
"""State of a listed Pod that has not polled yet."""

MOST_CLAIMS = 100
MOST_EXECUTIONS = 100

_COLUMNS = """
    p.id, p.namespace, p.name, p.uid, p.pool_id, (SELECT name FROM pools WHERE id = p.pool_id) AS pool, p.created_at,
    p.first_polled_at, p.polled_at, p.poller_ended_at, p.terminal_at AS over_at, p.node_gone_at, p.gone_at,
    CASE WHEN CAST(:seen AS bigint[]) IS NULL THEN p.last_node END AS last_node,
    CASE WHEN pod_end.pod_over IS NOT NULL THEN p.hook_pods END AS hook_pods, pod_end.*
"""
"""Columns of a Pod. Its hook Pods are hidden from the same readers as its end: they show the jobs of other accounts."""


_LISTED = """
    t.id, t.namespace, t.name, t.uid, t.pool_id, (SELECT name FROM pools WHERE id = t.pool_id) AS pool, t.created_at,
    t.first_polled_at, t.polled_at, t.terminal_at AS over_at, t.node_gone_at, t.gone_at,
    CASE WHEN t.gone_at IS NOT NULL THEN 'gone' WHEN t.node_gone_at IS NOT NULL THEN 'node gone'
         WHEN t.terminal_at IS NOT NULL THEN 'over' WHEN c.purpose = 'retire' THEN 'retiring'
         WHEN c.id IS NOT NULL THEN c.state
         WHEN t.charged_account_id IS NOT NULL OR t.poller_ended_at IS NOT NULL THEN 'ending'
         WHEN t.first_polled_at IS NULL THEN 'starting' ELSE 'free' END AS state,
    c.id AS claim_id, c.purpose, c.job_id, pod_end.*
"""
"""Columns of a listed Pod. Its state is that of its row and its live claim. Only the reconciler counts warm Pods."""

_END = f"JOIN LATERAL (SELECT {pod_ends.COLUMNS} FROM (SELECT t.*) p) pod_end ON true"
"""SQL join that adds the end of a Pod `t` as `pod_end`."""


@dataclass(frozen=True, slots=True)
class PodStory:
    """A Pod with its claims, the events of these claims, the jobs that its runner began to execute, and its hook Pods.

    Claims, events, hook Pods and the timeline begin with the oldest entry, the jobs with the newest.
    """

    pod: Row[Any]
    claims: Sequence[Row[Any]]
    events: Sequence[Row[Any]]
    executions: Sequence[Row[Any]]
    hooks: Sequence[HookPod]
    timeline: Sequence[Moment]

    @property
    def end(self) -> str | None:
        """Return how the Pod ended, as far as this was observed, or None before its end."""
        return describe(pod_ends.end_of(self.pod), pod="it")


def told(story: PodStory) -> dict[str, Any]:
    """Return a Pod with its story as the commands and the API show it."""
    return {
        **story.pod._mapping,
        "hook_pods": [each.packed() for each in story.hooks],
        "end": story.end,
        "claims": [dict(each._mapping) for each in story.claims],
        "events": [dict(each._mapping) for each in story.events],
        "executions": [dict(each._mapping) for each in story.executions],
        "timeline": [asdict(each) for each in story.timeline],
    }


@dataclass(frozen=True, slots=True)
class PodFilter:
    """Filter for Pods. None in a field selects all values of that field."""

    pool_id: int | None = None
    gone: bool | None = None
    since: datetime | None = None
    failed: bool | None = None


_FAILED = """
    t.node_gone_at IS NOT NULL OR coalesce(t.runner_exit_code, 0) <> 0 OR coalesce(t.poller_exit_code, 0) <> 0
    OR coalesce(t.exit_reason, 'Completed') <> 'Completed' OR t.events_read_at IS NOT NULL
    OR (coalesce(t.deleted_first, false) AND NOT pod_end.deleted_by_ostler)
"""
"""SQL condition on a Pod with `_END`: its node is gone, a container failed, or it ended before its job or by others.

Ostler reads the Events of a Pod only if the Pod ended before its job.
"""


def list_pods(
    db: Connection, wanted: PodFilter, *, order: Order = Order.NEWEST, after: int | None = None, limit: int
) -> Page:
    """Return one page of Pods with their live claims, in the order of their creation."""
    conditions: dict[str, Any] = {
        "t.pool_id = :value": wanted.pool_id,
        "t.gone_at IS NULL": True if wanted.gone is False else None,
        "t.gone_at IS NOT NULL": True if wanted.gone else None,
        "t.created_at >= :value": wanted.since,
        _FAILED: True if wanted.failed else None,
        f"NOT ({_FAILED})": True if wanted.failed is False else None,
    }
    return read(
        db,
        _LISTED,
        source=f"runner_pods t LEFT JOIN claims c ON c.pod_uid = t.uid AND c.ended_at IS NULL {_END}",
        conditions=conditions,
        order=order,
        after=after,
        limit=limit,
    )


def shown(db: Connection, pods: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """Return listed Pods as the commands, the API and the pages show them.

    `reason` says why a starting Pod does not poll yet, according to the last shared list of its pool. It is None for
    all other Pods, and for Pods that are not in the list. `end` says how a Pod ended, or is None before its end.
    """
    pools = {(pod.namespace, pod.pool) for pod in pods if pod.state == STARTING}
    listed = {
        each["uid"]: each
        for namespace, pool in sorted(pools)
        for each in (pod_lists.seen(db, namespace=namespace, pool=pool) or (None, ()))[1]
    }
    return [
        {
            **pod._mapping,
            "reason": _reason(listed.get(pod.uid)) if pod.state == STARTING else None,
            "end": describe(pod_ends.end_of(pod), pod="it"),
        }
        for pod in pods
    ]


def count_failed(db: Connection, *, since: datetime) -> int:
    """Return the number of failed Pods that are gone since a time, and of Pods on gone nodes."""
    found: int = db.execute(
        text(f"""
            SELECT count(*) FROM (
                SELECT * FROM runner_pods WHERE gone_at >= :since
                UNION ALL
                SELECT * FROM runner_pods WHERE node_gone_at IS NOT NULL AND gone_at IS NULL
            ) t {_END} WHERE {_FAILED}
        """),
        {"since": since},
    ).scalar_one()
    return found


def _reason(pod: Mapping[str, Any] | None) -> str | None:
    if pod is None:
        return None
    if (obstacle := pod_lists.obstacle(pod)) is not None:
        return obstacle
    return "it has no node yet" if pod["node"] is None else f"its containers start on node {pod['node']}"


def pod_story(db: Connection, name_or_uid: str, *, accounts: Collection[int] | None = None) -> PodStory | None:
    """Return the Pod with this UID. If no Pod has this UID, return the newest Pod with this name, or None.

    If `accounts` is given, only claims of these accounts are read. The result is then None if the Pod has no claim of
    these accounts.
    """
    seen = {"it": name_or_uid, "seen": None if accounts is None else list(accounts)}
    of_uid, of_name = (
        f"SELECT {_COLUMNS} FROM runner_pods p {pod_ends.SEEN} WHERE p.{column} = :it ORDER BY p.id DESC LIMIT 1"
        for column in ("uid", "name")
    )
    pod = db.execute(text(of_uid), seen).one_or_none() or db.execute(text(of_name), seen).one_or_none()
    if pod is None:
        return None
    claims = db.execute(
        text("""
            SELECT id, purpose, state, job_id, runner_name, created_at, delivered_at, ended_at, end_reason,
                   release_reason, last_error
            FROM claims
            WHERE runner_pod_id = :id
              AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
            ORDER BY id LIMIT :most
        """),
        {"id": pod.id, "most": MOST_CLAIMS, "accounts": None if accounts is None else list(accounts)},
    ).all()
    if accounts is not None and not claims:
        return None
    events = claim_events(db, [claim.id for claim in claims])
    executions = db.execute(
        text("""
            SELECT job_id, claim_id, runner_name, started_at, ended_at FROM executions
            WHERE claim_id = ANY(:claims)
              AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
            ORDER BY id DESC LIMIT :most
        """),
        {
            "claims": [claim.id for claim in claims],
            "most": MOST_EXECUTIONS,
            "accounts": None if accounts is None else list(accounts),
        },
    ).all()
    hooks = read_all(pod.hook_pods)
    if accounts is not None:  # such a caller sees no node
        hooks = [replace(each, node=None) for each in hooks]
    jobs = {each.job_id for each in (*claims, *executions) if each.job_id is not None}
    timeline = with_deliveries(db, _timeline(pod, events), job_ids=jobs)
    return PodStory(pod, claims, events, executions, hooks, timeline)


def _timeline(pod: Row[Any], events: Sequence[Row[Any]]) -> Sequence[Moment]:
    times = {
        "created": pod.created_at,
        "first poll": pod.first_polled_at,
        "poller ended": pod.poller_ended_at,
        "deletion requested": pod.deletion_at,
        "over": pod.over_at,
        "node gone": pod.node_gone_at,
        "gone": pod.gone_at,
    }
    return in_order(
        [
            *(Moment.of_event(f"claim {event.claim_id}", event) for event in events),
            *(Moment(at, "pod", None, what) for what, at in times.items() if at is not None),
        ]
    )
