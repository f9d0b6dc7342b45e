"""Gates of upstreams: when a gate trips and recovers, from counts of calls alone.

While a gate is tripped, no sweep deletes an object of the cluster or a runner, and the autoscaler changes no pool.
Dispatch continues. If an upstream answers only half of the calls, its answers are no evidence for a deletion (law L8).
A gate trips after one bad evaluation, because waiting costs only time. A gate recovers after several consecutive good
evaluations. The number of good evaluations is drawn at random for each trip, so that the gates of deployments with the
same upstream do not recover together. If the share of failed calls is between the two thresholds, the state of the
gate does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """The thresholds of a gate. Shares are fractions of 1, and `opens_at` must be below `closes_at`.

    A gate recovers after `healthy_checks` good evaluations plus a random number of further evaluations, at most
    `extra_checks`.
    """

    least_errors: int = 5
    closes_at: float = 0.5
    opens_at: float = 0.2
    healthy_checks: int = 4
    extra_checks: int = 4


@dataclass(frozen=True, slots=True)
class CallCounts:
    """How many calls all processes made in the window of an evaluation, and how many of these calls failed."""

    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class Gate:
    """State of a gate. `closed` is True while the gate is tripped.

    `healthy_checks` is the number of consecutive good evaluations since the gate tripped. `needs` is the number of good
    evaluations until the recovery.
    """

    closed: bool = False
    healthy_checks: int = 0
    needs: int = 0

    @property
    def state(self) -> str:
        """Return the state for people: `tripped` or `ok`."""
        return "tripped" if self.closed else "ok"


def judge(gate: Gate, counts: CallCounts, *, rule: GateRule, roll: float) -> Gate:
    """Return the gate after an evaluation. `roll` is a random number in [0, 1).

    Without calls the gate does not change, and a tripped gate keeps its count of good evaluations.
    """
    if counts.calls == 0:
        return gate
    share = counts.errors / counts.calls
    if not gate.closed:
        if counts.errors < rule.least_errors or share < rule.closes_at:
            return gate
        return Gate(closed=True, needs=rule.healthy_checks + int(roll * (rule.extra_checks + 1)))
    if share > rule.opens_at:
        return replace(gate, healthy_checks=0)
    good = gate.healthy_checks + 1
    return Gate() if good >= gate.needs else replace(gate, healthy_checks=good)


def what_now(*, tripped: Sequence[str], failing: Sequence[tuple[str, CallCounts]], held: int) -> Sequence[str]:
    """Return sentences for an operator: which calls fail now, and what follows from the tripped gates.

    `tripped` are the names of the upstreams with a tripped gate, and `held` is the number of held jobs.
    """
    found = [
        f"{name}: {counts.errors} of {counts.calls} calls of the last minute failed."
        for name, counts in failing
        if counts.errors
    ]
    if tripped:
        jobs = "1 queued job is held" if held == 1 else f"{held} queued jobs are held"
        found.append(
            f"Running jobs go on, and {jobs}. There is nothing to do: a gate recovers by itself, one to three minutes "
            "after its upstream."
        )
        if "github" in tripped:
            found.append(
                "Ostler tries held jobs again by itself. The sweeps redelivery and catch_up fetch lost webhooks: do "
                "not pause them. If github.com is down, https://www.githubstatus.com says so."
            )
    return found


def why_closed(counts: CallCounts) -> str:
    """Return a text that says why the gate tripped."""
    return f"{counts.errors} of {counts.calls} recent calls failed"
