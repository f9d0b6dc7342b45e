"""Starts of a pool: what one failure, one refusal and one creation change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.starts import NOTHING_YET, Starts, Trouble, refused, taken, trouble_of_ended

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_refusals_back_off_when_pods_are_taken_in_between() -> None:
    """An admission webhook that refuses every second Pod must not be asked without a pause."""
    starts, pauses = NOTHING_YET, []
    for turn in range(4):
        now = NOW + timedelta(minutes=turn)
        starts = taken(refused(starts, detail="no", now=now))
        assert starts.create_after is not None
        pauses.append((starts.create_after - now).total_seconds())
    assert (starts.failures, pauses) == (4, [0, 5, 10, 20])


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.QUOTA])
def test_a_creation_removes_what_the_api_server_said_and_nothing_else(trouble: Trouble) -> None:
    starts = Starts(failures=3, failed_at=NOW, create_after=NOW, trouble=trouble, detail="no")
    assert taken(starts) == Starts(failures=3, failed_at=NOW, create_after=NOW)


@pytest.mark.parametrize("trouble", sorted(set(Trouble) - {Trouble.REFUSED, Trouble.QUOTA}))
def test_a_creation_changes_nothing_of_pods_that_did_not_poll(trouble: Trouble) -> None:
    starts = Starts(failures=3, failed_at=NOW, create_after=NOW, trouble=trouble, detail="x")
    assert taken(starts) == starts


@pytest.mark.parametrize(
    ("reason", "poller", "trouble", "says"),
    [
        ("OutOfcpu", None, Trouble.UNSCHEDULABLE, "OutOfcpu"),
        ("Evicted", 137, Trouble.UNSCHEDULABLE, "Evicted"),
        (None, 127, Trouble.POLLER, "exited 127"),
        (None, None, Trouble.CONTAINER, "before its poller ran"),
    ],
)
def test_trouble_of_a_pod_that_ended_names_what_ended_it(
    reason: str | None, poller: int | None, trouble: Trouble, says: str
) -> None:
    found, detail = trouble_of_ended(reason=reason, poller_exit_code=poller)
    assert found is trouble
    assert says in detail
