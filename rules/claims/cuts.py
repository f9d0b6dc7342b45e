"""Silent cuts: a JIT was sent but never arrived, because the Pod's own stamp cut the Pod's connection to web.

Web cannot notice that a network policy drops packets, and sends the answer as usual. The Pod cannot poll again until
its stamp is removed. After a delivery, the stamp may be removed from the Pod only in this case. The removal needs
evidence from the cluster and from GitHub, because the row in Postgres only shows that the JIT was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.claims.busy import RunnerSeen

CUT_OFF_AFTER = 15.0


@dataclass(frozen=True, slots=True)
class CutEvidence:
    """Result of a GET of the Pod and a check of its runner, `delivered_seconds` after the delivery.

    `runner_began` is true if container `runner` is ready or has ended. `stamped` is true if the Pod has an owner label.
    """

    delivered_seconds: float
    stamped: bool
    poller_running: bool
    runner_began: bool
    github_runner_seen: RunnerSeen


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """Verdict on whether the stamp may be removed from a Pod after a delivery, with the reason."""

    cut: bool
    why: str


def judge_cut(seen: CutEvidence, *, after: float = CUT_OFF_AFTER) -> CutVerdict:
    """Return whether the Pod is cut off by its stamp. `after` is in seconds.

    If the evidence is doubtful, the verdict is that the Pod is not cut off.
    """
    against = (
        (not seen.delivered_seconds >= after, f"less than {after:g} s have passed since the delivery"),
        (not seen.stamped, "the Pod carries no stamp"),
        (not seen.poller_running, "the poller of the Pod does not run"),
        (seen.runner_began, "the container `runner` is ready or has ended"),
        (
            seen.github_runner_seen not in {"offline", "absent"},
            f"the runner of the Pod is {seen.github_runner_seen} on GitHub",
        ),
    )
    found = next((why for holds, why in against if holds), None)
    return CutVerdict(
        found is None, found or "the poller of the Pod still runs, and the runner of the Pod never came online"
    )
