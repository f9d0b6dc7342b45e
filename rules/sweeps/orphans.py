"""Orphans: Pods, runners and ServiceAccounts without a claim, and the witnesses that they may be deleted.

This module has the verdicts of `orphaned_stamps`, `unresponsive_pods`, `finished_jobs`, `orphaned_runners` and
`orphaned_service_accounts`. A verdict without witnesses keeps the object and gives the reason. Before a caller deletes
a Pod, the caller must create a retire claim (law L7). The caller must stop if GitHub refuses to remove a busy runner
(law L3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rules.claims.busy import PodEvidence, may_hold_jit
from rules.sweeps.limits import Source, Witness


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on an object, with the reason. `keep` is true if the object stays.

    `witnesses` is empty if the object stays. `proof` says why the object certainly holds no JIT. `proof` might also
    name a check that the caller must still make. `proof` is None if the verdict needs no proof. `agreed` allows more
    repairs in one tick (`rules.sweeps.limits.allowance`).
    """

    keep: bool
    reason: str
    witnesses: tuple[Witness, ...] = ()
    proof: str | None = None
    agreed: bool = False


def _leave_alone(reason: str) -> Verdict:
    return Verdict(keep=True, reason=reason)


@dataclass(frozen=True, slots=True)
class StampedPod:
    """A stamped Pod in the list. `has_row` is true if Postgres knows the UID of the Pod.

    `idle_seconds` counts from the end of the Pod's last claim. If the Pod never had a claim, `idle_seconds` counts from
    the creation of the Pod.
    """

    has_row: bool
    has_live_claim: bool
    ever_delivered: bool
    idle_seconds: float


def judge_stamped(pod: StampedPod, *, grace_seconds: float) -> Verdict | None:
    """Return a verdict to keep a stamped Pod, or None if the caller must read the Pod with a GET and judge it again."""
    if not pod.has_row:
        return _leave_alone("Postgres has no row of the Pod yet, so no claim can retire it")
    if pod.has_live_claim:
        return _leave_alone("the Pod has a live claim")
    if pod.ever_delivered:
        return _leave_alone("a claim of the Pod was delivered: `finished_jobs` handles the Pod")
    if pod.idle_seconds < grace_seconds:
        return _leave_alone(f"the last claim ended, or the Pod was created, less than {grace_seconds:g} s ago")
    return None


def judge_orphaned_stamp(
    evidence: PodEvidence, *, same_uid: bool, stamped: bool, terminating: bool, poller_running: bool
) -> Verdict:
    """Return the verdict on a stamped Pod after a GET of the Pod.

    According to Postgres, the Pod has no live claim, and no JIT was ever delivered to the Pod. The two sources agree if
    the status of the Pod also shows that its poller runs (`poller_running`) or failed. A Pod without a status of its
    poller is retired too, but such Pods get no larger budget (law L9).
    """
    if not same_uid or terminating or evidence.terminal:
        return _leave_alone("the Pod is already ending")
    if not stamped:
        return _leave_alone("the stamp of the Pod was removed after the sweep had listed the Pods")
    verdict = _never_given(evidence, "the Pod is stamped, has no live claim and never received a JIT")
    return replace(verdict, agreed=not verdict.keep and (poller_running or evidence.poller_exit_code is not None))


def _never_given(evidence: PodEvidence, reason: str) -> Verdict:
    """Return the verdict on a Pod that never received a JIT according to Postgres.

    If the Pod might hold a JIT nevertheless, the verdict keeps the Pod. Otherwise the witnesses are Postgres and, for
    the state of the Pod's poller, Kubernetes.
    """
    busy = may_hold_jit(evidence)
    if busy.busy or evidence.any_delivered:
        return _leave_alone("the Pod might hold a JIT: " + ", ".join(busy.reasons))
    exited = evidence.poller_exit_code
    poller = "the poller has not exited" if exited is None else f"the poller exited {exited}"
    return Verdict(
        keep=False,
        reason=reason,
        witnesses=(Witness(Source.POSTGRES, "nothing was delivered"), Witness(Source.KUBERNETES, poller)),
    )


@dataclass(frozen=True, slots=True)
class QuietPod:
    """A Pod that has no claim and no offer.

    `quiet_seconds` counts from the Pod's last poll. If the Pod never polled, `quiet_seconds` counts from the creation
    of the Pod. `web_beats` is true if a web process ran during the whole grace period. Otherwise the Pod might have
    been unable to poll.
    """

    quiet_seconds: float
    web_beats: bool


def judge_unresponsive(pod: QuietPod, evidence: PodEvidence, *, grace_seconds: float) -> Verdict:
    """Return the verdict on a Pod that did not poll for `grace_seconds`, or whose poller has ended."""
    if evidence.terminal:
        return _leave_alone("the Pod is already ending")
    if evidence.poller_exit_code is not None:
        return _never_given(evidence, "the poller of the Pod failed")
    if pod.quiet_seconds < grace_seconds:
        return _leave_alone(f"the Pod polled, or was created, less than {grace_seconds:g} s ago")
    if not pod.web_beats:
        return _leave_alone("no web process ran that could receive polls of the Pod")
    return _never_given(evidence, "the Pod does not poll")


RunnerCheck = Literal["absent", "idle", "busy"]


@dataclass(frozen=True, slots=True)
class FinishedPod:
    """A Pod that is not terminal although the job of its latest delivered claim is over, or should be over.

    - `job_over`: the job of the claim is over.
    - `outlasts`: the claim has executed for longer than GitHub lets a job run.
    - `job_over_seconds`: seconds since the end of the job that the Pod's runner executed, or None if no execution is
      known.
    - `runner`: present state of the Pod's runner at GitHub.
    - `free_for_seconds`: seconds since the first of the consecutive checks that found the runner absent or idle, or
      None if this check is the first.
    - `node_gone`: phrase for the verdict if the Pod is checked only because its node is gone, else None. If `node_gone`
      is set, the caller must set `runner` to busy while the runner is online.
    - `absent_for_seconds`: seconds since the first of the consecutive checks that did not find the runner. Only checks
      after the end of the executed job count.
    - `overdue`: an idle runner is enough to retire the Pod. If false, the runner must be absent.
    """

    job_over: bool
    outlasts: bool
    job_over_seconds: float | None
    runner: RunnerCheck
    free_for_seconds: float | None
    node_gone: str | None = None
    absent_for_seconds: float | None = None
    overdue: bool = True


def judge_finished(
    pod: FinishedPod, *, checks_apart: float, job_over_after: float, absent_after: float = math.inf
) -> Verdict:
    """Return the verdict on a Pod whose job is over, or should be over.

    The Pod is retired in two cases. In both cases, two checks at least `checks_apart` seconds apart found no busy
    runner:

    - The Pod is `overdue`. The two checks alone prove that the Pod holds no JIT only if the executed job ended at least
      `job_over_after` seconds ago. Otherwise the verdict names the removal of the runner as the missing proof.
    - The runner was absent in both checks, and the executed job ended at least `absent_after` seconds ago. GitHub has
      then removed the runner.
    """
    if pod.runner == "busy":
        return _leave_alone("the runner of the Pod is busy")
    if _was_removed(pod, checks_apart=checks_apart, absent_after=absent_after):
        return _judge_removed()
    if not pod.overdue:
        return _leave_alone(f"the time `finished_job_after` is not over, and the runner is {pod.runner}")
    if pod.free_for_seconds is None or pod.free_for_seconds < checks_apart:
        return _leave_alone(f"the runner is {pod.runner}, and a second check must confirm that it is not busy")
    if pod.node_gone is not None:
        what = pod.node_gone
    elif pod.outlasts:
        what = "the claim has executed for longer than GitHub allows"
    else:
        what = "the job of the Pod is over" if pod.job_over else "no running job of the Pod is known"
    held = may_hold_jit(
        PodEvidence(
            any_delivered=True,
            poller_exit_code=None,
            runner_ever_ready=False,
            github_runner_seen="absent" if pod.runner == "absent" else "online",
            executed_job_terminal_for_seconds=pod.job_over_seconds,
            runner_absent_or_idle_in_two_checks=True,
        ),
        job_over_after=job_over_after,
    )
    return Verdict(
        keep=False,
        reason=f"{what}, the runner of the Pod is {pod.runner}, and the Pod has not ended",
        witnesses=(
            Witness(Source.GITHUB, f"the runner was absent or idle in two checks, and is {pod.runner} now"),
            Witness(Source.POSTGRES if pod.node_gone is None else Source.KUBERNETES, what),
        ),
        proof="the retirement first removes the runner from GitHub, and stops if GitHub refuses"
        if held.busy
        else held.reasons[0],
    )


def _was_removed(pod: FinishedPod, *, checks_apart: float, absent_after: float) -> bool:
    over_for, absent_for = pod.job_over_seconds, pod.absent_for_seconds
    if pod.runner != "absent" or over_for is None or absent_for is None:
        return False
    return over_for >= absent_after and absent_for >= checks_apart


def _judge_removed() -> Verdict:
    held = may_hold_jit(
        PodEvidence(
            any_delivered=True,
            poller_exit_code=None,
            runner_ever_ready=False,
            github_runner_seen="absent",
            runner_removed_proof=True,
        )
    )
    return Verdict(
        keep=False,
        reason="the job of the Pod is over, the runner is absent, and the Pod has not ended",
        witnesses=(
            Witness(Source.GITHUB, "the runner was absent in two checks"),
            Witness(Source.POSTGRES, "the job that the runner executed is over"),
        ),
        proof=held.reasons[0],
    )


def judge_runner(
    *, ours: bool, online: bool, busy: bool, has_live_claim: bool, idle_seconds: float, grace_seconds: float
) -> Verdict:
    """Return the verdict on a registered runner. `idle_seconds` counts from the end of the runner's claim.

    `ours` is true if the runner's name is in Ostler's mint attempts. Any other runner is kept, even if its name looks
    like the name of a runner of Ostler (law L3).
    """
    if not ours:
        return _leave_alone("the runner was not registered by Ostler")
    if online or busy:
        return _leave_alone("the runner is online" if online else "the runner is busy")
    if has_live_claim:
        return _leave_alone("the claim of the runner is live")
    if idle_seconds < grace_seconds:
        return _leave_alone(f"the claim of the runner ended less than {grace_seconds:g} s ago")
    return Verdict(
        keep=False,
        reason="the runner is registered and offline, and its claim has ended",
        witnesses=(
            Witness(Source.GITHUB, "the runner is offline"),
            Witness(Source.POSTGRES, "the claim of the runner has ended"),
        ),
    )


def judge_service_account(
    *, row_is_open: bool, pod_exists: bool, terminating: bool, age_seconds: float, grace_seconds: float
) -> Verdict:
    """Return the verdict on a runner's ServiceAccount.

    `row_is_open` is true if the ServiceAccount's Pod is planned or exists, according to Postgres.
    """
    if terminating:
        return _leave_alone("the ServiceAccount is being deleted")
    if age_seconds < grace_seconds:
        return _leave_alone("the ServiceAccount is new, and its Pod might not be created yet")
    if row_is_open:
        return _leave_alone("the Pod of the ServiceAccount is known, or about to be created")
    if pod_exists:
        return _leave_alone("the Pod of the ServiceAccount still exists")
    return Verdict(
        keep=False,
        reason="the Pod of the ServiceAccount is gone",
        witnesses=(
            Witness(Source.KUBERNETES, "no Pod has the name of the ServiceAccount"),
            Witness(Source.POSTGRES, "the row of the Pod says that the Pod is gone"),
        ),
    )
