"""Silent cuts: a JIT was sent but never arrived, because the Pod's own stamp cut its connection to web.

A network policy that drops packets is invisible to web, which sends the answer as usual. The Pod cannot poll again
until its stamp is removed. Only in this case may a Pod with a delivery be un-stamped. The un-stamp needs evidence from
the cluster and from GitHub, because the row only says that the JIT was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.claims.busy import RunnerSeen

CUT_OFF_AFTER = 15.0


@dataclass(frozen=True, slots=True)
class CutEvidence:
    """Result of a GET of the Pod and a check of its runner, `delivered_seconds` after the delivery.

    `runner_began` says that container `runner` is ready or has ended. `stamped` says that the Pod has an owner label.
    """

    delivered_seconds: float
    stamped: bool
    poller_running: bool
    runner_began: bool
    github_runner_seen: RunnerSeen


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """Verdict on whether the stamp of a Pod with a delivery may be removed, with the reason."""

    cut: bool
    why: str


def judge_cut(seen: CutEvidence, *, after: float = CUT_OFF_AFTER) -> CutVerdict:
    """Return whether the Pod is cut off by its stamp. `after` is in seconds. In doubt, the answer is no."""
    against = (
        (not seen.delivered_seconds >= after, "the JIT was delivered a moment ago"),
        (not seen.stamped, "the Pod carries no stamp"),
        (not seen.poller_running, "its poller does not run"),
        (seen.runner_began, "container runner is ready, or has ended"),
        (seen.github_runner_seen not in {"offline", "absent"}, f"its runner is {seen.github_runner_seen} on GitHub"),
    )
    found = next((why for holds, why in against if holds), None)
    return CutVerdict(found is None, found or "its poller still runs, and its runner never came online")
