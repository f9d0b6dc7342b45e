"""`python -m lab.forward_proxy`: a forward proxy like those of companies, for the lab and for tests.

It serves `CONNECT host:port` (https) and requests with an absolute address (`GET http://host/path`). `--map` sends the
traffic of a name to another address. A name under `.invalid`, which no resolver knows, is then reachable only through
this proxy. The proxy prints one JSON line `{"url": …}` when it is ready and ends on SIGTERM. With `--log` it writes a
JSON line `{"method", "target", "status"}` for each request. The status is null for a forwarded request.

The proxy is not for production: it opens a connection for each request and caches nothing.
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
    """Requests that the proxy serves, and the addresses that it connects to.

    `moved`: replacement addresses by `host:port`. `allowed`: the `host:port` pairs that clients may request; None
    allows all. `login`: the `user:password` that clients must send; None requires no login. `log`: a file that gets a
    line for each request; None writes no log.
    """

    moved: Mapping[str, Address] = field(default_factory=dict)
    allowed: frozenset[str] | None = None
    login: str | None = None
    log: Path | None = None


class Refused(Exception):
    """The proxy answers a request with an error status instead of forwarding it."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class ForwardProxy:
    """The proxy in one event loop. `start` returns its port, and `close` ends every connection."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, *, port: int = 0) -> int:
        """Listen on 127.0.0.1 and return the port. `port=0` chooses a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=LONGEST_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every open connection."""
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
            # A peer that disconnects in the middle is not an error of the proxy.
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
    """Return the address of a request's destination, and the path to request there."""
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
    """Pass bytes in both directions until the upstream has closed its side."""
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
    """Split `host:port` into host and port number. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(f"{text!r} has no host: it must be host:port")
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
    parser.add_argument("--port", type=int, default=0, help="port to listen on at 127.0.0.1; 0 chooses a free port")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="HOST:PORT=HOST:PORT",
        help="send the traffic of the first address to the second",
    )
    parser.add_argument(
        "--allow",
        action="append",
        metavar="HOST:PORT",
        help="serve only this destination; can be repeated (default: all)",
    )
    parser.add_argument(
        "--login-env", help="variable with the user:password that clients must send (default: no login)"
    )
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
