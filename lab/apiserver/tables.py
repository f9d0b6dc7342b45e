"""Tables, which `kubectl get` prints: one row of cells for each object.

A custom resource has the columns of its definition. Their paths may name fields, and choose an item of a list by the
value of one of its fields. Pods have the columns of the real server. Other resources have a name and an age.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lab.apiserver.kinds import POD, Json, Kind
from lab.apiserver.store import Stored

_NAME: Json = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
_AGE: Json = {"name": "Age", "type": "string", "jsonPath": ".metadata.creationTimestamp", "date": True}
_OF_PODS: tuple[Json, ...] = (
    {"name": "Ready", "type": "string"},
    {"name": "Status", "type": "string"},
    {"name": "Restarts", "type": "string"},
    _AGE,
    {"name": "IP", "type": "string", "jsonPath": ".status.podIP", "priority": 1},
    {"name": "Node", "type": "string", "jsonPath": ".spec.nodeName", "priority": 1},
)
_STEP = re.compile(r"""\.(?P<field>[\w-]+)|\[\?\(@\.(?P<key>\w+)==["'](?P<value>[^"']*)["']\)\]""")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def table(kind: Kind, metadata: Json, page: Sequence[Stored]) -> bytes:
    """Return the JSON of a table with one row for each object. `metadata` is that of the list."""
    columns = _OF_PODS if kind == POD else kind.columns or (_AGE,)
    definitions = [_NAME]
    for column in columns:
        shown = {key: column[key] for key in ("name", "type", "priority") if key in column}
        shown["type"] = "string" if _is_date(column) else column["type"]
        definitions.append({"format": "", "description": "", "priority": 0} | shown)
    rows = [
        {"cells": [stored.metadata["name"], *_cells(columns, stored)], "object": json.loads(stored.partial)}
        for stored in page
    ]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return json.dumps({**head, "columnDefinitions": definitions, "rows": rows}).encode()


def _cells(columns: Sequence[Json], stored: Stored) -> list[Any]:
    own = _of_pod(stored.content) if stored.kind == POD else {}
    cells: list[Any] = []
    for column in columns:
        if column["name"] in own:
            cells.append(own[column["name"]])
            continue
        value = _at(stored.content, column["jsonPath"])
        if _is_date(column) and isinstance(value, str):
            cells.append(age(datetime.fromisoformat(value), now=datetime.now(UTC)))
        else:
            cells.append(json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else value)
    return cells


def _is_date(column: Json) -> bool:
    return bool(column.get("date")) or column["type"] == "date"


def _of_pod(content: Json) -> Json:
    status: Json = content.get("status") or {}
    states = status.get("containerStatuses") or []
    gone = content["metadata"].get("deletionTimestamp")
    phase = str(status.get("phase", "Unknown"))
    return {
        "Ready": f"{sum(_is_ready(each) for each in states)}/{len(content['spec'].get('containers') or ())}",
        "Status": "Terminating" if gone else {"Succeeded": "Completed"}.get(phase, phase),
        "Restarts": str(sum(each.get("restartCount", 0) for each in states)),
    }


def _is_ready(container: Json) -> bool:
    return bool(container.get("ready")) and "running" in (container.get("state") or {})


def _at(content: Any, path: str) -> Any:
    """Return the value at a path, or None."""
    for step in _STEP.finditer(path):
        if step["field"] is not None:
            content = content.get(step["field"]) if isinstance(content, dict) else None
        else:
            items = content if isinstance(content, list) else []
            content = next((each for each in items if str(each.get(step["key"])) == step["value"]), None)
    return content


def age(since: datetime, *, now: datetime) -> str:
    """Return the time since `since` in its largest unit, for example 90 minutes as 1h."""
    seconds = max(0, int((now - since).total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"
