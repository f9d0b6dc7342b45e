"""`ostler.catch_up`: compares GitHub's lists with the rows, to find jobs whose webhooks did not arrive.

A job that GitHub shows as queued and that has no row is stored as if its webhook had arrived. A job is marked as
completed if GitHub shows that the job or its run is over, or if GitHub no longer has a job that waited too long. Only
repositories with recent jobs or open jobs are read. The requests contain etags, and use up at most a small share of the
rate limit of the installation. When calls are scarce, these requests are refused first. If a tick does not complete the
check of a repository, the next tick continues the check. `docs/decisions/0015-catching-up-by-lists.md` gives the
reasons.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from github_adapters.endpoints.pages import PAGE, ListPage
from github_adapters.endpoints.runs import RunSeen
from github_adapters.webhooks import Home
from models.db.engine import is_locked
from models.intake import intake
from models.intake.binding_locks import Contended
from models.routing.accounts import access_of_new, default_budget
from models.state import job_holds, stalls
from models.sweeps import catch_up as rows
from models.sweeps.repairs import Case
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import NotInstalled, RateLimited, Retryable, Suspended, UpstreamError
from ostler.reasons import words_of
from ostler.task_names import ASK_RUN, CATCH_UP
from rules.claims.machines import JobState
from rules.claims.stalls import Cause, FoundBy
from rules.intake.events import WorkflowJobEvent
from rules.sweeps.catch_up import Catch, judge_listed, wait_after
from rules.sweeps.limits import Source, Witness
from rules.sweeps.unresolved import LONGEST_QUEUED, next_ask_after
from tasks.claims.release import send_release
from tasks.sweeps.frame.pace import EXPECTED, RESERVE, Ended, Overtaken
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import Policy, calls, remaining
from tasks.worker.transactions import NOW

T = TypeVar("T")
log = structlog.get_logger(__name__)

ACTIVE = ("queued", "in_progress", "waiting", "pending")
"""States of runs that might have queued jobs.

A run in progress still queues jobs, for example the jobs of a matrix and jobs that need other jobs. A run is `waiting`
while one of its jobs waits for an environment, and `pending` while one of its jobs waits for a concurrency group. A
`requested` run has no jobs yet.
"""

MOST_PAGES_OF_RUNS = 10
"""Upper bound on pages of a list of runs. GitHub shows at most 1,000 runs of a status, the newest first."""

MOST_PAGES_OF_JOBS = 100
"""Upper bound on pages of the list of a run's jobs. GitHub lists the oldest jobs first."""

_PROGRESS = "progress"
"""Key in `Place.lists`, beside the states of runs: the run and the page of its jobs to continue with."""

LONGEST = 200.0
"""Longest time in seconds of one tick, well below its period."""

MOST_UNANSWERED = 3
"""Number of consecutive calls without an answer after which a tick skips the installation."""

LOCK_MS = 250
"""Longest wait in milliseconds for an uncommitted insert of the same job by another session.

A job whose row another session has locked is left to a later tick.
"""

_SHORT = "GitHub's list ended before it had as many entries as GitHub counts; the next tick reads the list again"
_WORDS = {
    "allowance": "the hourly calls of `catch_up` for the installation are used up",
    "failed": "an unexpected error occurred",
    "limited": "the rate limit is reached",
    "no_answer": "GitHub did not answer",
    "refused": "GitHub refused a request",
    "time": "the time of the tick was used up",
    "uninstalled": "the App is suspended or no longer installed",
}
"""Descriptions of the labels `why` of `telemetry.CATCH_UP_INCOMPLETE`."""

ONCE = Policy(adapter_attempts=1, task_retries=0, call_seconds=10)
"""Policy of one call. The next tick repeats a failed call, because a retry would use up more of the allowance."""


class _Left(Ended):
    """Ends the check of a repository before it is complete. The next tick continues the check.

    `why` is a label of `telemetry.CATCH_UP_INCOMPLETE`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@sweep(CATCH_UP, longest=LONGEST)
def catch_up(tick: Tick) -> None:
    """Check one repository after the other.

    If GitHub does not answer for one installation, the repositories of other installations are still checked (law L14).
    """
    settings = tick.rt.settings
    seen_within = timedelta(seconds=settings.timings.catch_up_seen_within)
    places = tick.read(rows.places, seen_within=seen_within, note=not tick.dry, now=NOW)
    unavailable: dict[int, str] = {}
    unanswered: Counter[int] = Counter()
    for number, place in enumerate(places):
        if place.installation_id in unavailable:
            telemetry.CATCH_UP_INCOMPLETE.labels(unavailable[place.installation_id]).inc()
            continue
        if not tick.page():
            telemetry.CATCH_UP_INCOMPLETE.labels("time").inc(len(places) - number)
            return
        try:
            why = visit(tick, place, unanswered)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            tick.skipped(error, repository=place.repository)  # the next tick tries this repository again (L14)
            continue
        if why is None:
            continue
        telemetry.CATCH_UP_INCOMPLETE.labels(why).inc()
        if why in {"allowance", "limited", "uninstalled"} or unanswered[place.installation_id] >= MOST_UNANSWERED:
            unavailable[place.installation_id] = why
        if why == "uninstalled":
            put_off(tick, [each for each in places if each.installation_id == place.installation_id])
        elif why == "refused":
            put_off(tick, [place])


def visit(tick: Tick, place: rows.Place, unanswered: Counter[int]) -> str | None:
    """Check one repository. Return why the check is incomplete, or None if it is complete.

    `unanswered`: number of consecutive calls without an answer, by installation.
    """
    visiting = _Visit(tick, place, unanswered)
    visiting.begin()
    why = None
    try:
        error = tick.attempt(lambda _: visiting.run(), place, repository=place.repository)
    except _Left as left:
        why = left.why
        tick.incomplete(f"the check of a repository is left to the next tick: {_WORDS[why]}")
    else:
        if error is None:
            tick.listed(1)
        else:
            why = _why(error)
            unanswered[place.installation_id] += why == "no_answer"
        if why == "limited":
            tick.incomplete("the rate limit is reached")
        if error is not None and not isinstance(error, EXPECTED):  # stored data of another version might be the cause
            place.lists, place.settled = {}, {}
    visiting.record(whole=why is None)
    return why


def _why(error: Exception) -> str:
    if isinstance(error, RateLimited):
        return "limited"
    if isinstance(error, NotInstalled | Suspended):
        return "uninstalled"
    if isinstance(error, Retryable):
        return "no_answer"
    return "refused" if isinstance(error, UpstreamError) else "failed"


def put_off(tick: Tick, places: Sequence[rows.Place]) -> None:
    """Postpone the checks of repositories that GitHub does not show to the App. No job is changed (law L8)."""
    if tick.dry or not places:
        return
    failures = max(place.failures for place in places) + 1
    wait = wait_after(failures, least=timedelta(seconds=tick.rt.timings.catch_up_every))
    names = [place.repository for place in places]
    tick.rt.transaction(lambda db: rows.put_off(db, names, not_before=utcnow() + wait))


class _Visit:
    """The check of one repository. `place` is the stored progress and changes during the check."""

    def __init__(self, tick: Tick, place: rows.Place, unanswered: Counter[int]) -> None:
        settings = tick.rt.settings
        self._unanswered = unanswered
        self._tick = tick
        self._rt = tick.rt
        self._place = place
        self._began = utcnow()
        self._after = timedelta(seconds=settings.timings.catch_up_after)
        self._over_after = timedelta(seconds=settings.timings.catch_up_over_after)
        self._budget = default_budget(settings)
        self._access = access_of_new(settings)

    def begin(self) -> None:
        """Record that a check of the repository begins.

        If the check crashes the process, the next tick begins with another repository.
        """
        if not self._tick.dry:
            self._rt.transaction(rows.begin, self._place.repository, tried_at=self._began)

    def run(self) -> None:
        """Check the runs that might have queued jobs. Then check the stored jobs that have been open for too long."""
        place = self._place
        place.began_at = place.began_at or self._began
        active = {run.id: run for status in ACTIVE for run in self._active(status)}
        place.settled = {run: etag for run, etag in place.settled.items() if int(run) in active}
        for run_id in sorted(active):
            run = active[run_id]
            if run_id >= (place.next_run or 0) and self._began - run.created_at >= self._after:
                place.next_run = run_id
                done = self._attempt(run_id, lambda run=run: self._visit_run(run))  # type: ignore[misc]
                place.lists.pop(_PROGRESS, None)
                if not done:
                    place.next_run = run_id + 1
                    self._tolerate_unanswered()
        place.next_run = None
        self._check_our_runs(active)

    def record(self, *, whole: bool) -> None:
        """Store the progress of the check. `whole`: True if the check is complete."""
        if self._tick.dry:
            return
        place = self._place
        checked_at = place.began_at if whole else None
        place.began_at = None if whole else place.began_at
        kept = self._rt.transaction(
            lambda db: rows.record_visit(db, self._tick.lease_no, place, tried_at=utcnow(), checked_at=checked_at),
        )
        if not kept:
            raise Overtaken

    # Runs

    def _attempt(self, run_id: int, body: Callable[[], None]) -> bool:
        """Check a run with `body`. Return True if the check succeeded; False if it failed.

        A failed check of one run stops no other check (law L14). Raises `_Left` if GitHub asks to wait, if the App
        cannot act for the installation, or if the time or the allowance is used up.
        """
        error = self._tick.attempt(lambda _: body(), run_id, repository=self._place.repository, run=run_id)
        if error is None:
            return True
        why = _why(error)
        if why in {"limited", "uninstalled"}:
            raise _Left(why)
        self._tick.incomplete(f"the check of a workflow run failed: {_WORDS[why]}")
        self._unanswered[self._place.installation_id] += why == "no_answer"
        return False

    def _tolerate_unanswered(self) -> None:
        """End the check of the repository after `MOST_UNANSWERED` consecutive calls without an answer.

        The cause is then probably GitHub, not a single run.
        """
        if self._unanswered[self._place.installation_id] >= MOST_UNANSWERED:
            raise _Left("no_answer")

    def _active(self, status: str) -> list[RunSeen]:
        """Return the runs with this status. If GitHub answers that the list has not changed, return the stored runs."""
        known = _remembered(self._place.lists.get(status))
        before = self._place.lists.pop(status, None)
        first, runs = self._pages(
            lambda page, etag: self._rt.github.list_runs(
                installation_id=self._place.installation_id,
                repository=self._place.repository,
                status=status,
                page=page,
                etag=etag,
                policy=calls(ONCE),
            ),
            etag=None if known is None else known[0],
            most=MOST_PAGES_OF_RUNS,
        )
        if first.total > MOST_PAGES_OF_RUNS * PAGE:
            self._tick.incomplete(
                f"{first.total} runs are {status}, and GitHub shows the newest {MOST_PAGES_OF_RUNS * PAGE}"
            )
        if first.unchanged and known is not None:
            self._place.lists[status] = before
            return known[1]
        if first.etag is not None and first.total <= PAGE:  # an etag applies to one page only
            self._place.lists[status] = {"etag": first.etag, "runs": [_stored(run) for run in runs]}
        return runs

    def _visit_run(self, run: RunSeen) -> None:
        """Compare the jobs of a run with the rows, page by page.

        If the tick ends between two pages, the next tick continues with the stored page. A run of any length is thus
        read whole, even if one tick may make fewer calls than the run has pages.
        """
        place = self._place
        number = _page_of(place.lists.pop(_PROGRESS, None), run.id)
        etag, settled, shown = place.settled.pop(str(run.id), None), number == 1, (number - 1) * PAGE
        while True:
            place.lists[_PROGRESS] = {"run": run.id, "page": number}
            known = etag if number == 1 else None
            page = self._paid(lambda number=number, known=known: self._ask_jobs(run, page=number, etag=known))  # type: ignore[misc]
            if page.unchanged:
                place.settled[str(run.id)] = str(known)
                return
            settled &= self._compare(page.items) and page.total <= PAGE and page.malformed == 0
            shown += len(page.items) + page.malformed
            if shown >= page.total or not page.items or number == MOST_PAGES_OF_JOBS:
                break
            number += 1
        if shown < page.total and number == MOST_PAGES_OF_JOBS:
            self._tick.incomplete(f"a run has {page.total} jobs, and only the first {number * PAGE} are checked")
        elif shown < page.total:
            raise Retryable(_SHORT)
        elif settled and page.etag is not None and not self._tick.dry:
            place.settled[str(run.id)] = str(page.etag)

    def _compare(self, jobs: Sequence[WorkflowJobEvent]) -> bool:
        """Compare listed jobs of a run with the rows. Return True if they need no further check."""
        states = self._tick.read(rows.states_of, [job.job_id for job in jobs])
        settled = True
        for job in jobs:
            verdict = judge_listed(
                status=job.status,
                created_at=job.created_at,
                completed_at=job.completed_at,
                ours=states.get(job.job_id),
                after=self._after,
                over_after=self._over_after,
                now=utcnow(),
            )
            if verdict is Catch.BRING:
                settled &= self._bring(job, states.get(job.job_id))
            elif verdict is Catch.FINISH:
                settled &= self._finish(job, states.get(job.job_id), why="GitHub says that the job is over")
            else:
                settled &= verdict is Catch.LEAVE
        return settled

    # Jobs

    def _check_our_runs(self, active: Mapping[int, RunSeen]) -> None:
        """Ask GitHub for the runs of stored jobs that have been open for long, except the runs in `active`."""
        found = self._tick.read(
            rows.overdue, self._place.repository, active=active, older_than=self._over_after, now=NOW
        )
        by_run: dict[int, list[rows.Overdue]] = defaultdict(list)
        for job in found:
            by_run[job.run_id].append(job)
        later: dict[int, datetime] = {}
        try:
            for run_id, jobs in by_run.items():
                done: set[int] = set()
                heard = self._attempt(
                    run_id,
                    lambda run_id=run_id, jobs=jobs, done=done: self._ask_overdue(run_id, jobs, done),  # type: ignore[misc]
                )
                later.update((job.id, self._ask_after(job)) for job in jobs if job.id not in done)
                if not heard:
                    self._tolerate_unanswered()
        finally:
            if later and not self._tick.dry:
                self._rt.transaction(job_holds.ask_each_later, later)

    def _ask_after(self, job: rows.Overdue) -> datetime:
        now = utcnow()
        return now + next_ask_after(now - job.ready_at, least=self._over_after / 2, most=self._over_after)

    def _ask_overdue(self, run_id: int, jobs: Sequence[rows.Overdue], done: set[int]) -> None:
        """Ask GitHub for a run, and judge the given jobs of the run.

        Jobs about which GitHub need not be asked again are added to `done`, by id.
        """
        found = self._paid(
            lambda: self._rt.github.look_up_run(
                installation_id=self._place.installation_id,
                repository=self._place.repository,
                run_id=run_id,
                policy=calls(ONCE),
                optional=True,
            )
        )
        run = next(iter(found.items), None)
        listed: dict[int, WorkflowJobEvent] = {}
        if run is not None and run.over:
            first, shown = self._pages(
                lambda page, _: self._ask_jobs(run, page=page, every_attempt=True), most=MOST_PAGES_OF_JOBS
            )
            if first.total > MOST_PAGES_OF_JOBS * PAGE:  # a job that was not read is not a job that does not exist (L8)
                raise Retryable(_SHORT)
            listed = {job.job_id: job for job in shown}
        for job in jobs:
            if self._judge_overdue(job, run, listed.get(job.id)):
                done.add(job.id)

    def _judge_overdue(self, job: rows.Overdue, run: RunSeen | None, listed: WorkflowJobEvent | None) -> bool:
        """Mark a job as completed if it is over.

        Return True if the job is marked; False if the job is not over, if its webhook is still expected, if the
        repository now belongs to another owner, or if the change failed.
        """
        if listed is not None:
            return listed.owner_id == self._place.account_id and self._judge_listed(job, run, listed)
        over = job.state is not JobState.RUNNING and (run is None or run.over)
        if over and utcnow() - job.ready_at > LONGEST_QUEUED:
            case = Case(
                what="finish",
                why="GitHub has no such job",
                job_id=job.id,
                before=JobState.QUEUED,
                after=JobState.COMPLETED,
                witnesses=(Witness(Source.GITHUB, "GitHub has neither the job nor its run"),),
            )
            return self._repair(case, lambda db: rows.give_up(db, job.id, now=utcnow(), who=self._rt.who))[0]
        return False

    def _judge_listed(self, job: rows.Overdue, run: RunSeen | None, listed: WorkflowJobEvent) -> bool:
        """Mark a job that GitHub lists as completed if it is over, or if its run is over before the job began."""
        if listed.status == "completed":
            over_for = utcnow() - (listed.completed_at or listed.created_at)
            # the webhook or the Pod will report the end
            waits = job.state is JobState.RUNNING and over_for < self._over_after
            return not waits and self._finish(listed, job.state, why="GitHub says that the job is over")
        if job.state is JobState.RUNNING or listed.status == "in_progress" or run is None or not run.over:
            return False
        if run.attempt < listed.run_attempt:
            return False  # an answer about an attempt before the job's attempt proves nothing
        how = run.conclusion or "unknown"
        stuck = replace(listed, conclusion=listed.conclusion or how)
        why = f"GitHub shows the job as {listed.status} in a run that is over ({how})"
        return self._finish(stuck, JobState.QUEUED, why=why)

    def _bring(self, job: WorkflowJobEvent, before: JobState | None) -> bool:
        why = "GitHub shows the job as queued, and its webhook did not arrive"
        return self._apply(replace(job, action="queued"), before, what="bring", after=JobState.QUEUED, why=why)

    def _finish(self, job: WorkflowJobEvent, before: JobState | None, *, why: str) -> bool:
        event = replace(job, action="completed", conclusion=job.conclusion or "unknown")
        return self._apply(event, before, what="finish", after=JobState.COMPLETED, why=why)

    def _apply(self, event: WorkflowJobEvent, before: JobState | None, *, what: str, after: JobState, why: str) -> bool:
        """Apply an event as if its webhook had arrived, unless the repository now belongs to another owner.

        Return False if the change failed; True otherwise.
        """
        if event.owner_id != self._place.account_id:
            log.warning("catch_up.repository_has_another_owner", repository=self._place.repository, job=event.job_id)
            return True  # the name of the repository now belongs to another owner
        case = Case(
            what=what,
            why=why,
            job_id=event.job_id,
            before=before,
            after=after,
            runner_name=event.runner_name,
            witnesses=(Witness(Source.GITHUB, f"the job is {event.status}"),),
        )
        guid = f"catch_up/{self._tick.lease_no}/{event.job_id}/{event.action}"

        def body(db: Connection) -> intake.Applied | None:
            if rows.states_of(db, [event.job_id]).get(event.job_id) is not before:
                return None  # the webhook of the job arrived meanwhile
            now = utcnow()
            if before is None:
                stalls.served(
                    db, Cause.WEBHOOK_LOST, FoundBy.CATCH_UP, since=event.created_at, job_id=event.job_id, now=now
                )
            received = [intake.Received(guid, event)]
            return intake.apply(
                db, received, budget=self._budget, now=now, who=self._rt.who, lock_ms=LOCK_MS, access=self._access
            )

        went, applied = self._repair(case, body)
        if applied is not None:
            self._wake(applied)
        return went

    def _repair(self, case: Case, body: Callable[[Connection], T | None]) -> tuple[bool, T | None]:
        """Make a repair. Return True and its result, or False and None if Postgres did not accept the repair.

        If Postgres refuses a job, or another session has locked its row, the other jobs are still repaired (law L14).
        """
        try:
            return True, self._tick.repair(case, body)
        except (DBAPIError, Contended) as error:
            self._tick.skipped(error, row=case.job_id)
            return False, None

    def _wake(self, applied: intake.Applied) -> None:
        telemetry.runners_bound(remaps=applied.remaps, starts=applied.starts)
        waker = self._rt.waker
        messages: list[Callable[[], object]] = [
            *(partial(waker.wake, pool_id) for pool_id in sorted(applied.wakes)),
            *(partial(waker.send, ASK_RUN, run_id=run_id) for run_id in sorted(applied.asks)),
            *(partial(send_release, self._rt, claim_id) for claim_id in applied.releases),
            *(partial(waker.reconcile, pool_id) for pool_id in sorted(applied.reconcile)),
        ]
        for message in messages:
            try:
                message()
            except EXPECTED as error:  # `resume` repeats this message (L6); the others are still sent (L14)
                log.warning("catch_up.message_not_sent", repository=self._place.repository, error=words_of(error))

    # Requests

    def _ask_jobs(
        self, run: RunSeen, *, page: int, etag: str | None = None, every_attempt: bool = False
    ) -> ListPage[WorkflowJobEvent]:
        return self._rt.github.list_run_jobs(
            installation_id=self._place.installation_id,
            repository=self._place.repository,
            run=run,
            page=page,
            every_attempt=every_attempt,
            etag=etag,
            policy=calls(ONCE),
        )

    def _pages(
        self, ask: Callable[[int, str | None], ListPage[T]], *, most: int, etag: str | None = None
    ) -> tuple[ListPage[T], list[T]]:
        """Return the first page of a list, and the items of its pages, up to `most` pages.

        Raises `Retryable` if these pages have fewer items than the count in GitHub's answer (law L8).
        """
        first = self._paid(lambda: ask(1, etag))
        items, page, number = list(first.items), first, 1
        shown = len(first.items) + first.malformed
        while not first.unchanged and shown < page.total and number < most:
            number += 1
            page = self._paid(lambda number=number: ask(number, None))  # type: ignore[misc]
            if not page.items:
                break
            items += page.items
            shown += len(page.items) + page.malformed
        if not first.unchanged and shown < min(page.total, most * PAGE):
            raise Retryable(_SHORT)
        return (replace(first, etag=etag) if first.unchanged else first), items

    def _paid(self, call: Callable[[], ListPage[T]]) -> ListPage[T]:
        """Make one call that counts against the installation's allowance.

        If Ostler's own rate limiter refuses the call, wait and repeat the call while there is time. Raises `_Left` if
        the time or the allowance is used up, and what GitHub's adapter raises.
        """
        while True:
            if not (self._tick.goes_on() if remaining() > ONCE.call_seconds + RESERVE else self._tick.page()):
                raise _Left("time")
            quota = self._pay()
            try:
                answer = call()
            except RateLimited as limited:
                self._give_back(1, quota)  # the call was not made, or cost nothing
                if not limited.paced or limited.after > ONCE.call_seconds:
                    raise
                time.sleep(limited.after)
                continue
            self._unanswered[self._place.installation_id] = 0
            told = answer.quota or quota
            if answer.cost != 1 or told != quota:
                self._give_back(1 - answer.cost, told)
            return answer

    # A dry run uses the allowance too, because its calls are real.

    def _pay(self) -> int:
        percent = self._rt.timings.catch_up_percent
        left = self._rt.transaction(rows.pay, self._place.installation_id, percent=percent, now=NOW)
        if left is None:
            raise _Left("allowance")
        return left.quota

    def _give_back(self, calls: int, quota: int) -> None:
        self._rt.transaction(rows.give_back, self._place.installation_id, calls=calls, quota=quota)


def _page_of(entry: Any, run_id: int) -> int:
    """Return the stored page of a run's jobs, or 1 if the entry is of another run or has another shape."""
    try:
        return max(1, int(entry["page"])) if entry["run"] == run_id else 1
    except (LookupError, TypeError, ValueError):
        return 1


def _stored(run: RunSeen) -> dict[str, Any]:
    return asdict(run) | {"created_at": run.created_at.isoformat()}


def _remembered(entry: Any) -> tuple[str, list[RunSeen]] | None:
    """Return the stored etag and runs of a list, or None if another version stored them in another shape."""
    try:
        return str(entry["etag"]), [_run(each) for each in entry["runs"]]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _run(kept: dict[str, Any]) -> RunSeen:
    created_at = datetime.fromisoformat(kept["created_at"])
    heads = tuple(kept["pull_request_heads"])
    return RunSeen(**(kept | {"created_at": created_at, "home": Home(**kept["home"]), "pull_request_heads": heads}))
