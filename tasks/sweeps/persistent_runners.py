"""`ostler.persistent_runners`: records how GitHub shows persistent runners, and replaces runners that are not usable.

A runner is replaced if it did not come online in time, if it was offline for long, or if GitHub does not know it any
more. The release of its claim first asks GitHub to delete the runner, and waits while the runner executes a job (law
L3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from models.claims import registrations
from models.claims.registrations import RegisteredClaim
from models.routing import accounts, installations
from models.state import claim_checks, claim_transitions, mint_attempts
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import PERSISTENT_RUNNERS
from rules.claims.registrations import Registered, Shown, is_outage, why_not_allowed, why_remove
from rules.routing.scopes import Scope
from rules.sweeps.limits import Expect, Source, Witness
from rules.sweeps.runner_checks import ListedRunner, RunnerList
from rules.sweeps.unresolved import LONGEST_EXECUTING
from tasks.claims.release import send_release
from tasks.sweeps.claims_by_scope import check_by_scope
from tasks.sweeps.exposure import Exposure
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls, remaining


@sweep(PERSISTENT_RUNNERS, longest=LONGEST)
def persistent_runners(tick: Tick) -> None:
    """Find the installations of owners that are not known yet, then check the runners of each scope."""
    unknown = {scope.split("/")[1].lower() for scope in tick.read(registrations.scopes_without_home)}
    if unknown and not tick.dry:
        tick.part("installations", lambda: find_installations(tick, unknown))
    claims = tick.read(registrations.registered, busy_since=utcnow() - LONGEST_EXECUTING)
    check_by_scope(tick, claims, partial(check, names=names_by_scope(claims), exposed=Exposure(tick)))


def names_by_scope(claims: Iterable[RegisteredClaim]) -> Mapping[str, Sequence[str]]:
    """Return the runners of each scope that were online before and whose nodes are not known to be gone."""
    found: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        if claim.online_at is not None and not claim.node_gone:
            found[claim.scope].append(claim.runner_name)
    return found


def find_installations(tick: Tick, logins: Collection[str]) -> None:
    """Ask GitHub for the installations of owners that no webhook has named yet, so that their pools can register.

    `logins`: the logins of these owners, in lower case.
    """
    rt = tick.rt
    for each in rt.github.list_installations(deadline_seconds=remaining()):
        if each.login.lower() not in logins or each.suspended:
            continue
        seen = rt.github.get_installation(installation_id=each.id, deadline_seconds=remaining())
        account = accounts.NewAccount(id=seen.account_id, login=seen.login, installation_id=each.id)
        rt.transaction(
            accounts.ensure_accounts,
            [account],
            budget=accounts.default_budget(rt.settings),
            access=accounts.access_of_new(rt.settings),
            now=utcnow(),
        )
        rt.transaction(installations.mark_working, each.id)  # GitHub shows it, so it was not removed


def record(db: Connection, claim_id: int, runner: ListedRunner | None, *, at: datetime) -> None:
    """Record how GitHub shows the runner of a claim. `runner` is None if GitHub does not know the runner."""
    if runner is None:
        claim_checks.set_absent(db, claim_id, absent=True, now=at)
        return
    claim_checks.set_runner_seen(db, claim_id, runner=runner, seen=shown_of(runner), at=at, now=utcnow())
    mint_attempts.set_runner_id(db, claim_id, runner_name=runner.name, runner_id=runner.id)


def check(
    tick: Tick,
    claim: RegisteredClaim,
    seen: RunnerList,
    *,
    names: Mapping[str, Sequence[str]],
    exposed: Exposure,
) -> None:
    """Record how GitHub shows one runner, and release its claim if the runner must be replaced.

    `names`: the runners of each scope as `names_by_scope` returns them. While most of them are offline, a runner on a
    living node is replaced only after a longer time.
    """
    runner, at = seen.runners.get(claim.runner_name), seen.taken_at
    if claim.online_at is None and (runner is None or not runner.online):
        # The list might be older than the registration, and a new runner must not wait for the next list.
        runner, at = look_up(tick, claim), utcnow()
    if claim.online_at is not None and at <= claim.online_at:
        return  # the list is older than the last look-up
    if runner is None and claim.online_at is not None and look_up(tick, claim) is not None:
        found_again(tick, claim)
        return
    shown = shown_of(runner)
    if not tick.dry:
        tick.rt.transaction(record, claim.id, runner, at=at)
    known = names.get(claim.scope, ())
    offline = sum(name in seen.runners and shown_of(seen.runners[name]) is Shown.OFFLINE for name in known)
    outage = not claim.node_gone and is_outage(offline=offline, known=len(known))
    why = why_remove(
        registered_of(claim, shown, at=at, absent_before=seen.is_second_check(claim.runner_absent_at), outage=outage),
        longest_job=LONGEST_EXECUTING.total_seconds(),
        registers_within=tick.rt.timings.registers_within,
        offline_for=tick.rt.timings.offline_runner_after,
    )
    if why is None and shown in {Shown.ONLINE, Shown.BUSY}:
        why = exposed.why(claim)
    if why is not None:
        remove(tick, claim, why)
    elif outage and shown is Shown.OFFLINE:
        tick.incomplete(f"{offline} of {len(known)} runners in {claim.scope} are offline, so they are replaced later")


def found_again(tick: Tick, claim: RegisteredClaim) -> None:
    """Forget the absence of a runner that a look-up found, because its list was not complete (law L8)."""
    if claim.runner_absent_at is not None and not tick.dry:
        tick.rt.transaction(claim_checks.set_absent, claim.id, absent=False, now=utcnow())


def registered_of(
    claim: RegisteredClaim, shown: Shown, *, at: datetime, absent_before: bool, outage: bool
) -> Registered:
    """Return what is known about a runner at the time `at`."""
    since = claim.runner_seen_at if claim.runner_seen == shown else None
    same_for = 0.0 if since is None else (at - since).total_seconds()
    ended = claim.last_job_ended_at
    return Registered(
        shown=shown,
        ever_online=claim.online_at is not None,
        executes_for=None if claim.executes_since is None else (at - claim.executes_since).total_seconds(),
        busy_for=same_for if ended is None else min(same_for, (at - ended).total_seconds()),
        absent_before=absent_before,
        delivered_for=(at - claim.delivered_at).total_seconds(),
        offline_for=same_for,
        outage=outage,
    )


def look_up(tick: Tick, claim: RegisteredClaim) -> ListedRunner | None:
    """Return the runner of a claim by its name, or None if GitHub has no such runner."""
    found = tick.rt.github.find_runner(
        installation_id=claim.installation_id,
        scope=Scope.parse(claim.scope),
        name=claim.runner_name,
        policy=calls(SWEEP_ROW),
    )
    return None if found is None else ListedRunner(found.id, found.name, online=found.online, busy=found.busy)


def shown_of(runner: ListedRunner | None) -> Shown:
    """Return how GitHub shows a runner. A busy runner counts as busy even if it is offline."""
    if runner is None:
        return Shown.ABSENT
    if runner.busy:
        return Shown.BUSY
    return Shown.ONLINE if runner.online else Shown.OFFLINE


def remove(tick: Tick, claim: RegisteredClaim, why: str) -> None:
    """Release the claim of a runner as one repair of the sweep. The Pod is then replaced."""
    not_allowed = why_not_allowed(claim.account_id, claim.allowed_accounts)
    case = Case(
        what="release",
        why=why,
        claim_id=claim.id,
        pod_uid=claim.pod_uid,
        runner_name=claim.runner_name,
        before="delivered",
        after="releasing",
        expects=Expect.CLAIM_MOVED,
        kills=True,
        witnesses=(Witness(Source.KUBERNETES if why == not_allowed else Source.GITHUB, why),),
        proof="the release deregisters the runner first and stops if GitHub refuses",
    )
    begun = tick.repair(
        case, lambda db: claim_transitions.request_release(db, claim.id, reason=why, now=utcnow(), who=tick.rt.who)
    )
    if begun:
        send_release(tick.rt, claim.id)
