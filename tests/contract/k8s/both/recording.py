"""Requests to a Kubernetes API server, with a record of the answers."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from lab.control_plane_access import ClusterAccess

Json = dict[str, Any]

JSON = "application/json"
MERGE = "application/merge-patch+json"
PATCH = "application/json-patch+json"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
POOLS = "/apis/ostler.dev/v1alpha1"
WITHIN = 90.0  # seconds; a collector may take 40 to learn of a new kind


@dataclass(frozen=True)
class Exchange:
    """A request in words, and its answer. The body of a watch is the list of its events."""

    question: str
    status: int
    media_type: str
    body: Any


class Recorder:
    """A client of one server in one namespace. By default it is the administrator."""

    def __init__(self, access: ClusterAccess, namespace: str, *, within: float = WITHIN) -> None:
        """Prepare the recorder. `within` is the longest wait in seconds."""
        self.namespace = namespace
        self._within = within
        self.exchanges: list[Exchange] = []
        self._admin = access.token
        trust = ssl.create_default_context(cafile=str(access.ca_file))
        self._http = httpx.Client(base_url=access.url, verify=trust, timeout=30)

    def close(self) -> None:
        """Delete the namespace and close the connection."""
        self._send("DELETE", f"/api/v1/namespaces/{self.namespace}")
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        token: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request, record the answer and return its body. A token of "" means a request without a token."""
        answer = self._send(method, path, body, content_type=content_type, accept=accept, token=token, query=query)
        details = f" {json.dumps(body)}" if body is not None else ""
        asked = f"{method} {path}{f' {dict(query)}' if query else ''}{details}"
        self.exchanges.append(Exchange(asked, answer.status_code, _media_type(answer), _read(answer)))
        return self.exchanges[-1].body

    def quietly(self, method: str, path: str, body: Any = None, *, content_type: str = JSON) -> Any:
        """Send a request without a record. It must succeed."""
        answer = self._send(method, path, body, content_type=content_type)
        assert answer.is_success, answer.text
        return _read(answer)

    def wait(self, path: str, until: Callable[[int, Any], bool]) -> Any:
        """Repeat a request until `until` is true of the answer, and record this answer."""
        deadline = time.monotonic() + self._within
        while True:
            answer = self._send("GET", path)
            if until(answer.status_code, _read(answer)):
                return self.ask("GET", path)
            assert time.monotonic() < deadline, f"{path}: {answer.text}"
            time.sleep(0.05)

    def quietly_until(self, method: str, path: str, body: Any, until: Callable[[Any], bool]) -> None:
        """Repeat a request without a record until `until` is true of the answer, for at most 15 seconds.

        A timeout raises no error here, because the next recorded answer shows the difference.
        """
        deadline = time.monotonic() + min(self._within, 15)
        while not until(self.quietly(method, path, body)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def watch(self, path: str, query: Mapping[str, str], *, accept: str = JSON) -> list[Json]:
        """Watch until the watch's own timeout, record and return the events, without the bookmarks between them."""
        answer = self._send("GET", path, query={"watch": "1", "timeoutSeconds": "1", **query}, accept=accept)
        shown = {key: value for key, value in query.items() if key != "resourceVersion"}
        events = [json.loads(line) for line in answer.text.splitlines()]
        events = [each for each in events if each["type"] != "BOOKMARK" or "annotations" in each["object"]["metadata"]]
        self.exchanges.append(Exchange(f"WATCH {path} {shown}", answer.status_code, _media_type(answer), events))
        return events

    def follow(self, path: str, since: str, act: Callable[[], None], *, count: int) -> None:
        """Watch, call `act` when the watch is established, and record the first `count` events."""
        query = {"watch": "1", "timeoutSeconds": str(int(min(self._within, 20))), "resourceVersion": since}
        request = self._http.build_request("GET", self._path(path), params=query, headers=self._headers(JSON, None))
        answer = self._http.send(request, stream=True)
        act()
        events: list[Json] = []
        for line in answer.iter_lines():
            events.append(json.loads(line))
            if len(events) == count:
                break
        answer.close()
        self.exchanges.append(Exchange(f"FOLLOW {path}", answer.status_code, _media_type(answer), events))

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        token: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        headers = self._headers(accept, token)
        if body is not None:
            headers["Content-Type"] = content_type
        content = body if isinstance(body, str) or body is None else json.dumps(body)
        return self._http.request(method, self._path(path), content=content, headers=headers, params=query)

    def _headers(self, accept: str, token: str | None) -> dict[str, str]:
        bearer = self._admin if token is None else token
        return {"Accept": accept} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})

    def _path(self, path: str) -> str:
        """Return the full path. `pods/p` and `pools/p` are in the namespace; a path with a leading / is complete."""
        if path.startswith("/"):
            return path
        if path.split("/", maxsplit=1)[0] == "pools":
            return f"{POOLS}/namespaces/{self.namespace}/runner{path}"
        return f"/api/v1/namespaces/{self.namespace}/{path}"


def _media_type(answer: httpx.Response) -> str:
    return str(answer.headers.get("content-type", "")).partition(";")[0]


def _read(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text
