"""`ostler.redelivery`: finds failed webhooks in GitHub's list of deliveries and asks GitHub to send them again.

GitHub never repeats a webhook by itself. If web was killed, answered 503 or lost the connection during a webhook, the
webhook arrives only through this sweep or through a request by hand. A webhook whose GUID is in the table `deliveries`
was accepted and is not requested. A webhook that web refused as malformed is requested every 12 hours. The requests of
one tick are spread over all installations. If a page of the list cannot be read, or the list might be incomplete, the
checkpoint does not change (law L8). Up to the checkpoint, the list was read completely.
`docs/decisions/0009-redelivery-in-two-checks.md` explains how the list is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from github_adapters.endpoints.pages import PAGE
from models.db import epochs
from models.intake.announcements import TAKEN
from models.sweeps import redelivery as asks
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.errors import Forbidden, Gone, Invalid, RateLimited, UpstreamError
from ostler.reasons import meaning_of
from ostler.task_names import REDELIVERY
from rules.sweeps.limits import Expect, Repaired, Source, Witness
from rules.sweeps.redelivery import PageEnd, Progress, next_ask_after, page_end, recent_floor, scan_floor, scan_is_due
from tasks.sweeps.frame.pace import Overtaken
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP, calls, remaining
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

CHECK_RESERVE = 12.0
SCAN_RESERVE = 8.0
ASK_RESERVE = 2.0
"""Seconds of the tick that must be left for another page or request.

`CHECK_RESERVE` applies to the check of recent deliveries, `SCAN_RESERVE` to the scan, and `ASK_RESERVE` to the
requests. Each reserve leaves time for the following steps.
"""

MOST_FAILURES = 3
"""Number of consecutive failed requests after which the remaining requests wait for the next tick."""


@sweep(REDELIVERY)
def redelivery(tick: Tick) -> None:
    """Read the new entries of the list, continue the scan, then request redeliveries."""
    rt = tick.rt
    overlap = timedelta(seconds=rt.timings.redelivery_overlap)
    progress = tick.read(asks.begin, overlap=overlap, note=not tick.dry, now=NOW)
    if progress is None:
        tick.incomplete("GitHub asked Ostler to wait, and the wait is not over")
        return
    counts: Counter[str] = Counter()
    not_before = None
    sweep = _Sweep(tick, progress, counts)
    try:
        sweep.list_recent()
        sweep.scan()
        sweep.ask()
        if sweep.unread is not None:
            tick.abort(f"GitHub's list could not be read: {sweep.unread}")
    except RateLimited as limited:
        not_before = utcnow() + timedelta(seconds=limited.after)
        tick.incomplete("the rate limit is reached")
        log.warning("redelivery.rate_limited", wait_seconds=limited.after)
    if not tick.dry:
        rt.transaction(asks.wait, not_before=not_before)
    log.info("redelivery.ended", **counts)


class _Sweep:
    """One execution of the sweep. `progress` shows how far the list was read, as it was last committed."""

    def __init__(self, tick: Tick, progress: Progress, counts: Counter[str]) -> None:
        rt = tick.rt
        self._tick = tick
        self._rt = rt
        self._progress = progress
        self._counts = counts
        self.unread: str | None = None
        """Error at the newest page of the list, or None. After such an error, this tick could not read the list."""
        self._accepted: set[str] = set()
        self._shown: dict[str, asks.Failed] = {}
        """Failed deliveries by GUID that a dry run found and did not store."""
        self._overlap = timedelta(seconds=rt.timings.redelivery_overlap)
        self._kept = timedelta(seconds=rt.settings.redelivery_kept)
        self._lost = tick.read(epochs.lost)
        """Time range of webhooks that were accepted and might be missing from a restored Postgres, or None."""

    def list_recent(self) -> None:
        """Read the list from the newest delivery back to shortly before the start of the last complete check."""
        began = utcnow()
        floor = recent_floor(self._progress, overlap=self._overlap, now=began)
        cursor: str | None = None
        try:
            while remaining() > CHECK_RESERVE and self._tick.goes_on(reserve=0):
                page = self._page(cursor)
                end = _end(page, is_first=cursor is None, floor=floor)
                if end is PageEnd.WHOLE:
                    self._record(page, floor, replace(self._progress, checked_at=began))
                    return
                self._record(page, floor, self._progress)
                if end is PageEnd.DOUBT:
                    break
                cursor = page.next_cursor
        except UpstreamError as error:
            if cursor is None:
                self.unread = meaning_of(error)
            _failed(error)
        log.warning("redelivery.recent_deliveries_not_read")

    def scan(self) -> None:
        """Read the list back to `overlap` before the start of the last complete scan. A scan may take many ticks."""
        now = utcnow()
        if not scan_is_due(self._progress, overlap=self._overlap, now=now):
            return
        floor = scan_floor(self._progress, overlap=self._overlap, kept=self._kept, now=now)
        began = self._progress.scan_began or now
        cursor = self._progress.scan_cursor
        try:
            while remaining() > SCAN_RESERVE and self._tick.goes_on(reserve=0):
                page = self._page(cursor)
                end = _end(page, is_first=cursor is None, floor=floor)
                cursor = page.next_cursor if end is PageEnd.MORE else None
                done = end is PageEnd.WHOLE
                self._record(
                    page,
                    floor,
                    replace(
                        self._progress,
                        checkpoint=began if done else self._progress.checkpoint,
                        scan_began=began if end is PageEnd.MORE else None,
                        scan_cursor=cursor,
                    ),
                )
                if done:
                    log.info("redelivery.scan_completed", read_back_to=floor.isoformat())
                    return
                if end is PageEnd.DOUBT:
                    log.warning("redelivery.list_ended_early", read_back_to=floor.isoformat())
                    return
        except Invalid:  # the cursor is too old, so the scan starts again
            self._save(replace(self._progress, scan_began=None, scan_cursor=None))
            log.warning("redelivery.scan_restarted_because_cursor_expired")
        except UpstreamError as error:
            _failed(error)
        log.info("redelivery.scan_unfinished", must_read_back_to=floor.isoformat())

    def ask(self) -> None:
        """Request the redeliveries that are due, while at least one web process runs to receive them."""
        if not self._tick.dry:
            self._settle()
        limit = self._rt.timings.redelivery_batch
        due = [*self._rt.transaction(asks.due, limit=limit, now=NOW), *self._unwritten()]
        if due and not self._rt.transaction(asks.web_beats, now=NOW):
            log.warning("redelivery.postponed_because_no_web_process_runs", deliveries=len(due))
            return
        failures = 0
        for each in due:
            if remaining() < ASK_RESERVE or failures >= MOST_FAILURES or not self._tick.goes_on(reserve=0):
                self._tick.incomplete("the time of the tick was used up, or GitHub did not answer")
                return
            try:
                failures = 0 if self._ask_in_turn(each) else failures
            except RateLimited:
                raise
            except (UpstreamError, DBAPIError) as error:  # one failed request must not stop the others (L14)
                failures = 0 if isinstance(error, (Gone, Invalid)) else failures + 1  # these two are GitHub's answers
                self._counts["requests_failed"] += 1
                self._tick.skipped(error, delivery=each.guid, request_count=each.asks)
                if isinstance(error, Forbidden):
                    return

    def _settle(self) -> None:
        """Delete the rows of webhooks that were accepted, and of webhooks that GitHub no longer stores.

        Webhooks that GitHub no longer stores are counted as lost.
        """
        accepted, lost = self._rt.transaction(asks.close_settled, kept=self._kept, now=NOW)
        self._counts["webhooks_recovered"] += accepted
        for guid in lost:
            log.error("redelivery.webhook_lost", delivery=guid, why="GitHub no longer stores the webhook")
        self._counts["webhooks_lost"] += len(lost)

    def _ask_in_turn(self, due: asks.Due) -> bool:
        """Request one redelivery.

        If Ostler's own rate limiter refuses the request, wait and repeat the request while there is time. A refused
        request does not count in the number of requests of the webhook. Raises `RateLimited` if GitHub refuses the
        request, or if no time is left.
        """
        while True:
            try:
                return self._ask_one(due)
            except RateLimited as limited:
                self._tick.finish_repair(self._tick.written, Repaired.FAILED, "the rate limit is reached")
                self._rt.transaction(asks.take_back, due, now=NOW)
                if not limited.paced or remaining() - limited.after < ASK_RESERVE:
                    raise
                after = limited.after
            time.sleep(after)

    def _unwritten(self) -> list[asks.Due]:
        """Return the redeliveries that the tick would have stored and requested without the dry run."""
        known = self._tick.read(asks.known, list(self._shown))
        return [asks.Due(each.guid, each.delivery_id, 1) for each in self._shown.values() if each.guid not in known]

    def _ask_one(self, due: asks.Due) -> bool:
        after = next_ask_after(
            due.asks, again_after=timedelta(seconds=self._rt.timings.redelivery_again_after), kept=self._kept
        )
        case = Case(
            what="ask again",
            why=f"no row has this delivery, request {due.asks}",
            subject=due.guid,
            expects=Expect.ACCEPTED,
            witnesses=(Witness(Source.GITHUB, f"delivery {due.delivery_id}"),),
        )

        def begin(db: Connection) -> bool:
            if self._shown:
                asks.record_failed(db, list(self._shown.values()), now=utcnow())
            return asks.begin_ask(db, due, next_after=after, now=utcnow())

        begun = self._tick.repair(case, begin)
        if not begun:
            return False
        self._rt.github.redeliver(delivery_id=due.delivery_id, deadline_seconds=remaining())
        self._counts["redeliveries_requested"] += 1
        log.info("redelivery.requested", delivery=due.guid, github_delivery_id=due.delivery_id, request_count=due.asks)
        return True

    def _page(self, cursor: str | None) -> DeliveryPage:
        page = self._rt.github.list_deliveries(cursor=cursor, policy=calls(SWEEP))
        self._tick.mark_checked()
        self._counts["pages_read"] += 1
        self._counts["malformed_entries"] += page.malformed
        return page

    def _record(self, page: DeliveryPage, floor: datetime, progress: Progress) -> None:
        """Commit the failed deliveries of a page. The same transaction stores how far the list was read."""
        ours = [each for each in page.deliveries if each.action in TAKEN.get(each.event, ())]
        self._counts["unused_events"] += len(page.deliveries) - len(ours)
        self._accepted.update(each.guid for each in ours if each.accepted and not self._may_be_lost(each))
        failed = group(each for each in ours if each.guid not in self._accepted and each.delivered_at >= floor)
        self._counts["failed_deliveries"] += len(failed)
        self._save(progress, failed)

    def _may_be_lost(self, seen: DeliverySeen) -> bool:
        """Return True if a restore of Postgres might have lost the row of an accepted delivery; False otherwise.

        Only the table of deliveries shows whether the row still exists. The table is read when this sweep records the
        page of GitHub's list that contains the delivery.
        """
        lost = self._lost
        if lost is None or seen.delivered_at > lost.until:
            return False
        return lost.since is None or seen.delivered_at >= lost.since

    def _save(self, progress: Progress, failed: Sequence[asks.Failed] = ()) -> None:
        if self._tick.dry:
            self._shown.update({each.guid: each for each in failed})
        else:
            saved = self._rt.transaction(
                asks.record_page,
                self._tick.lease_no,
                failed=failed,
                accepted=sorted(self._accepted),
                progress=progress,
                now=NOW,
            )
            if not saved:
                raise Overtaken
        self._progress = progress


def group(failed: Iterable[DeliverySeen]) -> list[asks.Failed]:
    """Return one entry for each GUID. An entry has the id of the newest attempt and the time of the oldest failure."""
    found: dict[str, asks.Failed] = {}
    for each in failed:
        before = found.get(each.guid)
        found[each.guid] = asks.Failed(
            guid=each.guid,
            delivery_id=max(each.id, before.delivery_id if before else 0),
            delivered_at=min(each.delivered_at, before.delivered_at if before else each.delivered_at),
            installation_id=each.installation_id,
        )
    return list(found.values())


def _end(page: DeliveryPage, *, is_first: bool, floor: datetime) -> PageEnd:
    seen = page.deliveries
    return page_end(
        oldest=seen[-1].delivered_at if seen else None,
        is_first=is_first,
        is_full=len(seen) + page.malformed >= PAGE,
        has_next=page.next_cursor is not None,
        floor=floor,
    )


def _failed(error: UpstreamError) -> None:
    """Log the error of a list that failed. If the error is a rate limit, raise it again, which ends the tick."""
    if isinstance(error, RateLimited):
        raise error
    log.warning("redelivery.list_not_read", error=meaning_of(error))
