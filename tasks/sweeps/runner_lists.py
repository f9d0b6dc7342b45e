"""The one list of a scope's runners that every sweep of that minute judges by.

Who finds none that is new enough takes one for all; who comes meanwhile waits for it. A list is kept whole or not at
all (L8): what GitHub did not show to the end is as if it had not been asked. Nothing is held while it is asked (L15):
the turn is a row with a time, like the lease of a step.
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
from tasks.sweeps.pace import Pace
from tasks.worker.base import SWEEP_LIST, calls, remaining
from tasks.worker.transactions import NOW

TURN = 30.0
"""Seconds after which another may list when who began has not gone on: longer than two pages take."""

EXTEND_AFTER = 5.0
"""Seconds of listing after which the turn, and the sweep's own lease, are renewed before the next page."""

LONGEST_WAIT = 8.0
"""Seconds for which another's list is waited for; the next tick finds it."""

PAUSE = 0.25

log = structlog.get_logger(__name__)


def runners_of(tick: Pace, *, installation_id: int, scope: str) -> RunnerList:
    """Return the runners of a scope as GitHub listed them a minute ago at most, or longer where listing took longer.

    Raises what GitHub's adapter raises, `Retryable` while another process lists them, and `Conflict` while another
    session has the row of this scope locked: that says nothing about other scopes. Under a former name of the owner
    the new one is written down, so that the next tick asks under it.
    """
    try:
        return _find_or_take(tick, installation_id=installation_id, scope=scope)
    except DBAPIError as error:
        if is_locked(error):
            raise Conflict("another session has locked the list of these runners") from error
        raise


def _find_or_take(tick: Pace, *, installation_id: int, scope: str) -> RunnerList:
    rt = tick.rt
    wanted = Wanted(installation_id, scope, reader=secrets.token_hex(8))
    until = time.monotonic() + min(LONGEST_WAIT, remaining() / 2)
    while True:
        now = utcnow()
        shared = rt.transaction(runner_lists.find, wanted, now=now)
        if shared is not None:
            return shared
        if rt.transaction(runner_lists.begin, wanted, seconds=TURN, now=now):
            return _take(tick, wanted)
        if time.monotonic() + PAUSE > until:
            raise Retryable("another process lists these runners")
        time.sleep(PAUSE)


def _take(tick: Pace, wanted: Wanted) -> RunnerList:
    rt = tick.rt
    taken_at, renewed = utcnow(), time.monotonic()

    def between() -> RetryPolicy:
        """Give the next page its time: thousands of runners take longer than one page of a sweep may."""
        nonlocal renewed
        if time.monotonic() - renewed > EXTEND_AFTER:
            if not tick.page():
                raise Retryable("no time left to list these runners")
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
            runner_lists.give_back(db, wanted)  # suspicious: whoever wants one asks again, and two checks stay two
        else:
            runner_lists.keep(db, wanted, taken, now=utcnow())

    rt.transaction(keep)
    if not tick.dry:
        record_versions(rt, seen, installation_id=wanted.installation_id, scope=wanted.scope)
    log.info("runners.listed", installation=wanted.installation_id, scope=wanted.scope, runners=len(seen))
    return taken
