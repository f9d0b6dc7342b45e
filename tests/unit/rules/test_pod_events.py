"""The Event about a Pod that says who ended it, and text of others as one line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rules.claims.pod_events import LONGEST_NOTE, PodEvent, choose, one_line

AT, LATER = datetime(2026, 11, 23, 12, tzinfo=UTC), datetime(2026, 11, 23, 13, tzinfo=UTC)
STARTED = PodEvent("Started", "kubelet", "Started container runner")
KILLING = PodEvent("Killing", "kubelet", "Stopping container runner", at=LATER)
NODE = PodEvent("NodeNotReady", "node-controller", "Node is not ready")
TAINT = PodEvent("TaintManagerEviction", "taint-eviction-controller", "Marking for deletion Pod a/b", at=AT)
UNDONE = PodEvent("TaintManagerEviction", "taint-eviction-controller", "Cancelling deletion of Pod a/b", at=LATER)
PREEMPTED = PodEvent("Preempted", "default-scheduler", "Preempted by pod x on node y")
DESCHEDULED = PodEvent("LowNodeUtilization", "sigs.k8s.io/descheduler", "pod evicted", action="Descheduled")


@pytest.mark.parametrize(
    ("events", "chosen"),
    [
        ([], None),
        ([STARTED], None),
        ([UNDONE, STARTED], None),
        ([STARTED, KILLING], KILLING),
        ([KILLING, NODE], NODE),
        ([KILLING, TAINT, NODE], TAINT),
        ([TAINT, UNDONE], TAINT),
        ([KILLING, PREEMPTED], PREEMPTED),
        ([KILLING, DESCHEDULED], DESCHEDULED),
    ],
)
def test_event_that_says_most_is_chosen(events: list[PodEvent], chosen: PodEvent | None) -> None:
    assert choose(events) == chosen
    assert choose(reversed(events)) == chosen


def test_latest_of_several_alike_is_chosen() -> None:
    old, new = (PodEvent("Evicted", "kubelet", note, at=at) for note, at in (("old", AT), ("new", LATER)))
    timeless = PodEvent("Evicted", "kubelet", "timeless")
    assert choose([old, new, timeless]) == choose([timeless, new, old]) == new


@pytest.mark.parametrize("event", [KILLING, NODE])
def test_component_that_only_carries_out_or_sees_is_not_who_did_it(event: PodEvent) -> None:
    assert not event.names_somebody
    assert TAINT.names_somebody


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("as  it\tis\r\n", "as it is"),
        ("a\x00b\x1b[31mc\u202ed\u2028e\ud800f", "a b [31mc d e f"),
        ("x" * LONGEST_NOTE, "x" * LONGEST_NOTE),
        ("x" * 9999, "x" * (LONGEST_NOTE - 1) + "…"),
        ("", ""),
    ],
)
def test_text_of_others_becomes_one_line(given: str, line: str) -> None:
    assert one_line(given, longest=LONGEST_NOTE) == line
