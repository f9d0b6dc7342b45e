"""Kubernetes Events that other components wrote about a Pod or its owner."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from k8s_adapters.calls.client import Json, KubeClient
from rules.claims.pod_events import LONGEST_NOTE, LONGEST_WORD, PodEvent, one_line
from rules.upstream.retry import RetryPolicy

MOST = 100
"""Maximum number of Events that are read for one Pod."""


def list_pod_events(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> list[PodEvent]:
    """Return up to `MOST` Events about a Pod. Events that cannot be parsed are left out.

    The Events are selected by the name of the Pod, because the Events of the taint manager contain no UID. An Event
    with the UID of another Pod is left out. Raises the errors of `KubeClient.request`.
    """
    return list_events(client, kind="Pod", namespace=namespace, name=name, uid=uid, policy=policy)


def list_events(
    client: KubeClient, *, kind: str, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> list[PodEvent]:
    """Return up to `MOST` Events about an object of this kind, as `list_pod_events` does for a Pod."""
    found = client.request(
        "GET",
        f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
        query={"fieldSelector": f"regarding.kind={kind},regarding.name={name}", "limit": MOST},
        policy=policy,
    )
    items = found.get("items")
    events = (_read(each) for each in (items if isinstance(items, list) else []) if _is_about(each, uid))
    return [each for each in events if each is not None]


def _is_about(item: Any, uid: str) -> bool:
    regarding = item.get("regarding") if isinstance(item, dict) else None
    return isinstance(regarding, dict) and regarding.get("uid") in {None, "", uid}


def _read(item: Json) -> PodEvent | None:
    """Return an Event, or None if the Event has no reason.

    In Events of the older API, the name of the writer is in another field.
    """
    reason, action = _word(item.get("reason")), _word(item.get("action"))
    source = item.get("deprecatedSource")
    older = source.get("component") if isinstance(source, dict) else None
    note = item.get("note")
    if not reason:
        return None
    return PodEvent(
        reason=reason,
        component=_word(item.get("reportingController")) or _word(older) or "an unnamed component",
        note=one_line(note, longest=LONGEST_NOTE) if isinstance(note, str) else "",
        action=action or None,
        at=_at(item),
    )


def _word(value: Any) -> str:
    return one_line(value, longest=LONGEST_WORD) if isinstance(value, str) else ""


def _at(item: Json) -> datetime | None:
    """Return the time at which the Event last occurred, or None if it has no valid time."""
    series, metadata = item.get("series"), item.get("metadata")
    told = (
        series.get("lastObservedTime") if isinstance(series, dict) else None,
        item.get("deprecatedLastTimestamp"),
        item.get("eventTime"),
        metadata.get("creationTimestamp") if isinstance(metadata, dict) else None,
    )
    for each in told:
        if isinstance(each, str):
            try:
                at = datetime.fromisoformat(each)
            except ValueError:
                continue
            if at.tzinfo is not None:
                return at
    return None
