"""Hold a connection for a while, and tell whether it was broken: what runs inside the Pod of `ostler verify-deploy`.

An idle connection tells nothing until it is used, so a small HTTP request goes over it every few seconds. A server may
end a connection between two answers, by saying so or by closing it; that is no break, and a new one is made. A break is
what a network does: no answer in time, a reset, an end in the middle, and afterwards no new connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_KEPT = 10  # breaks that are told one by one: the report is to fit into a termination message of 4 KiB
_MOST = 64 * 1024  # bytes of headers


@dataclass(frozen=True, slots=True)
class Target:
    """Where the connection goes."""

    host: str
    port: int
    tls: bool
    path: str


@dataclass(slots=True)
class Report:
    """What came of it. Times are in seconds since the beginning.

    `connected`: whether there ever was a connection. `breaks` holds the first few, `broken` counts all; `closed` counts
    connections that the server ended. `longest` is the longest wait for an answer.
    """

    connected: bool = False
    answers: int = 0
    closed: int = 0
    broken: int = 0
    longest: float = 0.0
    breaks: list[dict[str, float | str]] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    """Of those that a stamped Pod must not reach, the ones that it did."""


class _Closed(Exception):
    """The server ended the connection between two answers."""


def parse_target(url: str) -> Target:
    """Return where a URL leads. ValueError when it is not http or https with a host."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL like https://github.com/")
    return Target(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme == "https", parts.path or "/")


def hold(
    target: Target,
    *,
    seconds: float,
    every: float = 2.0,
    patience: float = 10.0,
    connected: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """Keep a connection in use for `seconds` and return the report; network failures are reported, not raised.

    `every`: seconds between two requests; `patience`: how long an answer may take. `connected` is called once, after
    the first answer.
    """
    report = Report()
    began = clock()
    link: socket.socket | None = None
    while (now := clock()) - began < seconds:
        try:
            link = link or _connect(target, patience)
            _ask(link, target)
        except _Closed:
            report.closed += 1
            _drop(link)
            link = None
            continue
        except (OSError, ssl.SSLError) as error:
            _drop(link)
            link = None
            if report.connected:  # before that nothing was held
                report.broken += 1
                if len(report.breaks) < _KEPT:
                    report.breaks.append({"at": round(now - began, 1), "how": _told(error)})
        else:
            report.answers += 1
            report.longest = max(report.longest, round(clock() - now, 3))
            if not report.connected:
                report.connected = True
                connected()
        sleep(every)
    _drop(link)
    return report


def reaches(address: str, *, patience: float = 3.0) -> bool:
    """Return whether `host:port` takes a TCP connection."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience):
            return True
    except OSError:
        return False


def _connect(target: Target, patience: float) -> socket.socket:
    link = socket.create_connection((target.host, target.port), timeout=patience)
    if not target.tls:
        return link
    try:
        return ssl.create_default_context().wrap_socket(link, server_hostname=target.host)
    except BaseException:
        link.close()
        raise


def _ask(link: socket.socket, target: Target) -> None:
    """Send one request and read its answer. Raises _Closed, or OSError for a break."""
    if _has_ended(link):
        raise _Closed
    link.sendall(
        f"HEAD {target.path} HTTP/1.1\r\nHost: {target.host}\r\nUser-Agent: ostler-verify-deploy\r\n\r\n".encode()
    )
    read = b""
    while b"\r\n\r\n" not in read:
        piece = link.recv(4096)
        if not piece:
            raise ConnectionError(
                "the connection ended without an answer"
                if not read
                else "the connection ended in the middle of an answer"
            )
        read += piece
        if len(read) > _MOST:
            raise ConnectionError("the answer is too long")
    if b"\r\nconnection: close" in read.lower():
        link.close()


def _has_ended(link: socket.socket) -> bool:
    """Return whether the server ended the connection while nothing was asked."""
    if link.fileno() < 0:  # its last answer said so
        return True
    if not select.select([link], [], [], 0)[0]:
        return False
    patience = link.gettimeout()
    link.settimeout(0.0)
    try:
        return link.recv(1) == b""
    except (ssl.SSLWantReadError, BlockingIOError):  # TLS has things of its own to say
        return False
    finally:
        link.settimeout(patience)


def _drop(link: socket.socket | None) -> None:
    if link is not None:
        with contextlib.suppress(OSError):
            link.close()


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)[:100]
