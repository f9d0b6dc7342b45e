"""When the gate of an upstream closes and opens again: from counts of its calls to a verdict, nothing else.

A closed gate stops reaping and the growth of demand, never dispatch: what is killed on the word of an upstream that
answers half of the time is killed in doubt (law L8). It closes on one bad check, since waiting costs nothing but time,
and opens after several good ones in a row. How many is drawn anew at each closing, so that of many who wait for the
same upstream not all begin at the same moment. Between what closes and what opens lies a band that does neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """The thresholds; shares are parts of one, and `opens_at` is below `closes_at`.

    `healthy_checks` are needed to open, and up to `extra_checks` beside them.
    """

    least_errors: int = 5
    closes_at: float = 0.5
    opens_at: float = 0.2
    healthy_checks: int = 4
    extra_checks: int = 4


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The calls of all processes in the last minute, and those that failed."""

    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate: good checks since it closed or since the last that was not, and how many of them open it."""

    closed: bool = False
    healthy_checks: int = 0
    needs: int = 0


def judge(gate: Gate, counts: CallCounts, *, rule: GateRule, roll: float) -> Gate:
    """Return what the gate is after a check; `roll` is random in [0, 1).

    No traffic says nothing: an open gate stays open and a closed one closed, as far as it had come.
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


def why_closed(counts: CallCounts) -> str:
    """Return the reason in words."""
    return f"{counts.errors} of {counts.calls} calls of the last minute failed"
