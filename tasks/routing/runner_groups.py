"""Runner group of a mint, from the stored groups of the organisation or from GitHub.

The stored groups of an installation are used for an hour, but only for ten minutes if they would refuse the job. They
are deleted earlier if GitHub refuses a mint into a group, and GitHub is then asked again. If a group admits only
selected repositories, GitHub is also asked once for each repository. All answers are stored, so most jobs need no call
to GitHub.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import structlog

from models.claims import registrations
from models.claims.steps import MintWork
from models.routing import runner_groups
from models.routing.runner_groups import EVERY, GroupBook, Judged, Wanted, judge_blank
from ostler.clock import utcnow
from ostler.errors import Forbidden, Gone, Invalid, NotInstalled, Suspended
from ostler.reasons import meaning_of
from rules.routing.runner_groups import DEFAULT, Ask, GroupVerdict
from rules.routing.scopes import Scope
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

QUESTIONS = len(Ask)

log = structlog.get_logger(__name__)


class Refused(Exception):
    """No runner is minted: GitHub would not give the job to a runner in that group, or did not say whether it would.

    The verdict is checked again at the time `until`.
    """

    def __init__(self, wanted: Wanted, verdict: GroupVerdict, until: datetime) -> None:
        super().__init__(verdict.refusal)
        self.wanted = wanted
        self.verdict = verdict
        self.until = until


def wanted_of(work: MintWork) -> Wanted:
    """Return the runner group that a mint needs, together with the repository that the group must admit."""
    scope = Scope.parse(work.scope)
    return Wanted(
        group=work.runner_group,
        installation_id=work.installation_id,
        repository=work.repository or f"{scope.login}/{scope.repository_name or ''}",
        repository_id=work.repository_id,
        organization=scope.repository_name is None,
        public=work.public,
        private_only=work.private_only,
    )


def check_registration(rt: Runtime, work: MintWork, *, left: Callable[[], float]) -> None:
    """Check that no job of a fork can reach the persistent runner that a claim registers.

    The runner has no job yet. In an organisation, only the group as a whole is checked. A runner of one repository has
    no group. `left` returns the seconds that the call may take. Raises `Refused` if the runner must not be registered.
    Raises also what GitHub's adapter raises.
    """
    wanted = wanted_of(work)
    if not wanted.private_only:
        return
    judged = _judge_registration(rt, wanted, account_id=work.account_id, left=left)
    if judged.verdict.group_id is None and judged.verdict.ask is not Ask.VISIBLE:
        raise _refused(wanted, judged)


def why_exposed(rt: Runtime, wanted: Wanted, *, account_id: int, left: Callable[[], float]) -> str | None:
    """Return why a job of a fork could reach a persistent runner that is registered already, or None.

    The result is None, too, if GitHub does not list the groups, or if the group is missing in the list (law L8). Raises
    what GitHub's adapter raises.
    """
    if not wanted.private_only:
        return None
    try:
        verdict = _judge_registration(rt, wanted, account_id=account_id, left=left).verdict
    except Refused as refused:
        log.info("runner_groups.not_judged", reason=refused.verdict.refusal)
        return None
    return verdict.refusal if verdict.exposes else None


def _judge_registration(rt: Runtime, wanted: Wanted, *, account_id: int, left: Callable[[], float]) -> Judged:
    if not wanted.organization:
        public = rt.transaction(registrations.is_public, account_id=account_id, repository=wanted.repository)
        wanted = replace(wanted, group=DEFAULT, public=public)
    judged = _judge(rt, wanted)
    if judged.verdict.ask is Ask.GROUPS:
        _ask(rt, wanted, Ask.GROUPS, login=wanted.owner, seconds=left())
        judged = _judge(rt, wanted)
    return judged


def group_of(rt: Runtime, work: MintWork, *, left: Callable[[], float]) -> int:
    """Return the id of the runner group of a mint. `left` returns the seconds that the next call may take.

    Raises `Refused` if GitHub would not give the job to a runner in the group, or if GitHub's answers do not show
    whether it would. Raises also what GitHub's adapter raises. After any of these errors, no runner was registered.
    """
    wanted = wanted_of(work)
    blank = judge_blank(wanted)
    judged = Judged(blank, None) if blank.ask is None else _judge(rt, wanted)
    for _ in range(QUESTIONS):
        if judged.verdict.ask is None:
            break
        _ask(rt, wanted, judged.verdict.ask, login=Scope.parse(work.scope).login, seconds=left())
        judged = _judge(rt, wanted)
    if judged.verdict.group_id is not None:
        return judged.verdict.group_id
    raise _refused(wanted, judged)


def _refused(wanted: Wanted, judged: Judged) -> Refused:
    refusal = judged.verdict
    if refusal.refusal is None:
        refusal = GroupVerdict(refusal="GitHub did not say which repositories its runner group admits")
    return Refused(wanted, refusal, judged.until or utcnow() + runner_groups.REFUSED_FOR)


def _judge(rt: Runtime, wanted: Wanted) -> Judged:
    return rt.transaction(lambda db: GroupBook(db, now=utcnow()).judge(wanted))


def _ask(rt: Runtime, wanted: Wanted, ask: Ask, *, login: str, seconds: float) -> None:
    installation_id, repository_id = wanted.installation_id, EVERY
    if installation_id is None or (ask is Ask.VISIBLE and wanted.repository_id is None):
        return
    name = None
    if ask is Ask.VISIBLE:
        repository_id, name = wanted.repository_id or EVERY, wanted.repository.partition("/")[2]
    try:
        groups = rt.github.list_runner_groups(
            installation_id=installation_id, login=login, visible_to=name, deadline_seconds=seconds
        )
    except (Forbidden, Gone, Invalid) as error:
        if isinstance(error, Suspended | NotInstalled):
            raise
        # The refusal concerns only pools that need the list, so no mint of the account backs off.
        told = f"GitHub did not list the runner groups of {login}: {error.words or meaning_of(error)}"
        verdict = GroupVerdict(refusal=told, everywhere=True)
        raise Refused(wanted, verdict, utcnow() + runner_groups.REFUSED_FOR) from error
    rt.transaction(
        runner_groups.store, installation_id=installation_id, repository_id=repository_id, groups=groups, now=NOW
    )
