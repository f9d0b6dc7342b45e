"""Later judgement on persistent runners, because their account, group or repository can change after registration."""

from __future__ import annotations

from models.claims.registrations import RegisteredClaim
from models.routing.runner_groups import Wanted
from ostler.errors import UpstreamError
from rules.claims.registrations import why_not_allowed
from rules.pools.volumes import Reclaim
from rules.routing.forks import private_only
from rules.routing.scopes import Scope
from tasks.routing.runner_groups import why_exposed
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, remaining


class Exposure:
    """Decides which runners must leave their scope. It judges the group of each pool and scope once per tick."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._found: dict[tuple[int, str], str | None] = {}
        self._failed: set[int] = set()
        """Installations whose groups GitHub did not list in this tick."""

    def why(self, claim: RegisteredClaim) -> str | None:
        """Return why the runner of a claim must leave, or None.

        It must leave if its pool does not allow the account any more, or if a job of a fork could reach the runner,
        because its group now admits public repositories, or because its repository became public. The group of a runner
        that was made from an earlier template is not known (law L8); the rollout replaces such a runner.
        """
        refused = why_not_allowed(claim.account_id, claim.allowed_accounts)
        if refused is not None or claim.stale:
            return refused
        key = (claim.pool_id, claim.scope)
        if key not in self._found:
            self._found[key] = self._judge(claim)
        return self._found[key]

    def _judge(self, claim: RegisteredClaim) -> str | None:
        if claim.installation_id in self._failed:
            return None
        scope = Scope.parse(claim.scope)
        wanted = Wanted(
            group=claim.runner_group_id if claim.runner_group_name is None else claim.runner_group_name,
            installation_id=claim.installation_id,
            repository=f"{scope.login}/{scope.repository_name or ''}",
            repository_id=None,
            organization=scope.repository_name is None,
            public=False,
            private_only=private_only(
                retains=claim.volume_reclaim == Reclaim.RETAIN, persistent=True, allow_forks=claim.allow_forks
            ),
        )
        try:
            return why_exposed(
                self._tick.rt,
                wanted,
                account_id=claim.account_id,
                left=lambda: remaining(SWEEP_ROW.call_seconds),
            )
        except UpstreamError as error:
            self._failed.add(claim.installation_id)
            self._tick.skipped(error, scope=claim.scope)
            return None
