"""`ostler flower`: Flower as a read-only view.

Flower answers every call that would change a worker or a task with 403. Flower requires a login, unless the settings
allow Flower without a login. The only secrets of the process are the address of Redis and the logins of Flower. The
options come from `FlowerSettings` and from constants of this module. `FLOWER_…` variables and `flowerconfig.py` have no
effect, so that neither of them can allow access to Flower by accident.

Flower sends nothing to workers, not even queries, because workers accept no remote control (`tasks.worker.app`). Flower
shows tasks and workers only from their events, and the page of a single worker answers 404.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable
from typing import Any

import structlog
from celery.app.control import Control
from flower.app import Flower
from flower.options import options
from flower.urls import settings as handlers
from kombu.utils.url import parse_url
from tornado.ioloop import IOLoop

from ostler.errors import ConfigurationError
from ostler.settings import FlowerSettings
from tasks.worker.app import SETTINGS, app, assert_in_force

MOST_TASKS = 10_000
"""Upper bound on tasks in Flower's memory. The oldest tasks are dropped first."""

SAVED_EVERY = 60_000
"""Milliseconds between two writes of the state file."""

FORGOTTEN_AFTER = 600
"""Seconds after which an offline worker is no longer shown. Each deploy starts workers with new names."""

COLUMNS = "name,kwargs,state,received,started,runtime,retries,worker"

log = structlog.get_logger(__name__)


class Silent(Control):  # type: ignore[misc]
    """Remote control that sends nothing. Otherwise even a listener for events would ask workers for a heartbeat."""

    def broadcast(self, *_: Any, **__: Any) -> None:
        """Send nothing."""


class View(Flower):  # type: ignore[misc]
    """Flower that sends no query to a worker."""

    def update_workers(self, workername: str | None = None) -> Awaitable[None]:  # noqa: ARG002 - Flower's
        """Return a finished future. Flower gets its information on workers from their events."""
        done: asyncio.Future[None] = asyncio.get_event_loop().create_future()
        done.set_result(None)
        return done


def tls_options(url: str) -> dict[str, Any] | None:
    """Return the TLS options of a Redis address, or None if the address does not use TLS.

    Flower's broker page has no other source for these options.
    """
    found: dict[str, Any] | None = parse_url(url).get("ssl")
    return found


def run_flower(settings: FlowerSettings) -> None:
    """Serve Flower until SIGTERM or SIGINT.

    Raises `ConfigurationError` if no login is set, unless the settings allow Flower without a login.
    """
    if not settings.flower_basic_auth and not settings.flower_without_login:
        raise ConfigurationError(
            "OSTLER_FLOWER_BASIC_AUTH: it is not set; set it to `user:password`, or set "
            "OSTLER_FLOWER_WITHOUT_LOGIN=true if a proxy in front of Flower asks for a login"
        )
    url = settings.redis_url.reveal()
    app.conf.update(broker_url=url, broker_use_ssl=tls_options(url), **SETTINGS)
    assert_in_force(app)
    _set_options(settings)
    app.control = Silent(app)
    flower = View(capp=app, options=options, **handlers)
    port = flower.start_http_server()
    loop = IOLoop.current()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_event_loop().add_signal_handler(number, loop.stop)
    log.info(
        "flower.started",
        port=port,
        login_required=bool(settings.flower_basic_auth),
        state_file=settings.flower_state_file,
    )
    flower.start()
    flower.stop()  # writes the state file
    log.info("flower.stopped")


def _set_options(settings: FlowerSettings) -> None:
    # This variable would allow any web page to read the API through the browser of a logged-in person.
    os.environ.pop("FLOWER_UNAUTHENTICATED_API", None)
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    options.address = settings.flower_host
    options.port = settings.flower_port
    options.basic_auth = [secret.reveal() for secret in settings.flower_basic_auth]
    options.read_only = True
    options.enable_events = False  # workers send their events without a request
    options.max_tasks = MOST_TASKS
    options.purge_offline_workers = FORGOTTEN_AFTER
    options.tasks_columns = COLUMNS
    options.persistent = settings.flower_state_file is not None
    if settings.flower_state_file is not None:
        options.db = settings.flower_state_file
        options.state_save_interval = SAVED_EVERY
