"""`python -m lab.forward_proxy`: a forward proxy, as in company networks, for the lab and for tests.

It serves `CONNECT host:port` (https) and requests with a full address (`GET http://host/path`). With `--map`, a name is
sent to another address. A name under `.invalid`, which no resolver knows, can then only be reached by this proxy. When
ready it prints one JSON line `{"url": …}`; SIGTERM ends it. With `--log` each request is a JSON line: `{"method",
"target", "status"}`.

It is no proxy for production: it opens a connection for each request and has no cache.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hmac
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

LONGEST_HEAD = 64 * 1024
CONNECT_SECONDS = 10.0
HOP_BY_HOP = frozenset({"connection", "proxy-connection", "proxy-authorization", "keep-alive"})

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Permitted clients and targets of the proxy.

    `moved`: replaced addresses of names, by `host:port`. `allowed`: the permitted targets as `host:port`; None permits
    all. `login`: `user:password`; None requires no login. `log`: a file that gets a line for each request.
    """

    moved: Mapping[str, Address] = field(default_factory=dict)
    allowed: frozenset[str] | None = None
    login: str | None = None
    log: Path | None = None


class Refused(Exception):
    """A request that is answered with a status and not forwarded."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class ForwardProxy:
    """The proxy of one event loop. `start` returns its port; `close` cuts every connection."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, *, port: int = 0) -> int:
        """Listen on 127.0.0.1 and return the port. Port 0 chooses a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=LONGEST_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end the open connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  asyncio runs this as a task
        self._open.add(task)
        try:
            # A side that disconnects in the middle is no error of the proxy.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._serve(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target = "", ""
        headers: list[tuple[str, str]] = []
        try:
            method, target, headers = _request(head)
            self._authenticate(headers)
            wanted, path = _destination(method, target)
            upstream = await self._connect(wanted)
        except Refused as refused:
            self._note(method, target, refused.status)
            writer.write(_refusal(refused.status))
            await writer.drain()
            return
        if method == "CONNECT":
            self._note(method, target, HTTPStatus.OK)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            kept = [f"{name}: {value}" for name, value in headers if name.lower() not in HOP_BY_HOP]
            passed = "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""])
            self._note(method, target, None)
            upstream[1].write(passed.encode("latin-1"))
        await _join((reader, writer), upstream)

    def _authenticate(self, headers: Sequence[tuple[str, str]]) -> None:
        if self._rules.login is None:
            return
        right = "Basic " + base64.b64encode(self._rules.login.encode()).decode()
        given = next((value for name, value in headers if name.lower() == "proxy-authorization"), "")
        if not hmac.compare_digest(right, given):
            raise Refused(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)

    async def _connect(self, wanted: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = f"{wanted[0]}:{wanted[1]}"
        if self._rules.allowed is not None and name not in self._rules.allowed:
            raise Refused(HTTPStatus.FORBIDDEN)
        host, port = self._rules.moved.get(name, wanted)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(host, port)
        except TimeoutError:
            raise Refused(HTTPStatus.GATEWAY_TIMEOUT) from None
        except OSError:
            raise Refused(HTTPStatus.BAD_GATEWAY) from None

    def _note(self, method: str, target: str, status: HTTPStatus | None) -> None:
        if self._rules.log is not None:
            line = {"method": method, "target": target, "status": None if status is None else int(status)}
            with self._rules.log.open("a") as log:
                log.write(json.dumps(line) + "\n")


def _request(head: Sequence[str]) -> tuple[str, str, list[tuple[str, str]]]:
    words = head[0].split(" ")
    if len(words) != 3:  # noqa: PLR2004  method, target, version
        raise Refused(HTTPStatus.BAD_REQUEST)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in head[1:] if line)]
    return words[0], words[1], headers


def _destination(method: str, target: str) -> tuple[Address, str]:
    """Return the address of a request's destination, and the path there."""
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST) from None
    if not host or (method == "CONNECT" and port is None) or (method != "CONNECT" and parts.scheme != "http"):
        raise Refused(HTTPStatus.BAD_REQUEST)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return (host, port or 80), path


def _refusal(status: HTTPStatus) -> bytes:
    ask = 'Proxy-Authenticate: Basic realm="proxy"\r\n' if status is HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else ""
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{ask}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()


Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: Side, other: Side) -> None:
    """Forward bytes in both directions until the upstream ends its side."""
    up = asyncio.create_task(_pump(one[0], other[1]))
    try:
        await _pump(other[0], one[1])
    finally:
        up.cancel()
        other[1].close()
        await asyncio.gather(up, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(64 * 1024):
        sink.write(piece)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def address(text: str) -> Address:
    """Return host and port. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(f"{text!r} must be host:port")
    return host, int(port)


async def serve(rules: Rules, *, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    proxy = ForwardProxy(rules)
    found = await proxy.start(port=port)
    closing = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, closing.set)
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{found}"}) + "\n")
    sys.stdout.flush()
    await closing.wait()
    await proxy.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m lab.forward_proxy", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0 chooses a free port")
    parser.add_argument("--map", action="append", default=[], metavar="HOST:PORT=HOST:PORT", help="lead a name there")
    parser.add_argument("--allow", action="append", metavar="HOST:PORT", help="serve only these; all without it")
    parser.add_argument("--login-env", help="variable that holds user:password; without it anybody is served")
    parser.add_argument("--log", type=Path, help="file that gets a JSON line for each request")
    arguments = parser.parse_args()
    moved = dict(each.split("=", 1) for each in arguments.map)
    rules = Rules(
        moved={name: address(where) for name, where in moved.items()},
        allowed=None if arguments.allow is None else frozenset(arguments.allow),
        login=os.environ[arguments.login_env] if arguments.login_env else None,
        log=arguments.log,
    )
    asyncio.run(serve(rules, port=arguments.port))


if __name__ == "__main__":
    main()
