"""The transition table contains the duration of every lease, and no other duration."""

from __future__ import annotations

from rules.claims.machines import TRANSITIONS, Machine
from tasks.restore.restoring import STEPS_END


def test_exactly_the_leases_have_a_length() -> None:
    assert {each.name for each in TRANSITIONS.values() if each.seconds} == {
        each.name for each in TRANSITIONS.values() if each.machine is Machine.LEASE
    }


def test_a_restore_waits_longer_than_any_step() -> None:
    assert max(each.seconds for each in TRANSITIONS.values()) < STEPS_END
