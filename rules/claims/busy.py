"""May a Pod hold a JIT? The one judgement behind law L3, used by every caller.

Yes when a claim of the Pod was delivered, its poller exited 0, its container `runner` is or was ready, or
a runner of its mint attempts is online or busy on GitHub. After that it ends only by proof: the Pod is
over or gone, GitHub removed the runner, or the job that the runner *executed* is long over and the
runner was absent or idle in two checks. The end of the job that the Pod was *claimed* for proves nothing:
GitHub gives a job to any runner whose labels cover it. So the evidence has no field for it.

A runner that was minted and never delivered is not enough, and a runner that could not be looked up adds
nothing: it neither makes a Pod busy nor sets it free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunnerSeen = Literal["online", "busy", "offline", "absent", "unknown"]
JOB_OVER_AFTER = 900.0


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """What Postgres, Kubernetes and GitHub say of one Pod UID; of several runners the most alive one.

    `any_delivered`: one of its claims has `delivered_at` set. `runner_ever_ready`: container `runner` is or
    was ready. `github_runner_seen`: in the last check; `unknown` when GitHub could not be asked.
    `runner_removed_proof`: GitHub answered 204 to the removal, or the runner was absent in two checks of a
    minute apart. `executed_job_terminal_for_seconds`: since the end of the job that the runner executed;
    None while that runs, or when no execution is known. Signs have to be given; a proof that is not given is none.
    """

    any_delivered: bool
    poller_exit_code: int | None
    runner_ever_ready: bool
    github_runner_seen: RunnerSeen
    terminal: bool = False
    gone: bool = False
    runner_removed_proof: bool = False
    executed_job_terminal_for_seconds: float | None = None
    runner_absent_or_idle_in_two_checks: bool = False


@dataclass(frozen=True, slots=True)
class BusyVerdict:
    """Whether the Pod may hold a JIT, and everything that speaks for that verdict."""

    busy: bool
    reasons: tuple[str, ...]


def may_hold_jit(evidence: PodEvidence, *, job_over_after: float = JOB_OVER_AFTER) -> BusyVerdict:
    """Return whether the Pod may hold a JIT; `job_over_after` is in seconds.

    A proof that the last check of GitHub contradicts (removed, yet online or busy) is none: doubt means busy.
    """
    proofs = _proofs(evidence, job_over_after)
    if proofs:
        return BusyVerdict(busy=False, reasons=proofs)
    signs = _signs(evidence)
    if signs:
        return BusyVerdict(busy=True, reasons=signs)
    return BusyVerdict(busy=False, reasons=("nothing was delivered and no runner was seen",))


def _proofs(evidence: PodEvidence, job_over_after: float) -> tuple[str, ...]:
    seen = evidence.github_runner_seen
    over_for = evidence.executed_job_terminal_for_seconds
    job_is_over = over_for is not None and over_for >= job_over_after
    found = (
        (evidence.gone, "the Pod is gone"),
        (evidence.terminal, "the Pod is over"),
        (evidence.runner_removed_proof and seen not in {"online", "busy"}, "GitHub removed the runner"),
        (
            job_is_over and evidence.runner_absent_or_idle_in_two_checks and seen != "busy",
            "the job it executed is over and its runner was absent or idle in two checks",
        ),
    )
    return tuple(reason for holds, reason in found if holds)


def _signs(evidence: PodEvidence) -> tuple[str, ...]:
    found = (
        (evidence.any_delivered, "a claim was delivered"),
        (evidence.poller_exit_code == 0, "the poller exited 0"),
        (evidence.runner_ever_ready, "container runner is or was ready"),
        (evidence.github_runner_seen == "online", "its runner is online on GitHub"),
        (evidence.github_runner_seen == "busy", "its runner is busy on GitHub"),
    )
    return tuple(reason for holds, reason in found if holds)
