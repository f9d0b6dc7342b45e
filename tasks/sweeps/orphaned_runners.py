"""`ostler.orphaned_runners`: deregisters offline runners of Ostler that GitHub still lists after their claim has ended.

A runner belongs to Ostler only if its name is in the mint attempts. A similar name proves nothing, because other
deployments share the scope. If GitHub refuses the removal, the runner stays registered.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from datetime import timedelta

import structlog
from sqlalchemy import Connection

from models.claims import registrations, releases
from models.sweeps import orphans
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.task_names import ORPHANED_RUNNERS
from rules.sweeps.limits import Repaired
from rules.sweeps.orphans import judge_runner
from rules.sweeps.runner_checks import ListedRunner, RunnerList
from tasks.claims.github import ensure_removed, remove_runner
from tasks.sweeps.frame.pace import LONGEST, UNAVAILABLE
from tasks.sweeps.frame.runner_lists import runners_of
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW

log = structlog.get_logger(__name__)

SEARCHED_BACK = timedelta(days=14)
"""Longest time after which GitHub itself removes a runner that did not connect ("Removing self-hosted runners")."""

APPLIED_WITHIN = timedelta(days=1)
"""Time during which the scope of an unanswered mint is still listed after the look-up of its runner found nothing.

GitHub might have registered the runner of the mint after the look-up.
"""

NAMED = 100
"""Maximum number of runners that one log line names. An organisation might have thousands."""

_foreign: dict[str, frozenset[str]] = {}
"""Runners of others in the last list of each scope with a persistent pool."""


@sweep(ORPHANED_RUNNERS, longest=LONGEST)
def orphaned_runners(tick: Tick) -> None:
    """Check each scope once.

    If GitHub does not answer for an installation, the tick skips all further scopes of the installation (law L14).
    """
    now = utcnow()
    since, unheard_since = now - SEARCHED_BACK, now - APPLIED_WITHIN
    unavailable: set[int] = set()
    persistent = tick.read(registrations.scopes)
    for scope in tick.read(orphans.scopes_of_runners, since=since, unheard_since=unheard_since):
        if scope.installation_id not in unavailable:
            try:
                check_scope(tick, scope, persistent=persistent)
            except UpstreamError as error:
                tick.skipped(error, scope=scope.scope)
                if isinstance(error, UNAVAILABLE):
                    unavailable.add(scope.installation_id)
        if not tick.page():
            return


def check_scope(tick: Tick, scope: orphans.ScopeOfRunners, *, persistent: Collection[str]) -> None:
    """List the runners of one scope, then judge the offline ones by their claims.

    `persistent`: the scopes of persistent pools. The runners of others in these scopes are logged.
    """
    seen = runners_of(tick, installation_id=scope.installation_id, scope=scope.scope)
    tick.listed(len(seen.runners))
    record_removed(tick, scope, set(seen.runners))
    offline = [runner for runner in seen.runners.values() if not runner.online and not runner.busy]
    random.shuffle(offline)  # so that runners that GitHub does not remove are not always the first (L14)
    has_persistent = scope.scope.partition("#")[0].lower() in persistent
    names = list(seen.runners) if has_persistent else [runner.name for runner in offline]
    known = tick.read(orphans.known_runners, names)
    if has_persistent:
        report_foreign(scope.scope, [name for name in names if name not in known])
    tick.each(offline, lambda runner: check(tick, scope, seen, runner, known.get(runner.name)))


def report_foreign(scope: str, names: Iterable[str]) -> None:
    """Log the runners beside those of a persistent pool that Ostler did not register. It leaves them alone.

    GitHub might give them jobs of the pool. Each process logs such a runner once, and again if it was away.
    """
    listed = frozenset(names)
    foreign = sorted(listed - _foreign.get(scope, frozenset()))
    _foreign[scope] = listed
    if foreign:
        log.info(
            "runners.ignored_because_ostler_did_not_register_them",
            scope=scope,
            count=len(foreign),
            names=foreign[:NAMED],
        )


def record_removed(tick: Tick, scope: orphans.ScopeOfRunners, listed: set[str]) -> None:
    """Repeat the removals that a killed tick requested without recording the answer.

    The absence of a runner from one list proves nothing, and a recorded removal lets a Pod be deleted (law L3).
    Therefore the removal is requested again, and the answer to the second request is recorded. A runner that is still
    listed is judged like any other runner.
    """
    if tick.dry:
        return
    cut_off = tick.read(orphans.removals_cut_off, scope)
    unlisted = [each for each in cut_off if each.runner.runner_name not in listed]
    if unlisted:
        tick.each(unlisted, lambda each: remove_again(tick, each))


def remove_again(tick: Tick, cut_off: orphans.CutOff) -> None:
    """Ask GitHub again to remove a runner that might be removed already.

    If GitHub refuses, the runner stays registered.
    """
    remove_runner(tick.rt, cut_off.runner, policy=SWEEP_ROW)
    tick.finish_repair(cut_off.repair_id, Repaired.VERIFIED, "GitHub no longer has the runner")


def check(
    tick: Tick, scope: orphans.ScopeOfRunners, seen: RunnerList, runner: ListedRunner, known: orphans.KnownRunner | None
) -> None:
    """Judge one runner that GitHub listed as offline, and deregister the runner if it is an orphan."""
    rt = tick.rt
    ended_at = None if known is None else known.ended_at
    verdict = judge_runner(
        ours=known is not None,
        online=runner.online,
        busy=runner.busy,
        has_live_claim=ended_at is None,
        idle_seconds=0 if ended_at is None else seen.age_of(ended_at),
        grace_seconds=rt.timings.orphaned_runner_after,
    )
    if verdict.keep or known is None:
        return
    case = Case(
        what="deregister",
        why=verdict.reason,
        runner_name=runner.name,
        claim_id=known.claim_id,
        pod_uid=known.pod_uid,
        kills=True,
        witnesses=verdict.witnesses,
    )

    def removed(db: Connection) -> bool:
        releases.registration_removed(db, known.attempt_id, now=utcnow())
        return True

    tick.repair(
        case,
        removed,
        call=lambda: ensure_removed(
            rt,
            releases.Registration(known.attempt_id, runner.name, runner.id, scope.installation_id, scope.scope),
            policy=SWEEP_ROW,
        ),
    )
