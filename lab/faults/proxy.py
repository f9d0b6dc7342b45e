"""The reverse proxy: plain HTTP towards its clients, HTTP or HTTPS towards one upstream.

It forwards messages byte by byte: connections stay alive, and the chunks of an answer are sent as they arrive, so that
a watch works through the proxy. The proxy plays the faults of its plan. If the client or the upstream closes its
connection, the proxy also closes the other connection. After an upgrade (WebSocket) it forwards bytes in both
directions. It does not support uploads that run in parallel with their answer, or HTTP/2.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml

from lab.faults.fault import Fault, FaultPlan, Kind
from lab.faults.stream import tunnel
from lab.faults.wire import Head, Wire

CONTROL_PATH = "/_faults"
CONNECT_SECONDS = 5
_TURNS_OF_AN_ACCEPT = 3
"""Turns of the event loop from the moment when asyncio accepts a connection to the call of `Gateway._accept`."""

LONGEST_CHUNK_SIZE = 16  # bytes of the line before a chunk; half of a longer answer also has bytes of the chunk


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Server that receives the forwarded requests.

    `tls` is None for plain HTTP. `token` is added to requests that have no Authorization header; None adds none.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    token: str | None = None

    @classmethod
    def of(cls, url: str, *, ca_file: Path | None = None, verify: bool = True, token: str | None = None) -> Self:
        """Return the upstream at `url`.

        Raises ValueError if it is not an HTTP address. `verify=False` trusts any certificate.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not an HTTP address: {url}")
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
            if not verify:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        port = parts.port or (443 if tls else 80)
        return cls(host=parts.hostname, port=port, tls=tls, token=token)


class Gateway:
    """Server that accepts connections until it is closed. Everything except the plan belongs to one event loop."""

    def __init__(self, *, upstream: Upstream, plan: FaultPlan, control: bool = False) -> None:
        self._upstream = upstream
        self._plan = plan
        self._control = control
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, *, port: int, host: str = "127.0.0.1") -> int:
        """Listen on `host` and return the port. `port=0` chooses a free port."""
        self._server = await asyncio.start_server(self._accept, host, port, backlog=2048)
        return int(self._server.sockets[0].getsockname()[1])

    def disconnect(self) -> None:
        """End every connection, as a server that is replaced."""
        for task in list(self._connections):
            task.cancel()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            # asyncio accepts a connection some turns of the loop before `_accept` gets it, and forgets the connection
            # if the server is closed in between. The server therefore first stops accepting, and is closed some turns
            # later.
            for listener in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            self._server.close()
        self.disconnect()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, upstream = Wire(reader, writer), _Dialled(self._upstream)
        task = asyncio.ensure_future(self._serve(client, upstream))
        self._connections.add(task)

        def end(task: asyncio.Task[None]) -> None:
            # This is a callback of the task, because a task that is cancelled before its first step runs no line
            # itself.
            self._connections.discard(task)
            upstream.hang_up()
            client.writer.transport.abort()

        task.add_done_callback(end)

    async def _serve(self, client: Wire, upstream: _Dialled) -> None:
        with contextlib.suppress(OSError):  # one side closed its connection: `end` closes the other side too
            while await self._one(client, upstream):
                pass
            upstream.hang_up()
            await client.close()

    async def _one(self, client: Wire, upstream: _Dialled) -> bool:
        """Serve one request. Return whether the connection stays open."""
        request = await client.head()
        method, target = request.words[:2]
        if (request.get("expect") or "").lower() == "100-continue":
            await client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            request = Head(request.start, tuple(pair for pair in request.headers if pair[0].lower() != "expect"))
        body = b"".join([piece async for piece in client.body(request)])
        if self._control and target.partition("?")[0] == CONTROL_PATH:
            # With this header the client does not send its next request on a connection that is about to close.
            await client.send(_answer(*self._obey(method, body), {"Connection": "close"}))
            return False
        fault = self._plan.meet(method=method, target=target)
        if request.get("upgrade") is not None:
            return await self._play(client, upstream, request, body, fault) and request.keeps_alive
        gone = asyncio.ensure_future(client.ended())
        playing = asyncio.ensure_future(self._play(client, upstream, request, body, fault))
        try:
            await asyncio.wait({gone, playing}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                return False
            return playing.result() and request.keeps_alive
        finally:
            for task in (gone, playing):
                task.cancel()
            await asyncio.gather(gone, playing, return_exceptions=True)

    async def _play(self, client: Wire, upstream: _Dialled, request: Head, body: bytes, fault: Fault | None) -> bool:
        """Play the fault, or forward the request. Return whether the connection can stay open."""
        if fault is not None and fault.delay_seconds:
            await asyncio.sleep(fault.delay_seconds)
        if fault is not None and fault.kind == Kind.STATUS:
            await client.send(_answer(fault.status, fault.body.encode(), dict(fault.headers)))
            return True
        if fault is not None and fault.kind == Kind.RESET_BEFORE:
            client.reset()
            return False
        try:
            await upstream.ready()
        except (OSError, TimeoutError) as error:
            await client.send(_answer(HTTPStatus.BAD_GATEWAY, f"upstream: {type(error).__name__}".encode()))
            return True
        wire, answer = await upstream.ask(request, body)
        return await self._pass_on(client, wire, answer, request.words[0], fault)

    async def _pass_on(self, client: Wire, wire: Wire, answer: Head, method: str, fault: Fault | None) -> bool:
        """Forward an answer, or play the fault. The upstream has handled the request, because an answer has begun.

        Return whether the connection can stay open.
        """
        kind = None if fault is None else fault.kind
        if answer.status == HTTPStatus.SWITCHING_PROTOCOLS and kind != Kind.RESET_AFTER:
            await _upgrade(client, wire, answer, fault)
            return False
        if kind == Kind.FREEZE:
            await asyncio.Event().wait()  # the end of the client's connection ends this task
        if kind in {Kind.RESET_AFTER, Kind.CUT}:
            client.reset()
            return False
        if kind in {Kind.TRUNCATE, Kind.CLOSE}:
            await _truncate(client, wire, answer, of_answer_to=method)
            return False
        await client.send(answer.render())
        async for piece in wire.body(answer, of_answer_to=method):
            await client.send(piece)
        framed = answer.get("content-length") is not None or answer.get("transfer-encoding") is not None
        return answer.keeps_alive and (framed or method == "HEAD" or answer.status in {204, 304})

    def _obey(self, method: str, body: bytes) -> tuple[int, bytes]:
        """Handle a request to the control path: GET returns counts, POST adds a fault, DELETE removes all faults."""
        if method == "POST":
            try:
                self._plan.add(Fault.parse(json.loads(body)))
            except ValueError as error:
                return HTTPStatus.BAD_REQUEST, str(error).encode()
        elif method == "DELETE":
            self._plan.clear()
        elif method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, b""
        return HTTPStatus.OK, json.dumps({"counts": self._plan.counts, "routes": self._plan.routes}).encode()


class _Dialled:
    """The upstream's connection for one client connection. It is opened when needed, and reused while it is kept alive.

    No request is sent twice, because the upstream might have handled a request whose answer did not arrive.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._wire: Wire | None = None
        self._keeps_alive = True

    async def ready(self) -> None:
        """Open a connection unless a usable one exists. Raises OSError or TimeoutError."""
        if self._wire is not None and self._keeps_alive and not self._wire.stale:
            return
        self.hang_up()
        async with asyncio.timeout(CONNECT_SECONDS):
            streams = await asyncio.open_connection(self._upstream.host, self._upstream.port, ssl=self._upstream.tls)
        self._wire = Wire(*streams)

    async def ask(self, request: Head, body: bytes) -> tuple[Wire, Head]:
        """Send a request and return the connection and the head of the answer.

        Raises ConnectionError if no answer arrives.
        """
        if self._wire is None:
            raise AssertionError("ready() comes first")
        head = request
        if self._upstream.tls is not None:
            head = head.having("Host", f"{self._upstream.host}:{self._upstream.port}")
        if self._upstream.token is not None and head.get("authorization") is None:
            head = head.having("Authorization", f"Bearer {self._upstream.token}")
        await self._wire.send(head.render() + body)
        answer = await self._wire.head()
        while answer.status < HTTPStatus.OK and answer.status != HTTPStatus.SWITCHING_PROTOCOLS:
            answer = await self._wire.head()
        self._keeps_alive = answer.keeps_alive
        return self._wire, answer

    def hang_up(self) -> None:
        """Close the connection to the upstream, if there is one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.writer.transport.abort()


async def _upgrade(client: Wire, upstream: Wire, answer: Head, fault: Fault | None) -> None:
    """Forward a WebSocket until it ends, with the faults for it."""
    if fault is not None and fault.kind == Kind.TRUNCATE:
        await client.send(answer.start[: len(answer.start) // 2].encode())
        return
    if fault is not None and fault.kind == Kind.NO_VERSION:
        kept = tuple(pair for pair in answer.headers if pair[0].lower() != "sec-websocket-protocol")
        answer = Head(answer.start, kept)
    await client.send(answer.render())
    await tunnel(client, upstream, fault)


async def _truncate(client: Wire, upstream: Wire, answer: Head, *, of_answer_to: str) -> None:
    """Send the first half of an answer: half of its body, or half of its status line if it has no body.

    An endless body, such as that of a watch, is cut in its first bytes.
    """
    half = int(answer.get("content-length") or 0) // 2
    begun = bytearray()
    async for piece in upstream.body(answer, of_answer_to=of_answer_to):
        begun += piece
        if len(begun) > max(half, LONGEST_CHUNK_SIZE):
            break
    if begun:
        await client.send(answer.render() + begun[: half or len(begun) // 2])
    else:
        await client.send(answer.start[: len(answer.start) // 2].encode())


def _answer(status: int, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Fault"
    named = {"Content-Type": "application/json", **(headers or {})}
    pairs = tuple((name, value) for name, value in named.items() if name.lower() != "content-length")
    length = () if status in {204, 304} else (("Content-Length", str(len(body))),)
    head = Head(f"HTTP/1.1 {status} {reason}", (*pairs, *length)).render()
    return head if status in {204, 304} else head + body


def kubeconfig_through(source: Path, url: str) -> Path:
    """Write a copy of a kubeconfig in which every cluster has the address `url` (plain HTTP), and return its path.

    The copy is in the folder of `source`.
    """
    config = yaml.safe_load(source.read_text())
    for cluster in config["clusters"]:
        cluster["cluster"] = {"server": url}
    copy = source.with_name(f"{source.name}-through-{urlsplit(url).port}")
    copy.touch(mode=0o600)
    copy.write_text(yaml.safe_dump(config))
    return copy


class FaultProxy:
    """The proxy in a thread of a test: `with FaultProxy(url) as proxy: proxy.add(Fault(kind="reset_after"))`."""

    def __init__(
        self,
        upstream: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ca_file: Path | None = None,
        verify: bool = True,
        token: str | None = None,
        seed: int = 0,
        control: bool = False,
    ) -> None:
        self._plan = FaultPlan(seed=seed)
        self._upstream = Upstream.of(upstream, ca_file=ca_file, verify=verify, token=token)
        self._control = control
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._closing: asyncio.Event | None = None
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        """The address for clients, without a path."""
        return f"http://{self._host}:{self._port}"

    @property
    def counts(self) -> dict[str, int]:
        """Number of times that each kind of fault was played. `forwarded` counts the requests that met no fault."""
        return self._plan.counts

    @property
    def routes(self) -> dict[str, dict[str, int]]:
        """Number of times that each kind of fault was played, by route."""
        return self._plan.routes

    def add(self, fault: Fault) -> Fault:
        """Activate a fault and return it."""
        self._plan.add(fault)
        return fault

    def clear(self) -> None:
        """Remove every fault."""
        self._plan.clear()

    def disconnect(self) -> None:
        """End every connection, as a server that is replaced."""
        if self._loop is not None and self._gateway is not None:
            self._loop.call_soon_threadsafe(self._gateway.disconnect)

    def kubeconfig(self, source: Path) -> Path:
        """Write a copy of the kubeconfig `source` that uses this proxy and the same token, and return its path.

        The copy is in the folder of `source`. kubectl sends no token over plain HTTP, so for kubectl pass the token to
        the proxy.
        """
        return kubeconfig_through(source, self.url)

    def __enter__(self) -> Self:
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._loop is not None and self._closing is not None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `__enter__` raises it
            self._failure = error
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._gateway = gateway = Gateway(upstream=self._upstream, plan=self._plan, control=self._control)
        self._port = await gateway.start(port=self._port, host=self._host)
        self._up.set()
        await self._closing.wait()
        await gateway.close()
