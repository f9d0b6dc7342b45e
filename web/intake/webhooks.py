"""Intake of GitHub's webhooks. Each webhook is verified and parsed, and is answered after its rows are committed.

Deliveries about jobs are committed in batches (`web.intake.batches`). Announcements about installations and names are
committed one by one in a separate thread. After the commit, the publisher sends the resulting messages. No webhook
waits for the publisher, so the intake also works while Redis and the workers are down.

A delivery is answered with 503 if the queue or the memory for bodies is full, the database is away or too slow, another
session holds locks on its rows, or the process is stopping. The sweep `redelivery` later requests this delivery from
GitHub again.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from github_adapters.webhooks import MalformedPayload, parse_workflow_job, verify_signature
from models.db.engine import transaction
from models.intake import intake
from models.routing.accounts import access_of_new, default_budget
from ostler import telemetry
from ostler.clock import utcnow
from ostler.logging import get_logger
from ostler.reasons import words_of
from ostler.settings import Settings
from ostler.task_names import ASK_OWNER, ASK_RUN, RELEASE, REMATCH
from rules.intake.events import WorkflowJobEvent
from web.edge.limits import BODY_WITHIN, proven
from web.edge.refused_log import RefusedLog
from web.intake import announcements
from web.intake.batches import CONTENDED_FOR, TRY_AGAIN_AFTER, Batches, NotStored, is_contended
from web.intake.malformed import MalformedNotes
from web.process.publisher import Publisher

ANSWER_WITHIN = 8.0
"""Seconds after which a delivery is answered with 503, even if Postgres has not finished. GitHub waits ten seconds."""

RETRY_AFTER = 5
"""Seconds in the `Retry-After` header of a 503."""

LARGE = 256 * 1024
"""Bodies of at least this many bytes are verified and parsed in another thread.

In the event loop, the work on a large body would delay all other requests.
"""

MOST_UNPROVEN = 64 * 1024 * 1024
"""Maximum number of bytes of unverified bodies in memory, in addition to one body of the maximum size.

Further webhooks are answered with 503.
"""

LONGEST_GUID = 128

RECONCILE_AFTER = 1.0
"""Seconds from the commit of the webhook that ends a claim to the reconcile of the claim's pool.

After this time the Pod of the job is normally terminal. One reconcile then also covers other jobs that ended in the
meantime.
"""

_AGAIN = "Ostler later asks GitHub to send the webhook again"

_KINDS = {"workflow_job": "workflow_job", "ping": "ping"}
_REFUSALS = {
    HTTPStatus.UNAUTHORIZED: "unsigned",
    HTTPStatus.BAD_REQUEST: "malformed",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.INTERNAL_SERVER_ERROR: "failed",
}

log = get_logger(__name__)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, title: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title


@dataclass(frozen=True, slots=True)
class _Accepted:
    """Outcome of a webhook that is answered with 202. `reason` says why the webhook was ignored, or is None."""

    outcome: str
    reason: str | None = None


class Intake:
    """Accepts webhooks in the event loop that called `start`, until `stop` is called.

    `counts` has the number of deliveries for each outcome and each status. Its entry `remapped` is the number of jobs
    that ran on another runner than planned.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        settings: Settings,
        publisher: Publisher,
        clock: Callable[[], datetime] = utcnow,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._settings = settings
        self._publisher = publisher
        self._clock = clock
        self._monotonic = monotonic
        self._budget = default_budget(settings)
        self._access = access_of_new(settings)
        self._batches = Batches(apply=self._apply, applied=self._publish, monotonic=monotonic)
        self._announcer: ThreadPoolExecutor | None = None
        self._malformed: MalformedNotes | None = None
        self._unsigned = RefusedLog(log, "webhook.signature_invalid")
        self._reading = 0
        self._reconciles: dict[int, asyncio.TimerHandle] = {}

    @property
    def depth(self) -> int:
        """Return how many deliveries about jobs wait for their transaction."""
        return self._batches.depth

    def start(self) -> None:
        """Start to accept webhooks. Call it inside the event loop."""
        self._announcer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="announcements")
        self._malformed = MalformedNotes(engine=self._engine, executor=self._announcer, clock=self._clock)
        self._batches.start()

    async def stop(self) -> None:
        """Stop accepting webhooks, and answer all webhooks that were accepted."""
        announcer, self._announcer = self._announcer, None
        malformed, self._malformed = self._malformed, None
        await self._batches.stop()
        if malformed is not None:
            malformed.stop()
        if announcer is not None:
            await asyncio.to_thread(announcer.shutdown)
        for pool_id in list(self._reconciles):
            self._reconcile(pool_id)

    async def receive(self, request: Request) -> Response:
        """Answer one webhook with 202 or with a problem (RFC 9457).

        A problem contains no secret and no data from the database.
        """
        began = self._monotonic()
        kind = _KINDS.get(request.headers.get("x-github-event", ""), "other")
        try:
            body = await self._read(request)
            answer = await self._accept(request, body)
        except _Refused as refused:
            outcome, response = _REFUSALS.get(refused.status, "refused"), self._problem(refused.status, refused.title)
        else:
            outcome, response = answer.outcome, self._done(answer.outcome, answer.reason)
        telemetry.WEBHOOKS.labels(kind, outcome).inc()
        telemetry.WEBHOOK_SECONDS.observe(self._monotonic() - began)
        return response

    # Request path

    async def _read(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _Refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "The webhook is not application/json; set the content type application/json in the GitHub App",
            )
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_WITHIN):
                async for chunk in request.stream():
                    body += chunk
                    self._reading += len(chunk)
                    if (
                        len(body) > self._settings.timings.webhook_max_bytes
                    ):  # counted, because Content-Length might be wrong
                        raise _Refused(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"The body has more than {self._settings.timings.webhook_max_bytes} bytes",
                        )
                    if self._reading > MOST_UNPROVEN + self._settings.timings.webhook_max_bytes:
                        raise _Refused(
                            HTTPStatus.SERVICE_UNAVAILABLE,
                            f"This web process receives too many webhooks at once; {_AGAIN}",
                        )
        except ClientDisconnect:
            raise _Refused(HTTPStatus.BAD_REQUEST, "The connection was closed before the whole body arrived") from None
        except TimeoutError:
            raise _Refused(
                HTTPStatus.REQUEST_TIMEOUT, f"The body did not arrive within {BODY_WITHIN:.0f} seconds"
            ) from None
        finally:
            self._reading -= len(body)
        return bytes(body)

    async def _accept(self, request: Request, body: bytes) -> _Accepted:
        if not await _near(
            body, verify_signature, self._settings.webhook_secrets, body, request.headers.get("x-hub-signature-256")
        ):
            self.counts["unsigned"] += 1
            self._unsigned.add()
            raise _Refused(
                HTTPStatus.UNAUTHORIZED,
                "The signature is missing or wrong; set the webhook secret of the GitHub App to one of "
                "OSTLER_WEBHOOK_SECRETS",
            )
        proven(request.scope)  # a webhook that waits for its commit must not count in the connection cap
        guid = request.headers.get("x-github-delivery", "")
        if not 0 < len(guid) <= LONGEST_GUID or not guid.isprintable():
            raise _Refused(
                HTTPStatus.BAD_REQUEST, f"X-GitHub-Delivery must have 1 to {LONGEST_GUID} printable characters"
            )
        kind = request.headers.get("x-github-event", "")
        if kind == "ping":
            return _Accepted("pong")
        if kind in announcements.EVENTS:
            return await self._announce(kind, guid, body)
        if kind != "workflow_job":
            return _Accepted("ignored", "only workflow_job, installation and rename events are used")
        try:
            event: WorkflowJobEvent = await _near(body, parse_workflow_job, body)
        except MalformedPayload as error:
            raise self._is_malformed(guid, error) from None
        if event.action not in intake.ACTIONS:
            return _Accepted("ignored", "Ostler does not use this action of workflow_job")
        return await self._enqueue(intake.Received(guid=guid, event=event))

    async def _announce(self, kind: str, guid: str, body: bytes) -> _Accepted:
        """Apply a webhook that is not about a job."""
        try:
            announced = await _near(body, announcements.parse, kind, body)
        except MalformedPayload as error:
            raise self._is_malformed(guid, error) from None
        if announced is None:
            return _Accepted("ignored", "Ostler does not use this action of the event")
        apply = functools.partial(
            announcements.apply,
            announced=announced,
            guid=guid,
            event=kind,
            budget=self._budget,
            now=self._clock(),
            access=self._access,
        )
        try:
            outcome, rematch = await self._try_announcement(lambda: transaction(self._engine, apply))
        except (DBAPIError, PoolTimeoutError) as error:
            log.warning("webhook.non_job_event_not_stored", delivery=guid, github_event=kind, error=words_of(error))
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"Postgres cannot store the webhook now; {_AGAIN}") from None
        log.info(
            "webhook.non_job_event_handled",
            github_event=kind,
            action=announced.action,
            account=announced.owner_id,
            outcome=outcome,
        )
        if rematch:
            self._publisher.send(REMATCH)
        return _Accepted(outcome)

    async def _try_announcement(self, apply: Callable[[], tuple[intake.Outcome, bool]]) -> tuple[intake.Outcome, bool]:
        """Apply an announcement.

        If another session has locked its rows, retry the announcement for `CONTENDED_FOR` seconds. Between two tries,
        other announcements can be applied.
        """
        until = self._monotonic() + CONTENDED_FOR
        while self._announcer is not None:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._announcer, apply)
            except DBAPIError as error:
                if not is_contended(error) or self._monotonic() >= until:
                    raise
            await asyncio.sleep(TRY_AGAIN_AFTER)
        raise _Refused(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"This web process is starting or stopping and accepts no webhooks; {_AGAIN}",
        )

    async def _enqueue(self, received: intake.Received) -> _Accepted:
        if not self._batches.running:
            raise _Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"This web process is starting or stopping and accepts no webhooks; {_AGAIN}",
            )
        full = self._batches.depth >= self._settings.intake_queue
        if full and not self._batches.make_room(received.event.owner_id):
            raise _Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, f"Too many webhooks wait for Postgres in this web process; {_AGAIN}"
            )
        try:
            return _Accepted(await self._batches.store(received, within=ANSWER_WITHIN))
        except TimeoutError:  # the delivery might still be stored, and a redelivery then changes nothing
            raise _unavailable() from None
        except NotStored as error:
            if error.later:
                raise _unavailable() from None
            raise _Refused(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "The webhook could not be stored; the log of web has the error in the event webhook.not_stored",
            ) from None

    def _is_malformed(self, guid: str, error: MalformedPayload) -> _Refused:
        """Record the GUID of a delivery with a malformed payload, and return the refusal of the delivery.

        The GUID is recorded because Ostler would refuse the same payload again.
        """
        log.warning("webhook.malformed", delivery=guid, reason=error.reason)
        if self._malformed is not None:
            self._malformed.add(guid)
        return _Refused(HTTPStatus.BAD_REQUEST, f"The payload is malformed: {error.reason}")

    # After the request path

    def _apply(self, batch: Sequence[intake.Received], lock_ms: int) -> intake.Applied:
        """Commit a batch. This method runs in the thread of the batches."""
        now = self._clock()
        return transaction(
            self._engine,
            lambda db: intake.apply(db, batch, budget=self._budget, now=now, lock_ms=lock_ms, access=self._access),
        )

    def _publish(self, applied: intake.Applied) -> None:
        self.counts["remapped"] += len(applied.remaps)
        telemetry.runners_bound(remaps=applied.remaps, starts=applied.starts)
        if applied.wakes:
            self._publisher.wake(sorted(applied.wakes))
        for run_id in sorted(applied.asks):
            self._publisher.send(ASK_RUN, run_id=run_id)
        if applied.strangers:
            self._publisher.send(ASK_OWNER)
        for claim_id in applied.releases:
            self._publisher.send(RELEASE, claim_id=claim_id)
        for pool_id in applied.reconcile - self._reconciles.keys():
            self._reconciles[pool_id] = asyncio.get_running_loop().call_later(RECONCILE_AFTER, self._reconcile, pool_id)

    def _reconcile(self, pool_id: int) -> None:
        self._reconciles.pop(pool_id).cancel()
        self._publisher.reconcile(pool_id)

    # Answers

    def _done(self, outcome: str, reason: str | None = None) -> Response:
        self.counts[outcome] += 1
        body = {"outcome": outcome} | ({"reason": reason} if reason else {})
        return JSONResponse(body, status_code=HTTPStatus.ACCEPTED)

    def _problem(self, status: HTTPStatus, title: str) -> Response:
        self.counts[str(status.value)] += 1
        headers = {"Retry-After": str(RETRY_AFTER)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
        return JSONResponse(
            {"title": title, "status": status.value},
            status_code=status,
            headers=headers,
            media_type="application/problem+json",
        )


def _unavailable() -> _Refused:
    return _Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"Postgres cannot store the webhook now; {_AGAIN}")


async def _near(body: bytes, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `function`.

    For a small body, `function` runs in this thread. For a large body, it runs in another thread.
    """
    if len(body) < LARGE:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)
