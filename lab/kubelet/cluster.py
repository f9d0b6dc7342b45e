"""API calls of the kubelet. A temporary error is retried with backoff until the API server gives a definite answer.

A definite absence raises `GoneError`. Every other definite error raises `RefusedError`. The worker of a Pod writes a
`RefusedError` to the journal.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Self

import aiohttp

from lab.kubelet.kubeconfig import Access

CONCURRENT_CALLS = 8
CALL_SECONDS = 15
WATCH_SECONDS = 240
_PASSING = {HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)}
_CAP_SECONDS = 5.0
_NODES = "/api/v1/nodes"
_NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class GoneError(Exception):
    """The Pod with this UID no longer exists."""


class RefusedError(Exception):
    """The API server refused the call permanently. The message names the call and the reason."""


class ExpiredError(Exception):
    """The resourceVersion of the watch is too old, so the Pods must be listed again."""


@dataclass(frozen=True, kw_only=True)
class PodKey:
    """Name and UID of one Pod. The UID distinguishes it from later Pods of the same name."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Token:
    """Token that is bound to a Pod, with its lifetime in seconds."""

    value: str
    seconds: int

    def __repr__(self) -> str:
        return "Token(***)"


class Cluster:
    """One namespace of an API server; an async context manager."""

    def __init__(self, *, access: Access, namespace: str, node: str) -> None:
        self._access = access
        self.namespace = namespace
        self._node = node
        self._session: aiohttp.ClientSession | None = None
        self._watching: aiohttp.ClientSession | None = None
        self._heartbeats: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tls: Any = self._access.tls if self._access.tls is not None else False
        headers = self._access.headers
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONCURRENT_CALLS, ssl=tls), headers=headers
        )
        self._watching = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers)
        # A session of its own, so that thousands of queued calls about Pods do not delay the heartbeat of the Node.
        self._heartbeats = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for session in (self._session, self._watching, self._heartbeats):
            if session is not None:
                await session.close()

    async def announce_node(self) -> None:
        """Create this Node unless it exists, and remove the taint that admission sets on a new Node."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node}}
        await self._call("POST", _NODES, body, fine={HTTPStatus.CONFLICT}, heartbeat=True)
        await self._call("PATCH", f"{_NODES}/{self._node}", {"spec": {"taints": None}}, heartbeat=True)

    async def read_node(self) -> dict[str, Any]:
        """Return this Node. Raises `GoneError`."""
        return await self._call("GET", f"{_NODES}/{self._node}", heartbeat=True)

    async def report_node(self, status: dict[str, Any]) -> None:
        """Write the status of this Node. Raises `GoneError`."""
        await self._call("PATCH", f"{_NODES}/{self._node}/status", {"status": status}, heartbeat=True)

    async def renew_lease(self, node_uid: str, *, seconds: int) -> None:
        """Renew the Lease of this Node, or create it. Raises `GoneError` if the namespace of the Leases is missing."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node_uid}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "spec": {"holderIdentity": self._node, "leaseDurationSeconds": seconds, "renewTime": now},
        }
        try:
            await self._call("PATCH", f"{_NODE_LEASES}/{self._node}", body, heartbeat=True)
        except GoneError:
            await self._call("POST", _NODE_LEASES, body, fine={HTTPStatus.CONFLICT}, heartbeat=True)

    async def list_pods(self) -> tuple[list[dict[str, Any]], str]:
        """Return all Pods and the resourceVersion to watch from."""
        found = await self._call("GET", self._pods())
        return found.get("items") or [], found["metadata"]["resourceVersion"]

    async def watch_pods(self, since: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield (type, object) until the server ends the stream. Raises `ExpiredError` if `since` is too old.

        Raises aiohttp.ClientError or TimeoutError if the connection breaks.
        """
        if self._watching is None:
            raise AssertionError("not entered")
        query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=WATCH_SECONDS + 30)
        url = self._access.server + self._pods()
        async with self._watching.get(url, params=query, timeout=timeout) as answer:
            if answer.status == HTTPStatus.GONE:
                raise ExpiredError
            answer.raise_for_status()
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ExpiredError
                    yield event["type"], event["object"]

    async def bind(self, pod: PodKey) -> None:
        """Bind the Pod to this Node. A Pod that is already bound is no error. Raises `GoneError`."""
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name, "uid": pod.uid}, "target": target}
        await self._call("POST", f"{self._pods()}/{pod.name}/binding", body, fine={HTTPStatus.CONFLICT})

    async def report(self, pod: PodKey, status: dict[str, Any]) -> None:
        """Merge `status` into the Pod's status. Raises `GoneError`."""
        body = {"metadata": {"uid": pod.uid}, "status": status}
        await self._call("PATCH", f"{self._pods()}/{pod.name}/status", body, gone={HTTPStatus.UNPROCESSABLE_ENTITY})

    async def token(self, pod: PodKey, *, account: str, audience: str, seconds: int) -> Token:
        """Request a token that is bound to the Pod. An empty audience is the API server's own.

        Raises `GoneError` if the Pod is gone.
        """
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        answer = await self._call("POST", path, body, gone={HTTPStatus.CONFLICT})
        return Token(value=answer["status"]["token"], seconds=seconds)

    async def read_secret(self, name: str) -> dict[str, str]:
        """Return the data of a Secret, in base64. Raises `GoneError`."""
        found = await self._call("GET", f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        data: dict[str, str] = found.get("data") or {}
        return data

    async def read_config_map(self, name: str) -> dict[str, str] | None:
        """Return the data of a ConfigMap, or None if it does not exist."""
        try:
            found = await self._call("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except GoneError:
            return None
        data: dict[str, str] = found.get("data") or {}
        return data

    async def remove(self, pod: PodKey) -> None:
        """Remove a Pod that is being deleted from the API server. A Pod that is already gone is no error."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        preconditions = {"preconditions": {"uid": pod.uid}}
        path = f"{self._pods()}/{pod.name}"
        await self._call("DELETE", path, body | preconditions, fine={HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})

    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        fine: set[HTTPStatus] | None = None,
        gone: set[HTTPStatus] | None = None,
        heartbeat: bool = False,
    ) -> dict[str, Any]:
        """Repeat a call until the answer is definite.

        A 404 and the statuses in `gone` raise `GoneError`. Other refusals raise `RefusedError`, unless `fine` contains
        them.
        """
        session = self._heartbeats if heartbeat else self._session
        if session is None:
            raise AssertionError("not entered")
        wait = 0.2
        while True:
            status, answer = await self._once(session, method, path, body)
            if status < HTTPStatus.BAD_REQUEST or status in (fine or ()):
                return answer
            if status == HTTPStatus.NOT_FOUND or status in (gone or ()):
                raise GoneError(path)
            if status not in _PASSING:
                raise RefusedError(f"{method} {path}: {status} {answer.get('message', '')}")
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(wait * 2, _CAP_SECONDS)

    async def _once(
        self, session: aiohttp.ClientSession, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            async with session.request(
                method,
                self._access.server + path,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": content, "Accept": "application/json"},
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return HTTPStatus.SERVICE_UNAVAILABLE, {}
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = {"message": text[:200]}
        return answer.status, parsed if isinstance(parsed, dict) else {}
