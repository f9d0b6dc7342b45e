"""Busy judgement: whether a Pod might hold a JIT. `may_hold_jit` implements law L3 for every caller.

Each of these signs makes a Pod busy:

- A claim of the Pod was delivered.
- The Pod's poller exited 0.
- The Pod's container `runner` is or was ready.
- A runner from one of the Pod's mint attempts is online or busy on GitHub.

A Pod with a sign stays busy until one of these proofs exists:

- The Pod is over or gone.
- GitHub removed the runner.
- The job that the runner *executed* ended at least `job_over_after` seconds ago (by default `JOB_OVER_AFTER`), and the
  runner was absent or idle in two checks.

The end of the job that the Pod was *claimed* for proves nothing, because GitHub gives a job to any runner whose labels
cover the job. `PodEvidence` therefore has no field for the end of the claimed job. A JIT that was minted but never
delivered is no sign. If GitHub cannot be asked about a runner, the verdict depends on the other evidence only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunnerSeen = Literal["online", "busy", "offline", "absent", "unknown"]
JOB_OVER_AFTER = 900.0
"""Default number of seconds since the end of the executed job after which the end counts as part of a proof."""


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """Evidence from Postgres, Kubernetes and GitHub about one Pod UID.

    If the Pod has several runners, the fields about the runner describe the most active runner.

    - `any_delivered`: one of the Pod's claims has `delivered_at` set.
    - `poller_exit_code`: exit code of the poller, or None while the poller has not ended.
    - `runner_ever_ready`: container `runner` is or was ready.
    - `github_runner_seen`: result of the last check of the runner, or `unknown` if GitHub could not be asked.
    - `terminal`: the Pod is over.
    - `gone`: the Pod does not exist any more.
    - `runner_removed_proof`: GitHub answered 204 to the removal, or the runner was absent in two checks a minute apart.
    - `executed_job_terminal_for_seconds`: seconds since the end of the job that the runner executed. The value is None
      while the job runs, and if no execution is known.
    - `runner_absent_or_idle_in_two_checks`: neither of two consecutive checks found the runner busy.

    The fields for the signs of a JIT have no default. The fields for the proofs default to "no proof".
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
    """Verdict on whether the Pod might hold a JIT, with the signs or proofs that support it."""

    busy: bool
    reasons: tuple[str, ...]


def may_hold_jit(evidence: PodEvidence, *, job_over_after: float = JOB_OVER_AFTER) -> BusyVerdict:
    """Return whether the Pod might hold a JIT. `job_over_after` is in seconds.

    A proof does not count if the last check of GitHub contradicts it. An example is a runner that was reported as
    removed and is now online. If the evidence is doubtful, the Pod counts as busy.
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
            "the job that the runner executed is over, and the runner was absent or idle in two checks",
        ),
    )
    return tuple(reason for holds, reason in found if holds)


def _signs(evidence: PodEvidence) -> tuple[str, ...]:
    found = (
        (evidence.any_delivered, "a claim was delivered"),
        (evidence.poller_exit_code == 0, "the poller exited 0"),
        (evidence.runner_ever_ready, "the container `runner` is or was ready"),
        (evidence.github_runner_seen == "online", "the runner of the Pod is online on GitHub"),
        (evidence.github_runner_seen == "busy", "the runner of the Pod is busy on GitHub"),
    )
    return tuple(reason for holds, reason in found if holds)
