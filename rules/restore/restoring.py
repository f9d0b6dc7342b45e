"""Verdicts of `ostler restore` on Pods, from the Pod, its stamp and GitHub's runners.

The rows are too old to decide alone. If the evidence is doubtful, a Pod stays. A Pod that might hold a JIT keeps its
claim or gets a new claim. There is one exception: a Pod whose delivered claim has ended is left to the sweep
`finished_jobs` or to its retirement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from rules.claims.busy import PodEvidence, RunnerSeen, may_hold_jit
from rules.claims.machines import ClaimState, Purpose
from rules.claims.runner_names import make_runner_name
from rules.routing.scopes import Scope

_SUFFIX_LENGTH = 8


class Act(StrEnum):
    """Action on a Pod.

    - `leave`: do nothing, because the rows are sufficient or the Pod can do no harm.
    - `execute`: the rows show the claim of the Pod as undelivered, but the Pod might hold a JIT. The claim becomes
      executing.
    - `register`: the rows show the registration of the Pod as undelivered, but GitHub lists its persistent runner. The
      claim becomes delivered.
    - `rebuild`: the claim of the Pod is lost. The Pod gets a new claim. The new claim becomes executing, or a spare if
      the runner is idle.
    - `keep`: the claim of the Pod is lost, and the Pod's runner is unknown. The Pod gets a new claim, which ends only
      with the Pod.
    - `release`: the Pod is claimed, and nothing was delivered. The claim is released. A lost claim is rebuilt before
      the release. The release first deregisters the runner, and stops if GitHub refuses.
    """

    LEAVE = "leave"
    EXECUTE = "execute"
    REGISTER = "register"
    REBUILD = "rebuild"
    KEEP = "keep"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Registered:
    """A runner that GitHub lists and whose name was made from the name of a runner Pod."""

    id: int
    name: str
    online: bool
    busy: bool
    installation_id: int
    scope: str

    @property
    def seen(self) -> RunnerSeen:
        """Return the state of the runner at GitHub."""
        return "busy" if self.busy else "online" if self.online else "offline"

    @property
    def certain(self) -> bool:
        """Return whether the runner is certainly registered in `scope`.

        For some repositories, Ostler lists the runners twice: by the name and by the id of the repository. A list by
        name is not certain, because another repository might have this name now.
        """
        return Scope.parse(self.scope).certain


@dataclass(frozen=True, slots=True)
class RowClaim:
    """The live claim of a Pod in the restored rows. `scope` is the scope of the runner, or None if it is unknown."""

    id: int
    purpose: Purpose
    state: ClaimState
    delivered: bool
    account_id: int | None = None
    installation_id: int | None = None
    scope: str | None = None

    def is_of_another(self, owner: int | None, runner: Registered | None) -> bool:
        """Return whether a Pod with this owner label and this runner serves another account than the claim.

        The accounts are compared if both are known. If the runner and the claim's scope are known, the installations
        and the scopes are compared too.
        """
        if owner is not None and self.account_id is not None and owner != self.account_id:
            return True
        if runner is None or self.scope is None:
            return False
        return runner.installation_id != self.installation_id or not _same(self.scope, runner.scope)


def _same(one: str, other: str) -> bool:
    """Return whether two scopes are the same. If both have a repository id, the ids are compared, else the names."""
    mine, its = Scope.parse(one), Scope.parse(other)
    if mine.repository_id is not None and its.repository_id is not None:
        return mine.repository_id == its.repository_id
    return mine == its


@dataclass(frozen=True, slots=True)
class RestoredPod:
    """A Pod as the cluster, GitHub and the rows show it.

    - `owner`: the account in the Pod's owner label, or None.
    - `stamp_claim`: the claim that wrote the Pod's annotation last, or 0.
    - `runners`: the runners at GitHub whose name was made from the name of the Pod.
    - `asked`: GitHub answered for every scope in which the Pod's runner might be registered.
    - `used`: the rows have an ended claim of the Pod that was delivered.
    - `claim`: the live claim of the Pod in the rows, or None.
    """

    terminal: bool
    owner: int | None
    stamp_claim: int
    poller_exit_code: int | None
    runner_ready: bool
    runners: tuple[Registered, ...]
    asked: bool
    used: bool
    claim: RowClaim | None

    @property
    def stamped(self) -> bool:
        """Return whether the Pod has an owner label."""
        return self.owner is not None


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """Action on a Pod, with the reason. `runner` is the Pod's runner, or None if the runner cannot be identified.

    `drops` is the Pod's claim in the rows if this claim must end first, because the Pod serves another claim. Otherwise
    `drops` is None.
    """

    act: Act
    why: str
    runner: Registered | None = None
    drops: RowClaim | None = None

    @property
    def decided(self) -> bool:
        """Return False if the action is `keep`, because the Pod's runner is unknown or GitHub could not be asked."""
        return self.act is not Act.KEEP


def judge_pod(pod: RestoredPod) -> PodVerdict:
    """Return the action on a Pod after Postgres was restored."""
    runner = max(pod.runners, key=lambda each: (each.busy, each.online, each.id, each.certain), default=None)
    if pod.terminal:
        return PodVerdict(Act.LEAVE, "the Pod has ended: the reconciler deletes the Pod")
    claim, drops = pod.claim, None
    if claim is not None and _was_over(claim, pod, runner):
        claim, drops = None, claim
    if (done := _settled(pod, claim)) is not None:
        return PodVerdict(Act.LEAVE, done)
    verdict = may_hold_jit(
        PodEvidence(
            any_delivered=False,
            poller_exit_code=pod.poller_exit_code,
            runner_ever_ready=pod.runner_ready,
            github_runner_seen="unknown" if runner is None else runner.seen,
        )
    )
    if not verdict.busy:
        return replace(_free(pod, claim, runner), drops=drops)
    if claim is not None and claim.purpose is Purpose.REGISTER:
        return _registering(claim, runner)
    if claim is not None and claim.purpose is Purpose.RETIRE:
        claim, drops = None, claim
    return replace(_busy(claim, runner, ", ".join(verdict.reasons)), drops=drops)


def _was_over(claim: RowClaim, pod: RestoredPod, runner: Registered | None) -> bool:
    """Return whether the Pod has a later claim or another account than a job claim that was not delivered."""
    if claim.delivered or claim.purpose is not Purpose.JOB:
        return False
    return pod.stamp_claim > claim.id or claim.is_of_another(pod.owner, runner)


def _settled(pod: RestoredPod, claim: RowClaim | None) -> str | None:
    """Return why the rows alone decide that the Pod stays as it is, or None if they do not."""
    if claim is not None and claim.delivered:
        return f"claim {claim.id} was already delivered, and continues"
    if pod.used and claim is None:
        return "the claim of the Pod had already ended: `finished_jobs` handles the Pod"
    if pod.used and claim is not None and claim.purpose is Purpose.RETIRE:
        return "the claim of the Pod had already ended; the Pod is being retired, and the retirement asks GitHub first"
    return None


def _registering(claim: RowClaim, runner: Registered | None) -> PodVerdict:
    if runner is None:
        return PodVerdict(Act.LEAVE, f"claim {claim.id} registers a runner that GitHub does not list")
    why = f"the token of claim {claim.id} was delivered after the backup: GitHub lists its runner"
    return PodVerdict(Act.REGISTER, why, runner)


def _busy(claim: RowClaim | None, runner: Registered | None, signs: str) -> PodVerdict:
    if claim is not None:
        return PodVerdict(Act.EXECUTE, f"claim {claim.id} was delivered after the backup: {signs}", runner)
    if runner is None:
        return PodVerdict(Act.KEEP, f"the claim of the Pod is lost, and GitHub shows no runner of the Pod: {signs}")
    return PodVerdict(Act.REBUILD, f"the claim of the Pod is lost: {signs}", runner)


def _free(pod: RestoredPod, claim: RowClaim | None, runner: Registered | None) -> PodVerdict:
    if claim is not None and claim.purpose is Purpose.RETIRE:
        return PodVerdict(Act.LEAVE, "the Pod is being retired, and nothing was delivered to it")
    if claim is not None:
        return PodVerdict(Act.RELEASE, f"claim {claim.id} was not delivered, and its progress is lost", runner)
    if not pod.stamped and runner is None:
        return PodVerdict(Act.LEAVE, "the Pod is warm or starting")
    if not pod.asked:
        return PodVerdict(
            Act.KEEP, "the claim of the Pod is lost, and GitHub could not be asked for the runner of the Pod"
        )
    return PodVerdict(Act.RELEASE, "the claim of the Pod is lost, and nothing was delivered", runner)


def stem_of(pod_name: str) -> str:
    """Return the prefix that the names of all runners of a Pod have in common.

    Two Pods with long names might have the same prefix.
    """
    return make_runner_name(pod_name, "0" * _SUFFIX_LENGTH)[: -_SUFFIX_LENGTH - 1]


def stem_of_runner(runner_name: str) -> str | None:
    """Return the prefix of a runner's name, or None if no Pod can own the runner.

    A Pod can own the runner only if `stem_of` returns the same prefix for the Pod. Several Pods might have this prefix.
    The result must therefore only be used as a reason to keep a Pod.
    """
    stem, suffix = runner_name[: -_SUFFIX_LENGTH - 1], runner_name[-_SUFFIX_LENGTH:]
    try:
        return stem if make_runner_name(stem, suffix) == runner_name else None
    except ValueError:
        return None
