"""Checks of claims against the list of the runners of their scope, scope by scope."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from models.claims.names import RunnerClaim
from ostler.errors import UpstreamError
from rules.sweeps.runner_checks import RunnerList
from tasks.sweeps.frame.pace import UNAVAILABLE
from tasks.sweeps.frame.runner_lists import runners_of
from tasks.sweeps.frame.tick import Tick

C = TypeVar("C", bound=RunnerClaim)


def check_by_scope(tick: Tick, claims: Iterable[C], check: Callable[[Tick, C, RunnerList], None]) -> None:
    """Check the claims of each scope once, in a random order of the scopes.

    If the check of a scope or a claim fails, the other checks still run. If GitHub does not answer for an installation,
    the tick skips all further scopes of the installation (law L14).
    """
    by_scope: dict[tuple[int, str], list[C]] = defaultdict(list)
    for claim in claims:
        by_scope[claim.installation_id, claim.scope].append(claim)
    scopes = list(by_scope.items())
    random.shuffle(scopes)
    unavailable: set[int] = set()
    for (installation_id, scope), of_scope in scopes:
        if not tick.goes_on():
            return
        if installation_id in unavailable:
            continue
        if not _check_scope(tick, installation_id, scope, of_scope, check):
            unavailable.add(installation_id)
        if not tick.page():
            return


def _check_scope(
    tick: Tick, installation_id: int, scope: str, claims: Sequence[C], check: Callable[[Tick, C, RunnerList], None]
) -> bool:
    """Check the claims of one scope.

    Return True if the other scopes of the installation can be checked; False if GitHub would not answer for them.
    """
    try:
        seen = runners_of(tick, installation_id=installation_id, scope=scope)
    except UpstreamError as error:
        tick.skipped(error, scope=scope)
        return not isinstance(error, UNAVAILABLE)
    tick.listed(len(seen.runners))
    for claim in claims:
        if not tick.goes_on():
            break
        failed = tick.attempt(lambda claim: check(tick, claim, seen), claim, row=claim.id)
        if isinstance(failed, UNAVAILABLE):
            return False
    return True
