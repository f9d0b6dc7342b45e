"""Commands in containers, and their logs: the API server finds the node of the Pod and asks its kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from urllib.parse import quote

import aiohttp
from starlette.datastructures import QueryParams
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from lab.apiserver.kinds import NODE, POD, Json
from lab.apiserver.objects import Objects
from lab.apiserver.refusals import Refused, bad_request
from lab.apiserver.store import Stored

_DIAL_SECONDS = 10
_CLOSED = {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}


def refuse(objects: Objects, query: QueryParams, *, namespace: str, name: str) -> Refused:
    """Return the error for an exec request that asks for no WebSocket.

    Raises `Refused` if the request has another error.
    """
    _address(objects, namespace, name, query)
    return bad_request("Upgrade request required")


async def forward(client: WebSocket, objects: Objects, *, namespace: str, name: str) -> None:
    """Forward an exec request to the kubelet until one side closes. Raises `Refused` before the upgrade is accepted."""
    address = _address(objects, namespace, name, client.query_params)
    versions = [each.strip() for each in client.headers.get("sec-websocket-protocol", "").split(",") if each.strip()]
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                # Like the real server without --kubelet-certificate-authority, this server trusts any certificate.
                kubelet = await session.ws_connect(address, protocols=versions, ssl=False, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            raise _refusal(error.status, f"unable to upgrade connection: {error.message}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _refusal(500, f"error dialing backend: {str(error) or 'no answer in time'}") from None
        async with kubelet:
            await client.accept(subprotocol=kubelet.protocol)
            ways = [asyncio.create_task(_to_kubelet(client, kubelet)), asyncio.create_task(_to_client(kubelet, client))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


async def read_log(objects: Objects, query: QueryParams, *, namespace: str, name: str) -> Response:
    """Return the log of a container, as its kubelet sends it. Raises `Refused`."""
    address = _address(objects, namespace, name, query, way="containerLogs")
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=_DIAL_SECONDS))
    try:
        answer = await session.get(address, ssl=False)
        refused = None if answer.status == HTTPStatus.OK else _refusal(answer.status, (await answer.text()).strip())
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        refused = _refusal(500, f"error dialing backend: {str(error) or 'no answer in time'}")
    if refused is not None:
        await session.close()
        raise refused

    async def pieces() -> AsyncIterator[bytes]:
        async with session:
            # Like the real server, this server ends its answer normally if the kubelet breaks off.
            with contextlib.suppress(aiohttp.ClientError):
                async for piece in answer.content.iter_any():
                    yield piece

    return StreamingResponse(pieces(), media_type="text/plain")


async def _to_kubelet(client: WebSocket, kubelet: aiohttp.ClientWebSocketResponse) -> None:
    with contextlib.suppress(WebSocketDisconnect, ConnectionError):
        while True:
            await kubelet.send_bytes(await client.receive_bytes())


async def _to_client(kubelet: aiohttp.ClientWebSocketResponse, client: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, ConnectionError):
        while True:
            message = await kubelet.receive()
            if message.type in _CLOSED:
                break
            await client.send_bytes(message.data)
        await client.close()


def _address(objects: Objects, namespace: str, name: str, query: QueryParams, *, way: str = "exec") -> str:
    """Return the URL of the kubelet for a request. `way` is the beginning of its path. Raises `Refused`."""
    pod = objects.get(POD, namespace, name)
    container = _container(pod, query.get("container", ""))
    node = pod.content["spec"].get("nodeName")
    if not node:
        raise bad_request(f"pod {name} does not have a host assigned")
    status: Json = objects.get(NODE, "", node).content.get("status") or {}
    host = next((each["address"] for each in status.get("addresses") or ()), None)
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    if host is None or not port:
        raise _refusal(500, "no preferred addresses found; known addresses: []")
    path = "/".join(quote(each, safe="") for each in (namespace, name, container))
    return f"https://{host}:{port}/{way}/{path}?{query}"


def _container(pod: Stored, wanted: str) -> str:
    """Return the name of the container. Raises `Refused` if the Pod does not have it."""
    name = pod.metadata["name"]
    spec = pod.content["spec"]
    names = [each["name"] for each in spec["containers"]]
    if not wanted:
        return str(names[0])
    others = (each["name"] for kind in ("initContainers", "ephemeralContainers") for each in spec.get(kind) or ())
    if wanted not in [*names, *others]:
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    return wanted


def _refusal(status: int, message: str) -> Refused:
    return Refused(HTTPStatus(status), "", message)
