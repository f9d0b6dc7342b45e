"""Creation of objects on the server: defaults, first status, admission."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from lab.apiserver import pods, rules, schema
from lab.apiserver.kinds import DEFINITION, EVENT, NAMESPACE, NODE, POD, SECRET, Json, Kind
from lab.apiserver.refusals import invalid
from lab.apiserver.store import Store

_OPTIONAL = ("labels", "annotations", "finalizers", "ownerReferences")
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def prepare(kind: Kind, body: Json, *, namespace: str, store: Store) -> Json:
    """Return the object to store for the body of a creation. Raises `Refused`."""
    given: Json = body.get("metadata") or {}
    metadata: Json = {"name": given.get("name") or ""}
    if namespace:
        metadata["namespace"] = namespace
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
    metadata |= {key: given[key] for key in _OPTIONAL if given.get(key)}
    if kind.generation:
        metadata["generation"] = 1
    content = {key: value for key, value in body.items() if key not in {"kind", "apiVersion", "metadata"}}
    content = {"metadata": metadata, **content}
    if kind.custom:
        content = shape(kind, content)
        content.pop("status", None)
    elif kind == POD:
        content = pods.prepare(content, store=store)
    elif kind == NODE:
        spec = content.get("spec") or {}
        content["spec"] = {**spec, "taints": [*(spec.get("taints") or ()), _NOT_READY]}
        content.setdefault("status", {})
    elif kind == NAMESPACE:
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
        content |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    elif kind in _FURTHER:
        content = _FURTHER[kind](content)
    if causes := [*rules.of_metadata(metadata), *problems(kind, content)]:
        raise invalid(kind, metadata["name"], causes)
    return content


def shape(kind: Kind, content: Json) -> Json:
    """Return a custom resource without unknown fields and with the defaults of its schema."""
    shaped: Json = schema.shape(kind.schema, content)
    return {"metadata": content["metadata"], **shaped}


def problems(kind: Kind, content: Json) -> list[Json]:
    """Return a cause for each rule that an object breaks. Its metadata are not checked."""
    if kind.custom:
        return list(schema.problems(kind.schema, content, ""))
    return list(pods.problems(content)) if kind == POD else []


def timestamp(*, ahead: float = 0) -> str:
    """Return the time `ahead` seconds from now in the format of Kubernetes."""
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(content: Json) -> Json:
    return content | {"deprecatedSource": {}, "deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None}


def _definition(content: Json) -> Json:
    return content | {"status": _accepted(content["spec"])}


def _secret(content: Json) -> Json:
    """Return a new Secret. The values of `stringData` become values of `data`."""
    texts: Json = content.pop("stringData", None) or {}
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    data = {**(content.get("data") or {}), **encoded}
    return {**content, **({"data": data} if data else {}), "type": content.get("type") or "Opaque"}


def _accepted(spec: Json) -> Json:
    """Return the status of a definition whose kind is served."""

    def condition(kind: str, reason: str, message: str) -> Json:
        said: dict[str, Any] = {"type": kind, "status": "True", "lastTransitionTime": timestamp()}
        return said | {"reason": reason, "message": message}

    return {
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": spec["names"],
        "storedVersions": [each["name"] for each in spec["versions"] if each.get("storage")],
    }


_FURTHER: dict[Kind, Callable[[Json], Json]] = {EVENT: _event, DEFINITION: _definition, SECRET: _secret}
"""Functions that return the new object of a kind with its defaults and its first status."""
