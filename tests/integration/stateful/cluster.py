"""A tiny cluster: Pods with a claim annotation that is compared before it is replaced, and their pollers.

It answers the calls of the real adapters, and fails at once if a call breaks a law.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeVar

from k8s_adapters.calls.retry import Answer
from k8s_adapters.names import (
    ATTEMPT_ANNOTATION,
    CLAIM_ANNOTATION,
    DIGEST_ANNOTATION,
    OWNER_LABEL,
    POOL_LABEL,
    UNCLAIMED,
)
from ostler.errors import Gone, Invalid
from tests.integration.stateful.steps import outside

NAMESPACE = "runners"
Json = dict[str, Any]
T = TypeVar("T")


@dataclass
class Pod:
    """One runner Pod. `jits` are the JITs that its poller wrote. A second JIT would be a second runner.

    A Pod of a persistent pool writes a registration in the same way, at the time `given_at`, and uses it once.
    """

    name: str
    uid: str
    pool: str
    created_at: datetime
    phase: str = "Running"
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    poll_no: int = 0
    jits: list[str] = field(default_factory=list)
    given_at: datetime | None = None
    registered: bool = False
    poller_exit: int | None = None

    @property
    def alive(self) -> bool:
        return self.phase == "Running"

    @property
    def polls(self) -> bool:
        return self.alive and self.poller_exit is None

    @property
    def owner(self) -> int | None:
        label = self.labels.get(OWNER_LABEL)
        return None if label is None else int(label)

    @property
    def stamp(self) -> str:
        return self.annotations[CLAIM_ANNOTATION]

    def json(self) -> Json:
        ended = {} if self.poller_exit is None else {"terminated": {"exitCode": self.poller_exit}}
        return {
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "uid": self.uid,
                "labels": dict(self.labels),
                "annotations": dict(self.annotations),
                "creationTimestamp": self.created_at.isoformat(),
            },
            "status": {"phase": self.phase, "containerStatuses": [{"name": "poller", "state": ended}]},
        }


class Cluster:
    """The methods `request` and `get` of the adapters' `KubeClient`. `deleting` checks a deletion before it is done."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.late: list[Callable[[], object]] = []
        self.unstamps_compare = True
        self.deleting: Callable[[Pod], None] = lambda _pod: None
        self.timing = SimpleNamespace(clock=lambda: 0.0, sleep=lambda _seconds: None)

    def add_pod(self, pool: str, *, number: int, now: datetime) -> Pod:
        pod = Pod(name=f"{pool}-{number:08x}", uid=f"uid-{number}", pool=pool, created_at=now)
        pod.labels = {POOL_LABEL: pool}
        pod.annotations = {CLAIM_ANNOTATION: UNCLAIMED, ATTEMPT_ANNOTATION: "a", DIGEST_ANNOTATION: "hash"}
        self.pods[pod.name] = pod
        return pod

    def by_uid(self, uid: str) -> Pod | None:
        return next((pod for pod in self.pods.values() if pod.uid == uid), None)

    def call(self, what: str, apply: Callable[[], Any]) -> Any:
        return outside(what, apply, late=self.late.append)

    def request(self, method: str, path: str, *, body: Any = None, **_options: Any) -> Json:
        """Answer one call of an adapter."""
        kind, _, name = path.removeprefix(f"/api/v1/namespaces/{NAMESPACE}/").partition("/")
        if kind == "serviceaccounts":
            raise Gone(path)
        if not name:
            selector = str((_options.get("query") or {}).get("labelSelector", ""))
            return self.call(f"{method} pods", lambda: self._list(selector))  # type: ignore[no-any-return]
        answers = {"GET": self._get, "PATCH": self._patch, "DELETE": self._delete}
        return self.call(f"{method} {name}", lambda: answers[method](name, body))  # type: ignore[no-any-return]

    def get(self, path: str, *, decode: Callable[[bytes], T], query: Any = None, **_options: Any) -> T:
        """Answer a call whose body the adapter decodes."""
        return decode(json.dumps(self.request("GET", path, query=query)).encode())

    def _list(self, selector: str) -> Json:
        _, _, pool = selector.partition("=")
        return {"items": [pod.json() for pod in self.pods.values() if not pool or pod.pool == pool]}

    def _find(self, name: str) -> Pod:
        if name not in self.pods:
            raise Gone(name)
        return self.pods[name]

    def _get(self, name: str, _body: Any) -> Json:
        return self._find(name).json()

    def _delete(self, name: str, body: Any) -> Json:
        pod = self._find(name)
        assert body["preconditions"]["uid"] == pod.uid, "a deletion of another Pod"
        if pod.alive:
            self.deleting(pod)
        del self.pods[name]
        return pod.json()

    def _patch(self, name: str, operations: list[Json]) -> Json:
        """Apply a JSON patch completely, or not at all if one of its tests fails."""
        pod = self._find(name)
        metadata = pod.json()["metadata"]
        removes = any(each["op"] == "remove" and each["path"].endswith(_pointer(OWNER_LABEL)) for each in operations)
        for each in operations:
            keys = [key.replace("~1", "/").replace("~0", "~") for key in each["path"].split("/")[2:]]
            holder = metadata
            for key in keys[:-1]:
                holder = holder[key]
            if each["op"] == "test":
                if holder.get(keys[-1]) != each["value"] and (self.unstamps_compare or not removes):
                    raise Invalid(name) from Answer(status=422, reason="Unprocessable", message="", retry_after=None)
            elif each["op"] == "remove":
                del holder[keys[-1]]
            else:
                holder[keys[-1]] = each["value"]
        if removes and pod.owner is not None:
            assert not pod.jits, f"{name} has a JIT and was un-stamped"
        pod.labels, pod.annotations = metadata["labels"], metadata["annotations"]
        return pod.json()


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
