"""Kubernetes Events about pools and Pods, which operators read with `kubectl describe`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.names import API_VERSION, KIND
from rules.upstream.retry import RetryPolicy

CONTROLLER = "ostler.dev/worker"
_API = "events.k8s.io/v1"
_LONGEST_NOTE = 1024
_LONGEST_INSTANCE = 128

Type = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


def pool_of(*, namespace: str, name: str, uid: str) -> Regarding:
    """Return a RunnerPool as the subject of an Event."""
    return Regarding(API_VERSION, KIND, namespace, name, uid)


def pod_of(*, namespace: str, name: str, uid: str) -> Regarding:
    """Return a Pod as the subject of an Event."""
    return Regarding("v1", "Pod", namespace, name, uid)


@dataclass(frozen=True, slots=True)
class EventNote:
    """One Event. `reason` is a word in CamelCase. `note` is a sentence, which is cut off after 1,024 characters."""

    regarding: Regarding
    type: Type
    reason: str
    note: str
    at: datetime


def event_manifest(event: EventNote, *, instance: str) -> Json:
    """Return an Event as JSON. `instance` is the name of the process that reports the Event."""
    about = event.regarding
    return {
        "apiVersion": _API,
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{secrets.token_hex(8)}", "namespace": about.namespace},
        "eventTime": event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:_LONGEST_INSTANCE],
        "action": event.reason,
        "reason": event.reason,
        "regarding": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "note": event.note[:_LONGEST_NOTE],
        "type": event.type,
    }


def write_event(client: KubeClient, event: EventNote, *, instance: str, policy: RetryPolicy | None = None) -> None:
    """Create an Event. Raises the errors of `KubeClient.request`.

    The caller must work correctly even if the Event is not created.
    """
    path = f"/apis/{_API}/namespaces/{event.regarding.namespace}/events"
    client.request("POST", path, body=event_manifest(event, instance=instance), policy=policy)
