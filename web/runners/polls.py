"""The runners' long poll: `POST /runners/v1/dispatch`.

A held poll consists of a future in a dict by Pod UID, and of a task that waits until the connection closes. The poll
uses no thread and no database connection. While this process receives notices, it writes the offers of new polls in
batches, every 50 ms.

An event that can end a poll sets the result of its future. The result is wrong if the claim has changed in the meantime
or the notice was late. The poll is then offered again, and the rows of its Pod are read again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from k8s_adapters.runners.identity import PodIdentity
from models.db.channel import Minted, Superseded
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import words_of
from ostler.secrets import Secret
from ostler.settings import Settings
from rules.claims.poll_answers import Answer, Verdict
from web.edge.limits import BODY_WITHIN, proven
from web.edge.refused_log import RefusedLog
from web.runners.handover import Handover, Missed, Recipient
from web.runners.held import Poll
from web.runners.identity import Admission
from web.runners.offering import Offering
from web.runners.replies import RETRY_AFTER, Refusal, bare

MOST_POLLS = 20_000
LARGEST_BODY = 1024
OFFER_BEYOND_HOLD = timedelta(seconds=10)
"""Extra time of an offer after the end of its poll.

The next poll of a working Pod arrives within this time, so the Pod stays offered between two polls.
"""
_MOST_JUDGEMENTS = 8
_STATUS = {Verdict.NOTHING: 204, Verdict.REPLACE: 410, Verdict.REFUSE: 403, Verdict.NOT_YET: 503}
_OVER = Answer(Verdict.NOTHING, "the hold is over")

log = get_logger(__name__)
_random = random.SystemRandom()


class Polls:
    """All polls that this process holds."""

    def __init__(
        self,
        *,
        settings: Settings,
        admission: Admission,
        offering: Offering,
        handover: Handover,
        counts: Counter[str],
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._offering = offering
        self._handover = handover
        self._held = offering.held
        self._stopping = False
        self._refused = RefusedLog(log, "poll.refused", level=logging.INFO)
        self.counts = counts

    @property
    def held(self) -> int:
        """Return the number of held polls."""
        return len(self._held)

    def end_all(self) -> None:
        """Answer every held poll with 204. From then on, answer every new poll with 204 at once."""
        self._stopping = True
        for poll in list(self._held.values()):
            poll.resolve(Answer(Verdict.NOTHING, "this process is stopping"))

    # Calls of the listener

    def hearing(self) -> None:
        """Offer every Pod that has a held poll again.

        Notices were lost while the listener had no connection.
        """
        self._offering.hearing()

    def deaf(self) -> None:
        """Stop offering Pods until notices arrive again."""
        self._offering.deaf()

    def heard(self, notice: Minted | Superseded) -> None:
        """Answer the held poll that a notice names, if this process holds the poll."""
        poll = self._held.get(notice.pod_uid)
        if poll is None:
            return
        if isinstance(notice, Minted):
            poll.resolve(Answer(Verdict.DELIVER, "heard", notice.claim_id))
        elif notice.poll_id == poll.id:
            poll.superseded = True
            poll.resolve(Answer(Verdict.NOTHING, "a newer poll came to another process"))

    def tick(self) -> None:
        """Query the claims of the Pods whose polls this process holds, because notices might have been lost."""
        self._offering.tick()

    # Route

    async def dispatch(self, request: Request) -> Response:
        """Hold one poll until it has an answer, and return the answer."""
        try:
            response = await self._dispatch(request)
        except Refusal as refusal:
            self._refused.add(status=refusal.status, why=refusal.why)
            response = bare(refusal.status)
        except ClientDisconnect:
            response = bare(204)
        except SQLAlchemyError as error:
            # The error might be the lost answer to a commit. The next poll finds out whether the delivery was
            # committed.
            self.counts["poll.database_away"] += 1
            log.warning("poll.database_unavailable", error=words_of(error))
            response = bare(503)
        self.counts[f"poll.{response.status_code}"] += 1
        return response

    async def _dispatch(self, request: Request) -> Response:
        if self._stopping:
            return bare(204)
        if len(self._held) >= MOST_POLLS:
            raise Refusal(503, f"this web process already holds {MOST_POLLS} polls")
        token = self._admission.token(request.headers.get("authorization", ""))
        await _discard_body(request)
        identity = await self._admission.identify(token)
        proven(request.scope)
        return await self._hold(request, identity, token)

    async def _hold(self, request: Request, identity: PodIdentity, token: Secret) -> Response:
        if self._stopping:  # the process began to stop while the token was checked
            return bare(204)
        loop = asyncio.get_running_loop()
        hold = _random.uniform(self._settings.timings.poll_hold_min, self._settings.timings.poll_hold_max)
        until = utcnow() + timedelta(seconds=hold) + OFFER_BEYOND_HOLD
        poll = Poll(identity=identity, until=until, ends_at=loop.time() + hold, loop=loop)
        older = self._held.get(poll.pod_uid)
        if older is not None:
            older.superseded = True
            older.resolve(Answer(Verdict.NOTHING, "a newer poll came"))
        self._held[poll.pod_uid] = poll
        timer = loop.call_later(hold, poll.resolve, _OVER)
        watcher = loop.create_task(_watch(request, poll))
        self._offering.add(poll)
        to = Recipient(
            pod_uid=poll.pod_uid,
            pod_name=poll.identity.pod_name,
            poll_id=poll.id,
            token=token,
            accept=request.headers.get("accept", ""),
        )
        try:
            return await self._settled(poll, to)
        finally:
            timer.cancel()
            watcher.cancel()
            if self._held.get(poll.pod_uid) is poll:
                del self._held[poll.pod_uid]
            self._offering.drop(poll, withdraw=poll.closed)

    async def _settled(self, poll: Poll, to: Recipient) -> Response:
        judged = 0
        locked = False
        while judged < _MOST_JUDGEMENTS:
            answer = await poll.answered()
            if poll.closed or poll.superseded or self._stopping:
                return bare(204)
            if answer.verdict is Verdict.LOOK_UP:
                await self._admission.adopt(poll.identity)
            elif answer.claim_id is not None:
                poll.renew()
                again = answer.verdict is Verdict.DELIVER_AGAIN
                # If the previous try found a locked claim, the token is not reviewed again.
                response = await self._handover.hand_over(
                    answer.claim_id, to, again=again, reviewed=locked, cancels_unstamp=poll.cancels == answer.claim_id
                )
                if isinstance(response, Response):
                    return response
                locked = response is Missed.LOCKED
            else:
                if answer.verdict is not Verdict.NOTHING:
                    log.info(
                        "poll.answered",
                        pod=poll.identity.pod_name,
                        pod_uid=poll.pod_uid,
                        verdict=answer.verdict,
                        why=answer.why,
                    )
                # At the end of a hold, the Pod polls again at once. The offer stays valid until the next poll arrives.
                # A JIT that is minted before the next poll waits for this poll.
                return bare(_STATUS[answer.verdict], retry_after=0 if answer is _OVER else RETRY_AFTER)
            # The rows have changed since the answer, so they are read again.
            poll.renew()
            if poll.is_over or poll.closed or poll.superseded or self._stopping:
                return bare(204)
            if locked:
                self._offering.add_later(poll)
            else:
                judged += 1
                self._offering.add(poll)
        raise Refusal(
            503, f"the rows of this Pod changed during each of {_MOST_JUDGEMENTS} attempts to answer the poll"
        )


async def _watch(request: Request, poll: Poll) -> None:
    """Wait until the connection closes. Then end the poll."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            poll.closed = True
            poll.resolve(Answer(Verdict.NOTHING, "the connection closed"))
            return


async def _discard_body(request: Request) -> None:
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for chunk in request.stream():
                size += len(chunk)
                if size > LARGEST_BODY:
                    raise Refusal(413, f"the body of the poll has more than {LARGEST_BODY} bytes")
    except TimeoutError:
        raise Refusal(408, f"the body of the poll did not arrive within {BODY_WITHIN:g} seconds") from None
