"""A fake API server behind the real client: Pods and Secrets in memory, faults, and a process that is killed.

It stands where the client hands a call to its connections, so the client's retry layer and errors are the real ones.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import urllib3

from k8s_adapters.calls.client import Json, KubeClient
from lab.apiserver import patches, pods
from lab.apiserver.refusals import Refused
from ostler.clock import Timing
from rules.upstream.retry import HOOKS

Fault = int | BaseException | str
"""A status, an error that is raised, or `lost`: the call is applied, and its answer is lost."""


class Killed(BaseException):
    """The process was killed. No code that runs after it has an effect on the world."""


@dataclass
class Clock:
    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def timing(self) -> Timing:
        return Timing(sleep=self.sleep, clock=lambda: self.now, roll=lambda: 0.5)


@dataclass
class FakeApi:
    objects: dict[tuple[str, str], Json] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    faults: list[tuple[str, str, Fault, dict[str, str]]] = field(default_factory=list)
    hooks: dict[tuple[str, str], list[Callable[[], object]]] = field(default_factory=dict)
    statuses: list[Json] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    lingers: int = 0
    """Number of reads that still show a deleted object, as terminating."""
    program: Callable[[str], tuple[bytes, Json]] | None = None
    """Runs the program of the image of a Pod at the first read of its log. Returns the log and the end of its status.

    The log has no times: each line gets one.
    """
    finished: dict[str, tuple[bytes, Json]] = field(default_factory=dict)
    """Log and end of each container that has ended, by Pod."""
    log_ends: list[int] = field(default_factory=list)
    """Number of bytes after which each of the next reads of a log ends, without an error."""
    kill_at: int | None = None
    dead: bool = False
    clock: Clock = field(default_factory=Clock)
    _uids: itertools.count[int] = field(default_factory=itertools.count)

    def client(self) -> KubeClient:
        def load() -> Any:
            configuration = SimpleNamespace(host="https://kubernetes", auth_settings=dict)
            return SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=self))

        return KubeClient(load=load, connect_timeout=1.0, read_timeout=1.0, timing=self.clock.timing(), policy=HOOKS)

    def fail(self, method: str, kind: str, *faults: Fault, **headers: str) -> None:
        """Plan one fault for each of the next calls."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.faults += [(method, kind, fault, named) for fault in faults]

    def before(self, method: str, kind: str, action: Callable[[], object]) -> None:
        """Run something right before the next such call is applied."""
        self.hooks.setdefault((method, kind), []).append(action)

    def names(self, kind: str = "pods") -> list[str]:
        return sorted(name for found, name in self.objects if found == kind)

    def put(self, kind: str, name: str, *, owner: str | None, digest: str = "other", terminating: bool = False) -> str:
        """Store an object of an earlier call, and return its UID."""
        metadata: Json = {
            "name": name,
            "uid": f"uid-{next(self._uids)}",
            "annotations": {"ostler.dev/spec-digest": digest},
        }
        if owner is not None:
            metadata["ownerReferences"] = [{"kind": "Pod", "uid": owner}]
        if terminating:
            metadata["deletionTimestamp"] = "2026-11-25T00:00:00Z"
        self.objects[kind, name] = {"metadata": metadata, "spec": {"containers": []}, "status": {}}
        return str(metadata["uid"])

    def tick(self) -> None:
        """Count one call. The process might be killed before it."""
        if self.dead:
            raise Killed
        if self.kill_at is not None:
            if self.kill_at == 0:
                self.dead = True
                raise Killed
            self.kill_at -= 1

    def urlopen(self, method: str, url: str, *, body: bytes | None = None, **_: Any) -> urllib3.HTTPResponse:
        self.tick()
        parts = urlsplit(url).path.strip("/").split("/")
        given = json.loads(body) if body else {}
        if method == "PATCH":
            given = {"subresource": parts[6], "operations": given}
        if parts[-1] == "selfsubjectaccessreviews":
            kind, name = "reviews", ""
        else:
            kind, name = parts[4], parts[5] if len(parts) > 5 else given.get("metadata", {}).get("name", "")
            kind = "log" if parts[6:] == ["log"] else kind
        self.calls.append((method, kind, name))
        actions = self.hooks.get((method, kind))
        if actions:
            actions.pop(0)()
        for number, (of_method, of_kind, fault, headers) in enumerate(self.faults):
            if (of_method, of_kind) in {(method, kind), ("*", "*")}:
                del self.faults[number]
                return self._fault(fault, headers, lambda: self._apply(method, kind, name, given))
        return self._apply(method, kind, name, given)

    def clear(self) -> None:
        """Close nothing."""

    def _fault(
        self, fault: Fault, headers: dict[str, str], apply: Callable[[], urllib3.HTTPResponse]
    ) -> urllib3.HTTPResponse:
        if isinstance(fault, int):
            return answer(fault, {"kind": "Status"}, headers)
        if isinstance(fault, str):
            apply()
            raise urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))
        raise fault

    def _apply(self, method: str, kind: str, name: str, given: Json) -> urllib3.HTTPResponse:
        if kind == "reviews":
            attributes = given["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (attributes["resource"], attributes["subresource"])))
            return answer(201, {"status": {"allowed": f"{attributes['verb']} {resource}" not in self.denied}})
        if f"{method} {kind}" in self.denied:
            text = f'{kind} is forbidden: User "system:serviceaccount:ns:r" cannot create resource "{kind}"'
            return status(403, "Forbidden", text)
        found = self.objects.get((kind, name))
        if kind == "log":
            return self._log(name)
        if method == "POST":
            return self._create(kind, name, given, found)
        if found is None:
            return status(404, "NotFound", "")
        return self._change(method, kind, name, given, found)

    def _log(self, name: str) -> urllib3.HTTPResponse:
        if ("pods", name) not in self.objects:
            return status(404, "NotFound", "")
        assert self.program is not None
        if name not in self.finished:
            self.finished[name] = self.program(name)
        lines = self.finished[name][0].splitlines(keepends=True)
        text = b"".join(b"2026-11-30T10:00:00.%09dZ %s" % each for each in enumerate(lines))
        shown = text[: self.log_ends.pop(0)] if self.log_ends else text
        return urllib3.HTTPResponse(body=io.BytesIO(shown), status=200, preload_content=False)

    def _change(self, method: str, kind: str, name: str, given: Json, found: Json) -> urllib3.HTTPResponse:
        if method == "PATCH":
            return self._add_containers(name, given, found)
        if method == "DELETE":
            return self._delete(kind, name, given, found)
        return answer(200, self._shown(kind, name, found))

    def _create(self, kind: str, name: str, given: Json, found: Json | None) -> urllib3.HTTPResponse:
        if found is not None:
            return status(409, "AlreadyExists", f"{kind} {name} already exists")
        made = copy.deepcopy(given)
        made["metadata"]["uid"] = f"uid-{next(self._uids)}"
        self.objects[kind, name] = made
        return answer(201, made)

    def _add_containers(self, name: str, given: Json, found: Json) -> urllib3.HTTPResponse:
        """Patch the ephemeral containers of a Pod, under the rules of the embedded API server."""
        assert given["subresource"] == "ephemeralcontainers"
        try:
            edited = patches.apply_operations(found, given["operations"])
        except Refused as refused:
            return status(int(refused.status), "Invalid", "the server rejected our request")
        containers = edited["spec"]["ephemeralContainers"]
        if list(pods.ephemeral_problems(found, containers)):
            return status(422, "Invalid", f'Pod "{name}" is invalid')
        found["spec"]["ephemeralContainers"] = containers
        return answer(200, found)

    def _delete(self, kind: str, name: str, given: Json, found: Json) -> urllib3.HTTPResponse:
        wanted = (given.get("preconditions") or {}).get("uid")
        if wanted is not None and wanted != found["metadata"]["uid"]:
            return status(409, "Conflict", "the UID in the precondition does not match")
        if self.lingers:
            found["metadata"]["deletionTimestamp"] = "2026-11-25T00:00:00Z"
            found["lingers"] = self.lingers
        else:
            del self.objects[kind, name]
        return answer(200, found)

    def _shown(self, kind: str, name: str, found: Json) -> Json:
        if "deletionTimestamp" in found["metadata"] and "lingers" in found:
            found["lingers"] -= 1
            if found["lingers"] <= 0:
                del self.objects[kind, name]
        if kind != "pods":
            return found
        state = self.statuses.pop(0) if self.statuses else running(found)
        if name in self.finished and "terminated" not in state["containerStatuses"][0]["state"]:
            state["containerStatuses"][0]["state"] = {"terminated": self.finished[name][1]}
        return {**found, "status": state}


def running(pod: Json, *, ready: bool = True) -> Json:
    """Return the status of a Pod with running containers."""
    names = [each["name"] for each in pod["spec"]["containers"]]
    added = [each["name"] for each in pod["spec"].get("ephemeralContainers") or ()]
    inits = [each["name"] for each in pod["spec"].get("initContainers") or ()]
    return {
        "phase": "Running",
        "containerStatuses": [{"name": name, "ready": ready, "state": {"running": {}}} for name in names],
        "initContainerStatuses": [{"name": name, "ready": False, "state": {"running": {}}} for name in inits],
        "ephemeralContainerStatuses": [{"name": name, "ready": False, "state": {"running": {}}} for name in added],
    }


def waiting(name: str, reason: str, message: str = "") -> Json:
    """Return the status of a Pod with one container that waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": name, "ready": False, "state": state}]}


def ended(name: str, **terminated: Any) -> Json:
    """Return the status of a Pod with one container that ended."""
    return {"phase": "Running", "containerStatuses": [{"name": name, "state": {"terminated": terminated}}]}


def answer(code: int, body: Json, headers: dict[str, str] | None = None) -> urllib3.HTTPResponse:
    return urllib3.HTTPResponse(body=json.dumps(body).encode(), status=code, headers=headers or {})


def status(code: int, reason: str, message: str) -> urllib3.HTTPResponse:
    return answer(code, {"kind": "Status", "reason": reason, "message": message})
