"""One tick of a sweep: its repairs and its records. See `tasks.sweeps.frame.sweep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from models.sweeps import repairs, sweep_runs
from models.sweeps.repairs import Case
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of, words_of
from ostler.task_names import task_of
from rules.sweeps.limits import SUCCESSES, Outcome, Repaired, allowance, enough
from tasks.sweeps.frame.obstacles import closed_gate, earlier_state
from tasks.sweeps.frame.pace import Pace, Sweep
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

T = TypeVar("T")
log = structlog.get_logger(__name__)

_LOGGED = {
    "listed": "objects_listed",
    "found": "repairs_required",
    "repaired": "repairs_made",
    "overflow": "repairs_deferred",
    "moved_on": "repairs_dropped_row_changed",
    "skipped": "rows_skipped",
}
"""Names of the log fields for the fields of `Counts`."""

OBSTACLES: list[Callable[[Runtime], str | None]] = [earlier_state, closed_gate]
"""Functions that return why repairs must not kill now, or None.

A tick calls each function at most once between two renewals of its lease.
"""


def _always(_db: Connection) -> bool:
    return True


class _Undone(Exception):
    """Raised in a transaction to roll it back. It contains the result of the transaction."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class Tick(Pace):
    """One tick of a sweep. A sweep makes all its repairs through this class."""

    def __init__(self, rt: Runtime, spec: Sweep, *, lease_no: int, dry: bool, asked: str | None) -> None:
        super().__init__(rt, spec, lease_no=lease_no, dry=dry)
        self.written: int | None = None
        """Id of the ledger row of the last repair."""
        self._asked = asked
        self._run_id: int | None = None
        self._opened: int | None = None
        self._killed = 0
        self._budget: int | None = None
        """Budget at the time when a repair was last left to a later tick, or None if no repair was left."""

    @cached_property
    def _obstacle(self) -> str | None:
        return next((why for ask in OBSTACLES if (why := ask(self.rt)) is not None), None)

    @property
    def ending(self) -> tuple[Outcome, str | None]:
        """Return the outcome of a tick that ended without an error, and what it left to later ticks, or None."""
        whys = [] if self.trouble is None else [self.trouble]
        if self._budget is not None:
            many = self._counts.overflow
            left = "1 repair is left" if many == 1 else f"{many} repairs are left"
            most = f"of {self._counts.listed} objects listed, one tick may repair {self._budget}"
            whys.append(f"{left} to later ticks: {most}")
        return (Outcome.UNFINISHED, "; ".join(whys)) if whys else (Outcome.DONE, None)

    def _renew(self) -> None:
        super()._renew()
        self.__dict__.pop("_obstacle", None)  # a gate might have tripped meanwhile

    # Repairs

    def repair(
        self,
        case: Case,
        body: Callable[[Connection], T | None],
        *,
        call: Callable[[], object] | None = None,
        still: Callable[[Connection], bool] = _always,
        once: bool = False,
    ) -> T | None:
        """Make one repair. `body` makes the change in one transaction, which also writes the ledger.

        Returns the result of `body`, or None if no change was made. No change is made in a dry run, or if the row has
        changed (`body` or `still` returned a false value). A repair that kills is also not made if an obstacle exists,
        if the budget is used up, or if it has neither two witnesses nor a proof. With `once`, a repair that is made
        again before its outcome was seen gets no second ledger row.

        `call` is a call to GitHub or the cluster that must precede the transaction of `body`. It is made only if
        `still` returns True. If `call` raises an `UpstreamError`, the repair has failed and the error is raised again.
        """
        if not self._may(case):
            return None
        if self.dry:
            self._counts.moved_on += 1 - self._pretend(lambda db: [case] if still(db) and body(db) else [])
            return None
        begun = None
        if call is not None:
            # A separate transaction checks `still` and announces the call in the ledger. Otherwise `body` might find
            # out only after the call that the call was wrong.
            begun = self._begin(case, still)
            if begun is None:
                self._moved_on(case, None)
                return None
            # If the process is killed between the call and the commit, the ledger row stays `begun`, and the sweep must
            # find the same case again.
            self._make(begun, call)

        def commit(db: Connection) -> tuple[T | None, int | None]:
            self._fence(db)
            result = body(db)
            if not result:
                return None, None
            if begun is not None:
                repairs.finish(db, begun, outcome=Repaired.DONE, note=None, now=utcnow())
                return result, begun
            return result, self._write(db, [case], Repaired.DONE, once=once)

        result, written = self._commit(commit)
        if not result:
            self._moved_on(case, begun)
            return None
        self._did(case, written)
        return result

    def _moved_on(self, case: Case, begun: int | None) -> None:
        self._counts.moved_on += 1
        self._killed -= case.kills  # nothing was killed, so another repair gets the place in the budget
        if begun is not None:
            self.finish_repair(begun, Repaired.MOVED_ON)
        else:
            telemetry.REPAIRS.labels(self._spec.name, Repaired.MOVED_ON).inc()
        log.info("sweep.repair_dropped_because_row_changed", sweep=self._spec.name, action=case.what, **_subject(case))

    def repair_all(self, body: Callable[[Connection], Sequence[T]], case_of: Callable[[T], Case | None]) -> Sequence[T]:
        """Make many repairs with one statement, which finds the rows and changes them.

        Return the changed rows, or an empty list in a dry run. `case_of` returns the ledger entry of a row, or None if
        the row needs no entry. A repair that kills must not use this function.
        """
        self.mark_checked()
        if self.dry:
            self._counts.found += self._pretend(lambda db: _cases(body(db), case_of))
            return []

        def commit(db: Connection) -> tuple[Sequence[T], int]:
            self._fence(db)
            rows = body(db)
            cases = _cases(rows, case_of)
            self._write(db, cases, Repaired.DONE, once=True)
            return rows, len(cases)

        rows, many = self._commit(commit)
        self._counts.found += many
        self._counts.repaired += many
        telemetry.REPAIRS.labels(self._spec.name, Repaired.DONE).inc(many)
        return rows

    def repair_by(self, case: Case, act: Callable[[Callable[[Connection], None]], bool]) -> bool:
        """Make one repair in steps with a transaction each.

        `act` gets a function that writes the ledger. `act` must call this function in the transaction that makes the
        repair. `act` returns True if it made the repair; False otherwise. A dry run does not call `act`.
        """
        if not self._may(case):
            return False
        if self.dry:
            self._pretend(lambda _db: [case])
            return False

        def write(db: Connection) -> None:
            self._fence(db)
            self.written = self._write(db, [case], Repaired.DONE)

        if not act(write):
            self._counts.moved_on += 1
            return False
        self._run_id = self._run_id or self._opened
        self._did(case, self.written)
        return True

    def finish_repair(self, repair_id: int | None, outcome: Repaired, note: str | None = None) -> None:
        """Record the outcome of a repair if the sweep knows it before a later tick checks it."""
        if repair_id is None:
            return
        settled = self.rt.transaction(repairs.finish, repair_id, outcome=outcome, note=note, now=NOW)
        if settled:
            telemetry.REPAIRS.labels(self._spec.name, outcome).inc()

    def _may(self, case: Case) -> bool:
        """Count a verdict that requires a repair. Return True if the repair may be made; False otherwise."""
        self._counts.found += 1
        if not case.kills:
            return True
        if not (case.proof or enough(case.witnesses)):
            log.error(
                "sweep.repair_not_made_without_proof",
                sweep=self._spec.name,
                action=case.what,
                why=case.why,
                **_subject(case),
            )
            self._counts.skipped += 1
            return False
        settings = self.rt.settings
        most = allowance(
            self._counts.listed,
            least=settings.timings.repair_budget_least,
            percent=settings.repair_budget_percent,
            agreed=case.agreed,
        )
        if self._obstacle is None and self._killed < most:
            self._killed += 1
            return True
        self._counts.overflow += 1
        if not self.dry:
            telemetry.REPAIR_OVERFLOW.labels(self._spec.name).inc()
        if self._obstacle is not None:
            self.incomplete(self._obstacle)
        else:
            self._budget = most
        return False

    def _pretend(self, body: Callable[[Connection], list[Case]]) -> int:
        """Run a transaction and roll it back. Record the repairs that it would have made.

        Return the number of these repairs.
        """

        def undone(db: Connection) -> NoReturn:
            raise _Undone(body(db))

        try:
            self.rt.transaction(undone)
        except _Undone as told:
            cases: list[Case] = told.result
        self._commit(lambda db: self._write(db, cases, Repaired.DRY))
        self._counts.repaired += len(cases)
        telemetry.REPAIRS.labels(self._spec.name, Repaired.DRY).inc(len(cases))
        for case in cases:
            log.info("sweep.repair_simulated", sweep=self._spec.name, action=case.what, why=case.why, **_subject(case))
        return len(cases)

    def _begin(self, case: Case, still: Callable[[Connection], bool]) -> int | None:
        """Commit a ledger row that announces a call.

        Return the id of the row, or None if the reason for the call no longer exists.
        """

        def body(db: Connection) -> int | None:
            self._fence(db)
            return self._write(db, [case], Repaired.BEGUN) if still(db) else None

        return self._commit(body)

    def _make(self, begun: int, call: Callable[[], object]) -> None:
        try:
            call()
        except UpstreamError as error:
            self.finish_repair(begun, Repaired.FAILED, meaning_of(error))
            raise

    def _fence(self, db: Connection) -> None:
        """Raise an error if another tick took over, or if the sweep was paused.

        If the sweep is `fenced`, a take-over or a pause waits until this transaction ends. Therefore no repair is
        committed after a take-over or a pause.
        """
        self._stand(sweep_runs.hold(db, self._spec.name, self._lease_no, lock=self._spec.fenced))

    def _write(self, db: Connection, cases: Sequence[Case], outcome: Repaired, *, once: bool = False) -> int | None:
        """Write one ledger row for each case. Return the id of the last row, or None if no row was written."""
        if not cases:
            return None
        run_id = self._run_id or self._open(db)  # a quiet sweep opens its run with its first repair
        ids = repairs.write(
            db,
            repairs.Page(sweep=self._spec.name, run_id=run_id, dry=self.dry),
            cases,
            outcome=outcome,
            settle_after=self.rt.timings.repair_settle_after,
            now=utcnow(),
            once=once,
        )
        return ids[-1] if ids else None

    def _did(self, case: Case, written: int | None) -> None:
        self.written = written
        self._counts.repaired += 1
        telemetry.REPAIRS.labels(self._spec.name, Repaired.DONE).inc()
        log.warning("sweep.repaired", sweep=self._spec.name, action=case.what, why=case.why, **_subject(case))

    # Run row

    def open_run(self) -> None:
        """Insert the run row of this tick."""
        self._commit(self._open)

    def close(self, outcome: Outcome, why: str | None) -> None:
        """Release the lease and store how the tick ended. A quiet tick without a repair or a failure stores no run."""

        def body(db: Connection) -> bool:
            now = utcnow()
            # Lock order: the sweep's row before the run's row, as in a take-over.
            again = not self.dry and sweep_runs.end(
                db, self._spec.name, self._lease_no, outcome=outcome, why=why, now=now
            )
            run_id = self._run_id
            if run_id is None and outcome not in SUCCESSES:
                run_id = self._open(db)
            if run_id is not None:
                sweep_runs.end_run(db, run_id, outcome=outcome, why=why, counts=self._counts, now=now)
            return again

        try:
            again = self.rt.transaction(body)
        except (DBAPIError, PoolTimeoutError) as error:  # the lease expires by itself
            log.warning("sweep.run_not_recorded", sweep=self._spec.name, outcome=outcome, error=words_of(error))
            return
        if outcome in SUCCESSES and not self.dry:
            telemetry.SWEEP_SUCCESS.labels(self._spec.name).set_to_current_time()
        counts = {_LOGGED[name]: many for name, many in asdict(self._counts).items() if many}
        if outcome is not Outcome.DONE:
            log.warning("sweep.ended", sweep=self._spec.name, outcome=outcome, why=why, dry_run=self.dry, **counts)
        elif counts or not self._spec.quiet:
            log.info("sweep.ended", sweep=self._spec.name, outcome=outcome, dry_run=self.dry, **counts)
        if again and self._spec.again:
            self.rt.waker.send(task_of(self._spec.name))

    def _open(self, db: Connection) -> int:
        self._opened = sweep_runs.begin_run(
            db,
            self._spec.name,
            lease_no=self._lease_no,
            who=self.rt.who,
            asked=self._asked,
            dry=self.dry,
            now=self._began,
        )
        return self._opened

    def _commit(self, body: Callable[[Connection], T]) -> T:
        """Run a transaction that might insert the run row. The id of the row is valid only after the commit."""
        result = self.rt.transaction(body)
        self._run_id = self._run_id or self._opened
        return result


def _cases(rows: Sequence[T], case_of: Callable[[T], Case | None]) -> list[Case]:
    return [case for row in rows if (case := case_of(row)) is not None]


def _subject(case: Case) -> dict[str, Any]:
    named = {
        "claim": case.claim_id,
        "job": case.job_id,
        "pod_uid": case.pod_uid,
        "runner": case.runner_name,
        "subject": case.subject,
    }
    return {name: value for name, value in named.items() if value is not None}
