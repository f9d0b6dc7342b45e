"""Records of webhooks with a malformed payload.

Because of these records, the sweep `redelivery` does not request the same webhooks again soon. The GUIDs of one second
are written in one statement, in the thread of the announcements. A GUID that cannot be written is dropped. The sweep
then requests the webhook with this GUID once more. Ostler refuses the webhook again and records its GUID again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from models.db.engine import transaction
from models.db.sql import text
from models.sweeps import redelivery
from ostler.logging import get_logger
from ostler.reasons import reason_of
from web.intake.announcements import LOCK_MS

WRITE_AFTER = 1.0
"""Seconds from the first new GUID to the statement that writes it.

The statement also writes all GUIDs that arrive in this time.
"""

MOST_NOTES = 1000
"""Maximum number of GUIDs that wait to be written. Further GUIDs are dropped."""

log = get_logger(__name__)


class MalformedNotes:
    """Collects GUIDs in the event loop. Until `stop`, `executor` writes them to Postgres."""

    def __init__(self, *, engine: Engine, executor: Executor, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._executor = executor
        self._clock = clock
        self._guids: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, guid: str) -> None:
        """Record the GUID of a malformed delivery. This method does not wait until the GUID is written."""
        if len(self._guids) >= MOST_NOTES:
            return
        self._guids.add(guid)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_AFTER, self._submit)

    def stop(self) -> None:
        """Submit the GUIDs that are not written yet to the executor."""
        if self._timer is not None:
            self._timer.cancel()
            self._submit()

    def _submit(self) -> None:
        self._timer = None
        guids, self._guids = sorted(self._guids), set()
        if guids:
            self._executor.submit(self._write, guids)

    def _write(self, guids: list[str]) -> None:
        def note(db: Connection) -> None:
            db.execute(text("SELECT set_config('lock_timeout', :most, true)"), {"most": str(LOCK_MS)})
            redelivery.record_malformed(db, guids, now=self._clock())

        try:
            transaction(self._engine, note)
        except (DBAPIError, PoolTimeoutError) as error:
            log.warning("webhook.malformed_not_recorded", deliveries=len(guids), error=reason_of(error))
