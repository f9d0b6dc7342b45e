"""The frame of every sweep: lease, pause, dry run, budget, time, ledger. A sweep adds a selection and an action.

A new sweep in ten minutes
--------------------------
1. Select: a query beside its table in `models/`, with `now` and every threshold as arguments.
2. Judge: a pure function in `rules/sweeps/limits.py` or a module of its own, from the evidence to a verdict with a
   reason.
3. Act, in `tasks/sweeps/<name>.py`::

       @sweep(ORPHANED_THINGS)
       def orphaned_things(tick: Tick) -> None:
           pages = runner_pages(tick.rt, "pods")                                # in every namespace of runners
           pods = [pod for page in tick.whole("Pods", pages) for pod in page]
           things = tick.read(orphans.found, now=NOW)                           # rows after the cluster (law L8)
           tick.doubt(not pods and bool(things), "no Pods at all")              # ends the tick, changes nothing
           tick.each(things, lambda thing: check(tick, pods, thing))            # one failure stops no other (law L14)

       def check(tick: Tick, pods: ..., thing: orphans.Thing) -> None:
           verdict = judge_orphan(...)
           if verdict.keep:
               return
           case = Case(what="retire", why=verdict.reason, pod_uid=thing.uid, kills=True, witnesses=verdict.witnesses,
                       expects=Expect.POD_GONE)
           if retire_id := tick.repair(case, lambda db: orphans.retire(db, thing, now=utcnow(), who=tick.rt.who)):
               send_retire(tick.rt, retire_id)                                  # after the commit, never in a dry run

4. Register: add the constant and its queue to `ostler/task_names.py`, a line with the timing of its period to
   `beat_schedule.py`, the module to `tasks.worker.app.MODULES`, the name to the parametrised family of tests
   (`tests/integration/tasks/sweeps/`), and a row to `docs/operations/recovery.md`.

What the frame does for a sweep
-------------------------------
- **Lease.** One tick of a sweep runs at a time. A second tick does nothing. A lease expires `lease` seconds after its
  last renewal. The lease is renewed before each page, and before a row if the last renewal is 5 seconds old. A killed
  process therefore delays its sweep by at most `lease` seconds. The transaction of every repair checks and locks the
  lease number of the tick, so a tick that lost its lease changes nothing more. A sweep with `fenced=False` checks the
  lease number but does not lock it.
- **Pause.** After `ostler sweep pause` or a pause by the API, no tick begins except a dry run, and a running tick stops
  before its next repair. A worker with the sweep in `OSTLER_SWEEPS_PAUSED` begins no tick except a dry run.
  **Obstacles** (`OBSTACLES`) stop only repairs that kill.
- **Dry run.** In a dry run, `repair` runs its transaction, rolls it back, and records what it would have done. The
  `call` of the repair is not made. A dry run needs no lease, so another tick might run at the same time. Outside of
  `repair`, `repair_all` and `repair_by`, a sweep must therefore only read, or check `tick.dry`.
- **Budget.** Repairs with `kills` are limited to a share of the listed objects (`rules.sweeps.limits.allowance`).
  Further repairs are counted as overflow and left to later ticks. A repair with `kills` needs two witnesses or a proof.
  Otherwise it is refused and logged.
- **Time.** `each` and `page` end the tick when its deadline is near or the worker stops. The next tick continues. Each
  page that `Pace.whole` reads has a deadline of its own. A tick that checked no row for lack of time does not count as
  a run.
- **Ledger.** The transaction of a repair also writes its ledger row. Later ticks check the row until the expected
  effect (`expects`) has occurred. If the effect does not occur within `repair_settle_after` seconds, the repair has
  failed (`models.sweeps.repairs`). Calls to GitHub or the cluster belong in `call`. Before the call, a ledger row that
  announces the call is committed.
- **Locked rows.** A transaction waits only briefly for a row that another session has locked, and less for each further
  locked row of the page (`models.db.client_waits`). After this wait, the check of the row fails, and the row is left to
  the next tick. A query that selects rows to change uses `SKIP LOCKED`.
- **Errors.** If the check of a row in `each` or `attempt` fails, the other rows are still checked. An unexpected error
  is raised after the other rows were checked. If the database is unavailable, the tick ends. Outside of `each` and
  `attempt`, an `UpstreamError` ends the tick as aborted, and any other error ends it as failed and is raised. `part`
  separates the parts of a sweep: after a failed part the other parts still run, and the tick fails after the last part.
  A killed process records no outcome, so the next tick marks the run of the killed process as lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import structlog
from celery import Task
from sqlalchemy import Connection

from models.sweeps import repairs, sweep_runs
from models.sweeps.sweep_runs import Counts, Refused, Taken
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import cause_of, meaning_of
from ostler.task_names import TaskName, short_name
from rules.sweeps.limits import Outcome, Repaired, switched_off
from tasks.sweeps.frame.pace import Aborted, Overtaken, Paused, Sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import DEADLINE, SWEEP, begin_page, task
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

LEASE = 25.0
"""Duration of a lease in seconds.

A lease must be longer than the time of one page. Otherwise two ticks could take over from each other forever.
"""

NO_LEASE = 0
"""Lease number of a tick without a lease."""


def sweep(
    name: TaskName,
    *,
    quiet: bool = False,
    again: bool = False,
    fenced: bool = True,
    lease: float = LEASE,
    longest: float = DEADLINE,
) -> Callable[[Callable[[Tick], None]], Task]:
    """Register a sweep as the task of this name. The other arguments are the fields of `Sweep`.

    The task takes three arguments. `dry`: change nothing. `asked`: name of an operator's request, stored in the run
    row. `spread`: upper bound in seconds of a random delay before the tick.
    """
    short = short_name(name)
    spec = Sweep(name=short, quiet=quiet, again=again, fenced=fenced, lease=lease, longest=longest)
    telemetry.SWEEP_SUCCESS.labels(short)
    for outcome in set(Repaired) - {Repaired.BEGUN}:
        telemetry.REPAIRS.labels(short, outcome)
    telemetry.REPAIR_OVERFLOW.labels(short)

    def register(body: Callable[[Tick], None]) -> Task:
        def run(*, dry: bool = False, asked: str | None = None, spread: float = 0.0) -> None:
            if spread:
                time.sleep(random.uniform(0, spread))  # noqa: S311  the delays only have to differ
                begin_page()
            run_tick(runtime(), spec, body, dry=dry, asked=asked)

        run.__name__, run.__module__, run.__doc__ = short, body.__module__, body.__doc__
        return task(name, policy=SWEEP)(run)

    return register


def run_tick(rt: Runtime, spec: Sweep, body: Callable[[Tick], None], *, dry: bool, asked: str | None) -> None:
    """Run one tick of a sweep, unless it is refused.

    If `body` raises an error, the outcome of the run depends on this error. Raises every error of `body` that the frame
    does not expect.
    """
    taken = Taken(NO_LEASE) if dry else _take(rt, spec, asked=asked)
    if isinstance(taken, Refused):
        log.info("sweep.not_run", sweep=spec.name, outcome=taken.outcome, why=taken.why)
        return
    tick = Tick(rt, spec, lease_no=taken.lease_no, dry=dry, asked=asked)
    if not spec.quiet or dry or asked is not None:
        tick.open_run()
    try:
        body(tick)
    except Aborted as error:
        tick.close(Outcome.ABORTED, str(error))
    except UpstreamError as error:
        tick.close(Outcome.ABORTED, meaning_of(error))
    except Paused:
        tick.close(Outcome.PAUSED, "the sweep was paused during the tick")
    except Overtaken:
        tick.close(Outcome.LOST, "another tick of the sweep took over the lease")
    except Exception as error:
        tick.close(Outcome.FAILED, cause_of(error))
        raise
    else:
        _came_through(tick)


def _came_through(tick: Tick) -> None:
    """Close a tick whose `body` raised nothing. Raises the unexpected error of a row, if there was one."""
    if tick.bug is not None:
        tick.close(Outcome.FAILED, cause_of(tick.bug))
        raise tick.bug
    if (why := tick.got_nowhere) is not None:
        tick.close(Outcome.ABORTED, why)
    else:
        tick.close(*tick.ending)


def _take(rt: Runtime, spec: Sweep, *, asked: str | None) -> Taken | Refused:
    """Acquire the lease and check the effects of earlier repairs.

    If the request of an operator is refused, a run row with the reason is stored.
    """
    off = switched_off(spec.name, by_setting=rt.settings.sweeps_paused)

    def body(db: Connection) -> tuple[Taken | Refused, dict[Repaired, int]]:
        now = utcnow()
        found: Taken | Refused
        if off:
            sweep_runs.record_skipped(db, spec.name, why="OSTLER_SWEEPS_PAUSED")
            found = Refused(Outcome.PAUSED, "OSTLER_SWEEPS_PAUSED")
        else:
            found = sweep_runs.take(db, spec.name, holder=rt.who, lease=spec.lease, again=spec.again, now=now)
        if isinstance(found, Refused):
            if asked is not None:
                run_id = sweep_runs.begin_run(
                    db, spec.name, lease_no=NO_LEASE, who=rt.who, asked=asked, dry=False, now=now
                )
                sweep_runs.end_run(db, run_id, outcome=found.outcome, why=found.why, counts=Counts(), now=now)
            return found, {}
        return found, dict(repairs.verify(db, spec.name, now=now))

    taken, looked = rt.transaction(body)
    for outcome, many in looked.items():
        telemetry.REPAIRS.labels(spec.name, outcome).inc(many)
        if outcome is Repaired.FAILED:
            log.error("sweep.repairs_failed", sweep=spec.name, repairs=many)
    return taken
