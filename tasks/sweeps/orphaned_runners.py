"""`ostler.orphaned_runners`: deregisters runners of ours that GitHub still lists, offline, after their claim.

A runner is ours when its name stands in our mint attempts, never because it looks like one: other deployments share
the scope. GitHub's refusal is obeyed.
"""

from __future__ import annotations

import random
from datetime import timedelta

from sqlalchemy import Connection

from github_adapters.client import RunnerSeen
from models import orphans, releases
from models.repairs import Case
from ostler.clock import utcnow
from ostler.errors import NotInstalled, RateLimited, Retryable, Suspended, UpstreamError
from rules.orphans import judge_runner
from rules.scopes import Scope
from tasks.base import SWEEP_LIST, SWEEP_ROW, calls
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

LOOKED_BACK = timedelta(days=14)
"""After which GitHub removes a runner that did not connect ("Removing self-hosted runners")."""

SILENT = (Retryable, RateLimited, Suspended, NotInstalled)
"""Errors that the next question about the same installation would meet too."""

LONGEST = 120.0
"""Seconds of all scopes of one tick together."""


@sweep("orphaned_runners", longest=LONGEST)
def orphaned_runners(tick: Tick) -> None:
    """Look at each scope once; an installation that does not answer is left alone for this tick (L14)."""
    since = utcnow() - LOOKED_BACK
    silent: set[int] = set()
    for scope in tick.read(lambda db: orphans.scopes_of_runners(db, since=since)):
        if scope.installation_id not in silent:
            try:
                look_at_scope(tick, scope)
            except UpstreamError as error:
                tick.skipped(error, scope=scope.scope)
                if isinstance(error, SILENT):
                    silent.add(scope.installation_id)
        if not tick.page():
            return


def look_at_scope(tick: Tick, scope: orphans.ScopeOfRunners) -> None:
    """List the runners of one scope, then judge those that are offline by their claims."""
    seen = tick.rt.github.list_runners(
        installation_id=scope.installation_id, scope=Scope.parse(scope.scope), policy=calls(SWEEP_LIST)
    )
    tick.listed(len(seen))
    offline = [runner for runner in seen if not runner.online and not runner.busy]
    random.shuffle(offline)  # those that GitHub keeps are not always the first (L14)
    known = tick.read(lambda db: orphans.known_runners(db, [runner.name for runner in offline]))
    tick.each(offline, lambda runner: look(tick, scope, runner, known.get(runner.name)))


def look(tick: Tick, scope: orphans.ScopeOfRunners, runner: RunnerSeen, known: orphans.KnownRunner | None) -> None:
    """Judge one runner that GitHub shows offline, and deregister it."""
    rt = tick.rt
    now = utcnow()
    ended_at = None if known is None else known.ended_at
    verdict = judge_runner(
        ours=known is not None, online=runner.online, busy=runner.busy, has_live_claim=ended_at is None,
        idle_seconds=0 if ended_at is None else (now - ended_at).total_seconds(),
        grace_seconds=rt.settings.orphaned_runner_after,
    )  # fmt: skip
    if verdict.keep or known is None:
        return
    case = Case(
        what="deregister", why=verdict.reason, runner_name=runner.name, claim_id=known.claim_id,
        pod_uid=known.pod_uid, kills=True, witnesses=verdict.witnesses,
    )  # fmt: skip

    def removed(db: Connection) -> bool:
        releases.registration_removed(db, known.attempt_id, now=utcnow())
        return True

    tick.repair(
        case,
        removed,
        call=lambda: rt.github.delete_runner(
            installation_id=scope.installation_id, scope=Scope.parse(scope.scope), runner_id=runner.id,
            policy=calls(SWEEP_ROW),
        ),
    )  # fmt: skip
