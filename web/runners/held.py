"""One held poll."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime

from k8s_adapters.runners.identity import PodIdentity
from models.state.offers import Polling
from rules.claims.poll_answers import Answer, Verdict


class Poll:
    """A held poll. It has a future for the present answer, and the state that it keeps between two answers.

    `written` is True if the offer of the poll might be in the table. `closed` is True if the client has closed the
    connection. `superseded` is True if the Pod has sent a newer poll. `tries` is the number of tries that found a
    locked row. `retry` is the timer of the next try. `cancels` is the id of a claim, or None. The un-stamp of this
    claim began before the poll arrived. The poll cancels this un-stamp, even if the delivery needs several tries.
    """

    __slots__ = (
        "_future",
        "_loop",
        "cancels",
        "closed",
        "ends_at",
        "id",
        "identity",
        "retry",
        "superseded",
        "tries",
        "until",
        "written",
    )

    def __init__(
        self, *, identity: PodIdentity, until: datetime, ends_at: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.id = uuid.uuid4().hex
        self.identity = identity
        self.until = until
        self.ends_at = ends_at
        self.written = False
        self.closed = False
        self.superseded = False
        self.tries = 0
        self.cancels: int | None = None
        self.retry: asyncio.TimerHandle | None = None
        self._loop = loop
        self._future: asyncio.Future[Answer] = loop.create_future()

    @property
    def pod_uid(self) -> str:
        """Return the UID of the Pod that polls."""
        return self.identity.pod_uid

    @property
    def is_over(self) -> bool:
        """Return whether the poll has been held long enough and must be answered now."""
        return self._loop.time() >= self.ends_at

    def resolve(self, answer: Answer) -> None:
        """Set the answer of the poll, unless the poll has an answer already.

        An answer with the verdict HOLD is ignored, because the poll then stays held.
        """
        if answer.verdict is not Verdict.HOLD and not self._future.done():
            self._future.set_result(answer)

    async def answered(self) -> Answer:
        """Wait until the poll has an answer, and return the answer."""
        return await self._future

    def renew(self) -> None:
        """Remove the answer, because it did not end the poll. The poll then waits for another answer."""
        if self._future.done():
            self._future = self._loop.create_future()

    def polling(self) -> Polling:
        """Return the data for the offer of the poll."""
        return Polling(
            pod_uid=self.pod_uid,
            namespace=self.identity.namespace,
            pod_name=self.identity.pod_name,
            poll_id=self.id,
            until=self.until,
            again=self.written,
        )
