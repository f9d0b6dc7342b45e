"""Shared list of a scope's runners. Sweeps of the same minute judge by one list.

A sweep that finds no recent list makes a new list, and other sweeps wait up to 8 seconds for the new list. A list is
stored only if it is complete and not suspiciously empty (law L8). No lock is held during the calls to GitHub (law L15).
Instead, the process that makes the list has a
reservation: a row with an expiry time, like the lease of a step.
"""

from __future__ import annotations

import secrets
import time

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from models.db.engine import is_locked
from models.sweeps import runner_lists
from models.sweeps.runner_lists import Wanted
from ostler.clock import utcnow
from ostler.errors import Conflict, Gone, NotInstalled, Retryable
from rules.routing.scopes import Scope
from rules.sweeps.runner_checks import ListedRunner, RunnerList
from rules.upstream.retry import RetryPolicy
from tasks.claims.github import follow_owner
from tasks.pools.runner_versions import record_versions
from tasks.sweeps.frame.pace import Pace
from tasks.worker.base import SWEEP_LIST, calls, remaining
from tasks.worker.transactions import NOW

TURN = 30.0
"""Duration of a reservation in seconds.

After this time, another process may make the list, unless the reservation was extended. The duration exceeds
the time of two pages.
"""

EXTEND_AFTER = 5.0
"""Seconds between two renewals of the reservation and of the sweep's lease while the runners are listed."""

LONGEST_WAIT = 8.0
"""Longest time in seconds to wait for the list of another process. The next tick will find that list."""

PAUSE = 0.25

log = structlog.get_logger(__name__)


def runners_of(tick: Pace, *, installation_id: int, scope: str) -> RunnerList:
    """Return the runners of a scope from a list that began within the last minute, or earlier if listing took longer.

    Raises what GitHub's adapter raises. Raises `Retryable` if another process is listing these runners, if no time is
    left, or if the worker is stopping. Raises `Conflict` if another session has locked the row of this scope. After a
    `Conflict`, the lists of other scopes might still succeed. If the owner was renamed, the new name is stored, so that
    the next tick uses the new name.
    """
    try:
        return _find_or_take(tick, installation_id=installation_id, scope=scope)
    except DBAPIError as error:
        if is_locked(error):
            raise Conflict(f"another session has locked the stored list of the runners of {scope}") from error
        raise


def _find_or_take(tick: Pace, *, installation_id: int, scope: str) -> RunnerList:
    rt = tick.rt
    wanted = Wanted(installation_id, scope, reader=secrets.token_hex(8))
    until = time.monotonic() + min(LONGEST_WAIT, remaining() / 2)
    while True:
        shared = rt.transaction(runner_lists.find, wanted, now=NOW)
        if shared is not None:
            return shared
        if rt.transaction(runner_lists.begin, wanted, seconds=TURN, now=NOW):
            return _take(tick, wanted)
        if time.monotonic() + PAUSE > until:
            raise Retryable(f"another process is listing the runners of {scope}; the next tick will use its list")
        time.sleep(PAUSE)


def _take(tick: Pace, wanted: Wanted) -> RunnerList:
    rt = tick.rt
    taken_at, renewed = utcnow(), time.monotonic()

    def between() -> RetryPolicy:
        """Return the retry policy of the next page. If listing takes long, give the task a new deadline first.

        A list of thousands of runners takes longer than one page of a sweep may take.
        """
        nonlocal renewed
        if time.monotonic() - renewed > EXTEND_AFTER:
            if not tick.page():
                raise Retryable(
                    f"the runners of {wanted.scope} were not listed completely: no time was left, or this worker is "
                    "stopping; the next tick lists them again"
                )
            rt.transaction(runner_lists.extend, wanted, seconds=TURN, now=NOW)
            renewed = time.monotonic()
        return calls(SWEEP_LIST)

    try:
        seen = rt.github.list_runners(
            installation_id=wanted.installation_id,
            scope=Scope.parse(wanted.scope),
            policy=calls(SWEEP_LIST),
            between=between,
        )
    except Exception as error:
        rt.transaction(runner_lists.give_back, wanted)
        if isinstance(error, Gone) and not isinstance(error, NotInstalled) and not tick.dry:
            follow_owner(rt, wanted.installation_id)
        raise
    taken = RunnerList(
        taken_at,
        {
            each.name: ListedRunner(
                each.id,
                each.name,
                online=each.online,
                busy=each.busy,
                has_connected=each.has_connected,
                version=each.version,
            )
            for each in seen
        },
    )

    def keep(db: Connection) -> None:
        if not seen and runner_lists.executes(db, wanted):
            # An empty list is suspicious. It is not shared, so that two checks never judge by the same empty list.
            runner_lists.give_back(db, wanted)
        else:
            runner_lists.store(db, wanted, taken, now=utcnow())

    rt.transaction(keep)
    if not tick.dry:
        record_versions(rt, seen, installation_id=wanted.installation_id, scope=wanted.scope)
    log.info("runners.listed", installation=wanted.installation_id, scope=wanted.scope, runners=len(seen))
    return taken
