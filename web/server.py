"""`ostler web`: one process, one event loop, graceful on SIGTERM.

Uvicorn waits for open requests before it tells the application to stop, and a held poll is an open
request for up to a minute. So the polls are ended first, with 204, and their offers withdrawn.
"""

from __future__ import annotations

import resource
import socket

import uvicorn
from fastapi import FastAPI

from models.connections import WEB, admit
from models.engine import make_engine
from ostler.settings import Settings
from web.app import Web, build_app
from web.limits import BoundedProtocol

_GRACE = 20
_BACKLOG = 4096


class Server(uvicorn.Server):
    """Uvicorn's server that ends the held polls before it waits for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the polls, then stop."""
        web: Web | None = getattr(self.config.app.state, "web", None)  # type: ignore[union-attr]
        if web is not None:
            await web.end_polls()
        await super().shutdown(sockets)


def make_server(settings: Settings, *, app: FastAPI | None = None) -> Server:
    """Return the server of this process, not yet started; a test may bring its own application."""
    return Server(
        uvicorn.Config(
            app if app is not None else build_app(settings),
            host=settings.web_host,
            port=settings.web_port,
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            access_log=False,  # a line per poll, and tokens stay out of it by not being there
            log_config=None,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE,
        )
    )


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises what `models.connections.admit` raises, before it listens."""
    _allow_open_files()
    engine = make_engine(settings.database_url, pool_size=1, application="ostler-web")
    admit(engine, needs=WEB, share=settings.connection_share, budget=settings.connection_budget)
    engine.dispose()
    server = make_server(settings)
    server.run()
    if not server.started:
        raise SystemExit(3)


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each held poll is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
