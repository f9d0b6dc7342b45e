"""`ostler web`: one process, one event loop, graceful on SIGTERM.

It listens on the ports that `web.ports` names. Uvicorn waits for open requests before it tells the application to
stop, and a held poll is an open request for up to a minute. So the polls are ended first, with 204, and their offers
withdrawn.
"""

from __future__ import annotations

import functools
import resource
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from models.connections import WEB, admit
from models.engine import make_engine
from ostler.logging import get_logger
from ostler.settings import Settings
from web.app import Web, build_app
from web.collector import settle
from web.limits import BoundedProtocol
from web.ports import Audience, Ports, wanted

_GRACE = 20
_BACKLOG = 4096

log = get_logger(__name__)


class Server(uvicorn.Server):
    """Uvicorn's server on the ports of the settings, which ends the held polls before it waits for them."""

    def __init__(self, config: uvicorn.Config, *, settings: Settings, ports: Ports) -> None:
        super().__init__(config)
        self.ports = ports
        self.on_started: Callable[[], None] = _nothing
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on every port, once the application has started. Exits when a port is taken."""
        if sockets is None:
            try:
                sockets = self.ports.bind(self._settings.web_host, wanted(self._settings))
            except OSError as error:
                log.error("web.port_taken", error=str(error))  # noqa: TRY400  one line that says it all
                raise SystemExit(3) from None
        await super().startup(sockets=sockets)
        self.on_started()
        log.info("web.listening", **{each: self.ports.of(each) for each in Audience})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the polls, then stop."""
        web: Web | None = getattr(self.config.app.state, "web", None)  # type: ignore[union-attr]
        if web is not None:
            await web.end_polls()
        await super().shutdown(sockets)


def make_server(settings: Settings, *, app: FastAPI | None = None) -> Server:
    """Return the server of this process, not yet started; a test may bring its own application."""
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
            access_log=False,  # a line per poll, and tokens stay out of it by not being there
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
    """Serve until SIGTERM or SIGINT. Raises what `models.connections.admit` raises, before it listens."""
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
    """Do nothing: a test's process is not the server's alone."""


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each held poll is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
