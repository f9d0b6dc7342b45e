"""The listener: one thread that receives the notices of the NOTIFY channel for its web process.

The listener has its own connection in autocommit mode. Every `BEAT_EVERY` seconds it sends a notice to itself over
another connection. It writes the heartbeat row only after it has received this notice. A process that receives no
notices therefore does not renew its heartbeat, and the matcher ignores its offers.

The listener passes each notice to the event loop. Notices that are sent during a reconnect are lost. After each
connect, the listener therefore calls `hearing`. The process then offers the Pods of its held polls again, and queries
the claims of these Pods.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from typing import Any, Protocol

import psycopg2
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from models.db import channel
from models.db.engine import transaction
from models.state import offers
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import reason_of
from ostler.secrets import Secret

BEAT_EVERY = 5.0
DEAF_AFTER = 12.0
"""Seconds without a notice of its own after which the listener closes the connection.

This time must be below 15 seconds. After 15 seconds the matcher ignores a process without a heartbeat.
"""
_FORGET_EVERY = 60  # number of beats between two deletions of the offers of dead processes
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0

log = get_logger(__name__)


class Hearer(Protocol):
    """Receiver of the notices. The methods are always called in the event loop."""

    def hearing(self) -> None:
        """Called when notices arrive again, after a connect."""

    def deaf(self) -> None:
        """Called when notices no longer arrive."""

    def heard(self, notice: channel.Minted | channel.Superseded) -> None:
        """Called with each notice."""

    def tick(self) -> None:
        """Called every `BEAT_EVERY` seconds, to query claims whose notices might have been lost."""


class Listener:
    """The thread of the listener, and its connection."""

    def __init__(
        self, *, engine: Engine, url: Secret, web_id: str, loop: asyncio.AbstractEventLoop, hearer: Hearer
    ) -> None:
        self._engine = engine
        self._url = url
        self._web_id = web_id
        self._loop = loop
        self._hearer = hearer
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._number = 0
        self._heard_beat_at = 0.0
        self.is_hearing = False
        self.connects = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """End the thread and close its connection."""
        self._stopping.set()
        os.write(self._wake_write, b"x")
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("postgres_listener.not_stopped_in_time")
            return
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                self._listen()
            except (psycopg2.Error, SQLAlchemyError, OSError) as error:
                log.warning("postgres_listener.connection_lost", error=reason_of(error), retry_after_seconds=pause)
            except Exception:  # without this thread the process would receive no notices and not detect this
                log.exception("postgres_listener.failed", retry_after_seconds=pause)
            if self.is_hearing:
                self.is_hearing = False
                self._tell(self._hearer.deaf)
                pause = _FIRST_PAUSE
            else:
                pause = min(2 * pause, _LONGEST_PAUSE)
            self._stopping.wait(pause)

    def _listen(self) -> None:
        connection = channel.listen(self._url)
        self.connects += 1
        try:
            self._heard_beat_at = time.monotonic()
            next_beat = self._heard_beat_at
            ready = select.poll()  # not select(): a process that holds polls has descriptors above 1024
            ready.register(self._wake_read, select.POLLIN)
            ready.register(connection.fileno(), select.POLLIN)
            while not self._stopping.is_set():
                now = time.monotonic()
                if now - self._heard_beat_at > DEAF_AFTER:
                    log.warning(
                        "postgres_listener.notifications_not_received",
                        seconds_without_notification=DEAF_AFTER,
                        remedy="if a pooler such as PgBouncer is before Postgres, set it to session mode",
                    )
                    return
                if now >= next_beat:
                    next_beat = now + BEAT_EVERY
                    self._send_beat()
                readable = ready.poll(max(0.0, next_beat - time.monotonic()) * 1000)
                if any(descriptor == connection.fileno() for descriptor, _ in readable):
                    self._take(connection)
        finally:
            connection.close()

    def _send_beat(self) -> None:
        self._number += 1
        number = self._number
        transaction(self._engine, lambda db: offers.notify_beat(db, web_id=self._web_id, number=number))

    def _take(self, connection: Any) -> None:
        connection.poll()
        if not connection.notifies:
            # After the backend was killed, the first poll() succeeds and only the second one raises.
            connection.poll()
        while connection.notifies:
            payload = connection.notifies.pop(0).payload
            notice = channel.parse(payload)
            if isinstance(notice, channel.Beat):
                if notice.web_id == self._web_id:
                    self._hear_beat(notice.number)
            elif notice is not None:
                self._tell(self._hearer.heard, notice)

    def _hear_beat(self, number: int) -> None:
        self._heard_beat_at = time.monotonic()
        now = utcnow()
        transaction(
            self._engine,
            lambda db: offers.beat(db, web_id=self._web_id, now=now),
        )
        if number % _FORGET_EVERY == 1:
            transaction(self._engine, lambda db: offers.delete_dead_offers(db, now=now))
        if self.is_hearing:
            self._tell(self._hearer.tick)
        else:
            self.is_hearing = True
            log.info("postgres_listener.connected", connections_since_start=self.connects)
            self._tell(self._hearer.hearing)

    def _tell(self, call: Any, *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)
