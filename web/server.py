"""`ostler web`: one process with one event loop, which shuts down gracefully on SIGTERM.

The process listens on the ports that `web.edge.ports` names. On SIGTERM, Uvicorn waits until all open requests are
answered, but at most `_GRACE` seconds. A held poll would be an open request for up to a minute, and a stream of the
dashboard for longer. The server therefore first answers all polls with 204, withdraws their offers, and ends the
streams.
"""

from __future__ import annotations

import asyncio
import functools
import resource
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from models.db.connections import WEB, admit
from models.db.engine import make_engine
from ostler.errors import ConfigurationError
from ostler.logging import get_logger
from ostler.settings import Settings
from web.app import Web, build_app
from web.edge.limits import BoundedProtocol
from web.edge.ports import Audience, Ports, wanted
from web.edge.tls import Certificate, Gate, keep_large_buffers_apart
from web.process.collector import settle

_GRACE = 20
_BACKLOG = 4096

log = get_logger(__name__)


class Server(uvicorn.Server):
    """Uvicorn's server, which listens on the ports of the settings.

    On shutdown, the server ends the held polls before it waits for open requests.
    """

    def __init__(self, config: uvicorn.Config, *, settings: Settings, ports: Ports) -> None:
        super().__init__(config)
        self.ports = ports
        self.on_started: Callable[[], None] = _nothing
        self.certificate: Certificate | None = None
        self._settings = settings
        self._gate: Gate | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen on every port.

        Exits with status 3 if a port cannot be bound, for example because it is in use, and with status 2 if the
        certificate cannot be used.
        """
        secured = None
        if sockets is None:
            try:
                self.certificate = self._certificate()
                sockets, secured = self._bind()
            except OSError as error:
                log.error("web.port_not_opened", error=str(error))  # noqa: TRY400  the message has all facts
                raise SystemExit(3) from None
            except ConfigurationError as error:
                log.error("web.certificate_not_usable", error=str(error))  # noqa: TRY400  the message has all facts
                raise SystemExit(2) from None
        await super().startup(sockets=sockets)
        if secured is not None:
            self._listen_by_tls(secured)
        self.on_started()
        log.info(
            "web.listening", **{f"{each}_port": self.ports.of(each) for each in Audience}, polls_tls_port=self.ports.tls
        )

    def _certificate(self) -> Certificate | None:
        certificate, key = self._settings.web_polls_tls_cert, self._settings.web_polls_tls_key
        return None if certificate is None or key is None else Certificate(certificate, key)

    def _bind(self) -> tuple[list[socket.socket], socket.socket | None]:
        """Return the bound sockets without TLS, and the bound socket with TLS.

        The socket with TLS is None if there is no certificate.
        """
        plain = self.ports.bind(self._settings.web_host, wanted(self._settings))
        if self.certificate is None:
            return plain, None
        try:
            return plain, self.ports.bind_tls(self._settings.web_host, self._settings.web_polls_tls_port)
        except BaseException:
            for each in plain:
                each.close()
            raise

    def _listen_by_tls(self, secured: socket.socket) -> None:
        loop, certificate = asyncio.get_running_loop(), self.certificate
        if certificate is None:
            raise RuntimeError("the port with TLS is bound, but no certificate is loaded")

        def served() -> asyncio.Protocol:
            protocol: Any = self.config.http_protocol_class
            made: asyncio.Protocol = protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            return made

        keep_large_buffers_apart()
        connections = self.ports.caps[secured.getsockname()[1]]
        self._gate = Gate(secured, certificate, connections=connections, make=served)
        self._gate.start(backlog=self.config.backlog)
        self._keeper = loop.create_task(certificate.keep())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the polls, then stop the server."""
        if self._gate is not None and self._keeper is not None:
            self._keeper.cancel()
            await self._gate.stop()
        web: Web | None = getattr(self.config.app.state, "web", None)  # type: ignore[union-attr]
        if web is not None:
            await web.end_polls()
        await super().shutdown(sockets)


def make_server(settings: Settings, *, app: FastAPI | None = None) -> Server:
    """Return the server of this process. It is not started yet. Tests may pass their own application in `app`."""
    served = app if app is not None else build_app(settings)
    ports = Ports()
    served.state.ports = ports
    protocol: Any = functools.partial(BoundedProtocol, caps=ports.caps)
    return Server(
        uvicorn.Config(
            served,
            loop="uvloop",
            http=protocol,
            ws="none",
            lifespan="on",
            access_log=False,  # a line for each poll would be too many, and without the log no token can leak into it
            log_config=None,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE,
        ),
        settings=settings,
        ports=ports,
    )


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    If Postgres cannot serve this process, raises the errors of `models.db.connections.admit` before the server listens.
    Exits with status 3 if the server could not start.
    """
    _allow_open_files()
    engine = make_engine(settings.database_url, pool_size=1, application="ostler-web")
    admit(engine, needs=WEB, share=settings.connection_share, budget=settings.connection_budget)
    engine.dispose()
    server = make_server(settings)
    server.on_started = settle
    server.run()
    if not server.started:
        raise SystemExit(3)


def _nothing() -> None:
    """Do nothing. This is the default of `on_started`.

    `run` sets `on_started` to a function that configures the garbage collector. A test must not configure the garbage
    collector, because other tests run in the same process.
    """


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard limit.

    Each held poll is a connection, and each connection is an open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
