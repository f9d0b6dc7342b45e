"""Ports of `ostler web`, and the paths that each port serves.

| port | setting | what is served | who should reach it |
| --- | --- | --- | --- |
| public | `OSTLER_WEB_PORT` | webhooks, API, dashboard | GitHub, people |
| polls | `OSTLER_WEB_POLLS_PORT` | the runners' polls | runner Pods that have no job yet |
| polls by TLS | `OSTLER_WEB_POLLS_TLS_PORT` | the same polls, if a certificate is set | the same Pods |
| private | `OSTLER_WEB_PRIVATE_PORT` | metrics, health | Prometheus, the kubelet |

If `OSTLER_WEB_PUBLIC_POLLS` is true, the public port serves polls too. If `OSTLER_WEB_PLAIN_POLLS` is false, the
process does not listen on `OSTLER_WEB_POLLS_PORT`. If several settings name the same port, this port serves the paths
of all of them. The TLS port is never shared. If a port does not serve the path of a request, the answer is 404, as for
a path that does not exist.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ostler.settings import Settings
from web.edge.connections import Connections

POLL_PATH = "/runners/v1/dispatch"
_PRIVATE_PATHS = frozenset({"/metrics", "/healthz", "/readyz"})


class Audience(StrEnum):
    """The group of clients that a path is for."""

    PUBLIC = "public"
    POLLS = "polls"
    PRIVATE = "private"


MOST_CONNECTIONS: Mapping[Audience, int] = {Audience.PUBLIC: 1_000, Audience.POLLS: 5_000, Audience.PRIVATE: 200}
"""Maximum number of unproven connections of a port, by audience.

The limit for polls is the largest, because all Pods of a fleet poll at once when `web` starts.
"""

_PART_OF_FILES = 4
"""Divisor of the limit of open files. The quotient is an upper limit for the unproven connections of a port."""


def audience_of(path: str) -> Audience:
    """Return the audience of a path. A path that does not exist belongs to the public audience."""
    if path == POLL_PATH:
        return Audience.POLLS
    return Audience.PRIVATE if path in _PRIVATE_PATHS else Audience.PUBLIC


def wanted(settings: Settings) -> dict[int, frozenset[Audience]]:
    """Return the ports to listen on without TLS, with the audiences that each port serves.

    Port 0 means any free port.
    """
    serves: dict[int, set[Audience]] = {}
    for port, audience in (
        (settings.web_port, Audience.PUBLIC),
        (settings.web_polls_port, Audience.POLLS),
        (settings.web_private_port, Audience.PRIVATE),
    ):
        if audience is not Audience.POLLS or settings.web_plain_polls:
            serves.setdefault(port, set()).add(audience)
    if settings.web_public_polls:
        serves[settings.web_port].add(Audience.POLLS)
    return {port: frozenset(audiences) for port, audiences in serves.items()}


@dataclass
class Ports:
    """The ports that a process listens on. `serves` has the audiences of each port.

    `caps` has the connection cap of each port.
    """

    serves: dict[int, frozenset[Audience]] = field(default_factory=dict)
    caps: dict[int, Connections] = field(default_factory=dict)
    tls: int | None = None
    """The port with TLS, or None if there is no certificate."""

    def bind(self, host: str, ports: Mapping[int, Iterable[Audience]]) -> list[socket.socket]:
        """Return a bound socket for each port. The sockets do not listen yet.

        Raises OSError if a port cannot be bound, for example because it is in use.
        """
        sockets: list[socket.socket] = []
        try:
            for port, audiences in ports.items():
                sockets.append(_bound(host, port))
                self._serve(sockets[-1], audiences)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return sockets

    def bind_tls(self, host: str, port: int) -> socket.socket:
        """Return a bound socket for polls by TLS. The socket does not listen yet.

        Raises OSError if the port cannot be bound, for example because it is in use.
        """
        found = _bound(host, port)
        self.tls = self._serve(found, (Audience.POLLS,))
        return found

    def _serve(self, bound: socket.socket, audiences: Iterable[Audience]) -> int:
        port: int = bound.getsockname()[1]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.serves[port] = frozenset(audiences)
        most = max(MOST_CONNECTIONS[each] for each in audiences)
        self.caps[port] = Connections(min(most, max(1, files // _PART_OF_FILES)))
        return port

    def refuses(self, port: int | None, path: str) -> bool:
        """Return True if the port does not serve the path; False if it does.

        If `port` is None, the application runs without a server, and the result is False.
        """
        return port is not None and audience_of(path) not in self.serves.get(port, ())

    def of(self, audience: Audience) -> int:
        """Return a port that serves this audience. A port that serves only this audience is preferred.

        Raises KeyError if no port serves this audience.
        """
        found = [port for port, audiences in self.serves.items() if audience in audiences]
        if not found:
            raise KeyError(f"no port serves {audience}")
        return min(found, key=lambda port: len(self.serves[port]))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise OSError(
            error.errno, f"cannot listen on {host} port {port}: {error.strerror}; set another address or port"
        ) from error
    return found
