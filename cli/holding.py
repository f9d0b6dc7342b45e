"""Hold a connection open and report whether the network broke it. This code runs in the Pod of `ostler verify-deploy`.

The break of an idle connection is invisible, so the code sends a small HTTP request every few seconds. A server can end
a connection after an answer, with a header or by closing the connection. Such an end is not a break, and the code opens
a new connection. A break is a failure of the network: a missing answer, a reset, an end in the middle of an answer, or
a failed attempt to open a new connection.
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
_KEPT = 10  # breaks with details in the report, which must fit into a termination message of 4 KiB
_MOST = 64 * 1024  # maximum size of the headers in bytes


@dataclass(frozen=True, slots=True)
class Target:
    """Server and path of the requests. `tls` is true for https."""

    host: str
    port: int
    tls: bool
    path: str


@dataclass(slots=True)
class Report:
    """Result of holding a connection. Times are in seconds since the start.

    `connected` is true if at least one answer arrived. `answers` counts all answers. `closed` counts connections that
    the server ended. `broken` counts all breaks. `breaks` has the time and the cause of the first ten breaks. `longest`
    is the longest wait for an answer in seconds.
    """

    connected: bool = False
    answers: int = 0
    closed: int = 0
    broken: int = 0
    longest: float = 0.0
    breaks: list[dict[str, float | str]] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    """Addresses that the Pod reached although a stamped Pod must not reach them."""


class _Closed(Exception):
    """The server ended the connection between two answers."""


def parse_target(url: str) -> Target:
    """Return the target of a URL. Raises ValueError if `url` is not http or https with a host."""
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
    """Use a connection for `seconds` seconds and return the report. Network failures are reported and not raised.

    `every` is the number of seconds between two requests. `patience` is the maximum wait for an answer in seconds.
    `connected` is called once, after the first answer.
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
            if report.connected:  # a failure before the first connection is not a break
                report.broken += 1
                if len(report.breaks) < _KEPT:
                    report.breaks.append({"at": round(now - began, 1), "how": _describe(error)})
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
    """Return whether `host:port` accepts a TCP connection within `patience` seconds."""
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
    """Send one request and read its answer.

    Raises `_Closed` if the server ended the connection before the request, or OSError if the connection breaks.
    """
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
            raise ConnectionError(f"the answer has more than {_MOST} bytes")
    if b"\r\nconnection: close" in read.lower():
        link.close()


def _has_ended(link: socket.socket) -> bool:
    """Return whether the server ended the connection since the last answer."""
    if link.fileno() < 0:  # the last answer had `Connection: close`, so `_ask` closed the socket
        return True
    if not select.select([link], [], [], 0)[0]:
        return False
    patience = link.gettimeout()
    link.settimeout(0.0)
    try:
        return link.recv(1) == b""
    except (ssl.SSLWantReadError, BlockingIOError):  # the data was a TLS record without application data
        return False
    finally:
        link.settimeout(patience)


def _drop(link: socket.socket | None) -> None:
    if link is not None:
        with contextlib.suppress(OSError):
            link.close()


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)[:100]
