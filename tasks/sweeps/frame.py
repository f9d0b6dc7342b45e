"""The frame that every sweep runs in: lease, pause, dry run, budget, time, ledger. A sweep is what is left.

A new sweep in ten minutes
--------------------------
1. Select: a query beside its table in `models/`, with `now` and every threshold as arguments.
2. Judge: a pure function in `rules/sweeps/reaping.py` (or a module of its own), from what was seen to a verdict with
reason. 3. Act, in `tasks/sweeps/<name>.py`::

       @sweep(ORPHANED_THINGS)
       def orphaned_things(tick: Tick) -> None:
           pages = metadata_pages(tick.rt.kube, "pods", namespace=..., selector=OF_POOLS, policy=calls(SWEEP_LIST))
           pods = [pod for page in tick.whole("Pods", pages) for pod in page]
           things = tick.read(lambda db: orphans.found(db, now=utcnow()))       # the cluster first, rows second (L8)
           tick.doubt(not pods and bool(things), "no Pods at all")              # ends the tick, nothing is changed
           tick.each(things, lambda thing: check(tick, pods, thing))             # one that fails stops no other (L14)

       def check(tick: Tick, pods: ..., thing: orphans.Thing) -> None:
           verdict = judge_orphan(...)
           if verdict.keep:
               return
           case = Case(what="retire", why=verdict.reason, pod_uid=thing.uid, kills=True, witnesses=verdict.witnesses,
                       expects=Expect.POD_GONE)
           if retire_id := tick.repair(case, lambda db: orphans.retire(db, thing, now=utcnow(), who=tick.rt.who)):
               send_retire(tick.rt, retire_id)                                  # after the commit, never in a dry run

4. The constant and its queue in `ostler/task_names.py`, a line in `beat_schedule.py` with its period's timing, the
   module in `tasks.worker.app.MODULES`, the name in the parametrised family of tests
   (`tests/integration/tasks/sweeps/`), a row in `docs/operations/recovery.md`.

What the frame does for it
--------------------------
- **Lease.** One tick of a sweep runs at a time; the other does nothing. A lease runs out `LEASE` seconds after its last
  renewal (before each row and each page), so that of a killed process no longer than that is felt. Every repair tests
  and locks its number in its own transaction: a tick that was overtaken changes nothing more.
- **Pause** (`ostler sweep pause`, the API, `OSTLER_SWEEPS_PAUSED`): no tick begins, and a running one stops before its
  next repair. **Obstacles** (`OBSTACLES`) stop only repairs that kill.
- **Dry run.** `repair` runs its transaction, rolls it back, and writes what it would have done; a `call` is not made.
  It needs no lease, and so keeps no tick from running beside it. A sweep must therefore only read outside `repair`,
  `repair_all` and `repair_by` (or must ask `tick.dry`).
- **Budget.** Repairs with `kills` are bounded by what the tick listed (`rules.sweeps.reaping.allowance`); the rest is
counted
  as overflow, logged, and left to later ticks. Without two witnesses, or a proof, they are refused.
- **Time.** `each` and `page` end the tick when its deadline is near or the worker was told to stop; the next goes on.
  Each page of a `whole` list has its own. A tick that came to no row does not count as one that ran.
- **Ledger.** A repair's row is written in the transaction that makes it, and checked again by later ticks until what
  it `expects` has come about (`models.sweeps.repairs`). What GitHub or the cluster is asked to do goes into `call`,
  which is made after a row was committed that says so.
- **Locked rows.** A transaction waits only briefly for a row that another session has locked, and less for each
  further one of the page (`models.db.client_waits`); it fails like any other at this row and is left to the next tick.
  A query that chooses rows to be changed uses `SKIP LOCKED`.
- **Errors.** What fails at one row in `each` (or `attempt`) stops no other; one that nobody expected is raised when
  the others were checked, and a database that is gone ends the tick. An `UpstreamError` outside of them ends it as
  aborted; anything else as failed, and is raised. `part` separates the parts of a sweep: one that fails stops no
  other, and the tick fails at its end. A killed process writes nothing: the next tick finds its run and
  calls it lost.
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
from ostler.reasons import meaning_of
from ostler.task_names import TaskName, short_name
from rules.sweeps.reaping import Outcome, Repaired, switched_off
from tasks.sweeps.pace import Aborted, Overtaken, Paused, Sweep
from tasks.sweeps.tick import Tick
from tasks.worker.base import DEADLINE, SWEEP, begin_page, task
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

LEASE = 25.0
"""Seconds of a lease: longer than one page may take, or two ticks could take over from each other for ever."""

NO_LEASE = 0
"""The number of a tick that has none."""


def sweep(
    name: TaskName,
    *,
    quiet: bool = False,
    again: bool = False,
    fenced: bool = True,
    lease: float = LEASE,
    longest: float = DEADLINE,
) -> Callable[[Callable[[Tick], None]], Task]:
    """Register a sweep as the task of this name, which is in the table; see `Sweep` for the arguments.

    The task takes `dry` (change nothing), `asked` (the name of an operator's request, found in the run's row) and
    `spread` (seconds, up to which it waits before it begins).
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
                time.sleep(random.uniform(0, spread))  # noqa: S311  it only has to differ
                begin_page()
            run_tick(runtime(), spec, body, dry=dry, asked=asked)

        run.__name__, run.__module__, run.__doc__ = short, body.__module__, body.__doc__
        return task(name, policy=SWEEP)(run)

    return register


def run_tick(rt: Runtime, spec: Sweep, body: Callable[[Tick], None], *, dry: bool, asked: str | None) -> None:
    """Run one tick of a sweep, if it may."""
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
        tick.close(Outcome.PAUSED, "paused while it ran")
    except Overtaken:
        tick.close(Outcome.LOST, "another tick took over")
    except Exception as error:
        tick.close(Outcome.FAILED, type(error).__name__)
        raise
    else:
        _came_through(tick)


def _came_through(tick: Tick) -> None:
    """End a tick that went on to its end; raises what nobody expected at one of its rows."""
    if tick.bug is not None:
        tick.close(Outcome.FAILED, type(tick.bug).__name__)
        raise tick.bug
    if (why := tick.got_nowhere) is not None:
        tick.close(Outcome.ABORTED, why)
    else:
        tick.close(*tick.ending)


def _take(rt: Runtime, spec: Sweep, *, asked: str | None) -> Taken | Refused:
    """Take the lease and check earlier repairs; a request that is refused has a run row that says so."""
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
