"""Verdicts of `ostler restore` on Pods: from the Pod, its stamp and GitHub's runners, because the rows are too old.

In doubt, a Pod stays. A Pod that might hold a JIT gets a claim, whatever else is known about it.
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

    - `leave`: the rows are sufficient, or the Pod can do no harm.
    - `execute`: the Pod has a claim that the rows show as undelivered. The claim becomes executing.
    - `rebuild`: the claim of the Pod is lost. The Pod gets a new claim, which becomes executing, or a spare if the
      runner is idle.
    - `keep`: the claim of the Pod is lost, and its runner is unknown. The Pod gets a new claim, which ends only with
      the Pod.
    - `release`: the Pod is claimed, and nothing was delivered. The claim is released, and is rebuilt first if it is
      lost. The release deregisters the runner first, and stops if GitHub refuses.
    """

    LEAVE = "leave"
    EXECUTE = "execute"
    REBUILD = "rebuild"
    KEEP = "keep"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Registered:
    """A runner that GitHub lists under the name of a runner Pod."""

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
        """Return whether the scope of the runner is certain. Some scopes are listed both by name and by id.

        A list by name might show the runners of another repository that has this name now.
        """
        return Scope.parse(self.scope).certain


@dataclass(frozen=True, slots=True)
class RowClaim:
    """The live claim of a Pod in the restored rows. The scope of its runner is None if it is unknown."""

    id: int
    purpose: Purpose
    state: ClaimState
    delivered: bool
    account_id: int | None = None
    installation_id: int | None = None
    scope: str | None = None

    def is_of_another(self, owner: int | None, runner: Registered | None) -> bool:
        """Return whether a Pod with this owner label and this runner serves another account than the claim's."""
        if owner is not None and self.account_id is not None and owner != self.account_id:
            return True
        if runner is None or self.scope is None:
            return False
        return runner.installation_id != self.installation_id or not _same(self.scope, runner.scope)


def _same(one: str, other: str) -> bool:
    """Return whether two scopes are the same. Repository ids are compared if both are known, else names."""
    mine, its = Scope.parse(one), Scope.parse(other)
    if mine.repository_id is not None and its.repository_id is not None:
        return mine.repository_id == its.repository_id
    return mine == its


@dataclass(frozen=True, slots=True)
class RestoredPod:
    """A Pod as the cluster, GitHub and the rows show it.

    - `owner`: the account in its owner label, or None.
    - `stamp_claim`: the claim that wrote its annotation last, or 0.
    - `runners`: the runners at GitHub with a name of this Pod.
    - `asked`: GitHub was asked for the runners of every possible scope of its runner.
    - `used`: the rows have an ended claim of it that was delivered.
    - `claim`: its live claim in the rows, or None.
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
    """Action on a Pod, with the reason. `runner` is its runner, or None if the runner cannot be identified.

    `drops` is the Pod's claim in the rows if it must end first, because the Pod serves another claim. Otherwise it is
    None.
    """

    act: Act
    why: str
    runner: Registered | None = None
    drops: RowClaim | None = None

    @property
    def decided(self) -> bool:
        """Return whether it is known what the Pod does. It is unknown only after the action `keep`."""
        return self.act is not Act.KEEP


def judge_pod(pod: RestoredPod) -> PodVerdict:
    """Return the action on a Pod after Postgres was restored."""
    runner = max(pod.runners, key=lambda each: (each.busy, each.online, each.id, each.certain), default=None)
    if pod.terminal:
        return PodVerdict(Act.LEAVE, "the Pod has ended: the reconciler cleans it up")
    claim, drops = pod.claim, None
    undelivered = claim is not None and not claim.delivered and claim.purpose is Purpose.JOB
    if claim is not None and undelivered and (pod.stamp_claim > claim.id or claim.is_of_another(pod.owner, runner)):
        claim, drops = None, claim  # the Pod has a later claim or another account, so this claim was over
    if claim is not None and claim.delivered:
        return PodVerdict(Act.LEAVE, f"its claim {claim.id} was already delivered, and continues")
    if pod.used and claim is None:
        return PodVerdict(Act.LEAVE, "its claim had already ended: `finished_jobs` handles the Pod")
    if pod.used and claim is not None and claim.purpose is Purpose.RETIRE:
        return PodVerdict(
            Act.LEAVE, "its claim had already ended, and the Pod is being retired: the retirement asks GitHub first"
        )
    verdict = may_hold_jit(
        PodEvidence(
            any_delivered=False,
            poller_exit_code=pod.poller_exit_code,
            runner_ever_ready=pod.runner_ready,
            github_runner_seen="unknown" if runner is None else runner.seen,
        )
    )
    if verdict.busy:
        if claim is not None and claim.purpose is Purpose.RETIRE:
            claim, drops = None, claim
        return replace(_busy(claim, runner, ", ".join(verdict.reasons)), drops=drops)
    return replace(_free(pod, claim, runner), drops=drops)


def _busy(claim: RowClaim | None, runner: Registered | None, signs: str) -> PodVerdict:
    if claim is not None:
        return PodVerdict(Act.EXECUTE, f"claim {claim.id} was delivered after the backup: {signs}", runner)
    if runner is None:
        return PodVerdict(Act.KEEP, f"its claim is lost, and GitHub shows no runner of the Pod: {signs}")
    return PodVerdict(Act.REBUILD, f"its claim is lost: {signs}", runner)


def _free(pod: RestoredPod, claim: RowClaim | None, runner: Registered | None) -> PodVerdict:
    if claim is not None and claim.purpose is Purpose.RETIRE:
        return PodVerdict(Act.LEAVE, "the Pod is being retired, and nothing was delivered to it")
    if claim is not None:
        return PodVerdict(Act.RELEASE, f"claim {claim.id} was not delivered, and its progress is lost", runner)
    if not pod.stamped and runner is None:
        return PodVerdict(Act.LEAVE, "the Pod is warm or starting")
    if not pod.asked:
        return PodVerdict(Act.KEEP, "its claim is lost, and GitHub could not be asked for its runner")
    return PodVerdict(Act.RELEASE, "its claim is lost, and nothing was delivered", runner)


def stem_of(pod_name: str) -> str:
    """Return the start that the names of all runners of a Pod have in common. Pods with long names can share it."""
    return make_runner_name(pod_name, "0" * _SUFFIX_LENGTH)[: -_SUFFIX_LENGTH - 1]


def stem_of_runner(runner_name: str) -> str | None:
    """Return the start of the names of Pods that might own this runner, or None if no Pod can own it.

    The result must only be used as a reason to keep a Pod.
    """
    stem, suffix = runner_name[: -_SUFFIX_LENGTH - 1], runner_name[-_SUFFIX_LENGTH:]
    try:
        return stem if make_runner_name(stem, suffix) == runner_name else None
    except ValueError:
        return None
