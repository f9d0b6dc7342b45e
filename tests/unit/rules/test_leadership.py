"""Leadership: the rule never gives two leaders, whatever the clocks show, and never none for long."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.upstream.leadership import GIVE_UP, RENEW, LeaseSeen, LeaseStep, leads, next_step

HELD = LeaseSeen(holder="other", duration=10, version="7", transitions=2)


def test_a_lease_that_does_not_exist_is_made() -> None:
    assert next_step(None, me="me", unchanged_for=0) is LeaseStep.CREATE


def test_ones_own_lease_is_renewed_however_old_it_is() -> None:
    assert next_step(replace(HELD, holder="me"), me="me", unchanged_for=1e6) is LeaseStep.RENEW


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    assert next_step(replace(HELD, holder=""), me="me", unchanged_for=0) is LeaseStep.TAKE


def test_lease_of_another_is_acquired_only_when_unchanged_for_its_duration() -> None:
    assert next_step(HELD, me="me", unchanged_for=10) is LeaseStep.WAIT
    assert next_step(HELD, me="me", unchanged_for=10.1) is LeaseStep.TAKE


def test_a_leader_that_cannot_renew_stops_before_another_may_begin() -> None:
    assert leads(renewed_before=6.6, duration=10)
    assert not leads(renewed_before=6.7, duration=10)
    assert not leads(renewed_before=None, duration=10)


@settings(deadline=None)
@given(renewed=st.floats(0, 100), looked_after=st.floats(0, 100), duration=st.floats(1, 50))
def test_lease_is_not_acquired_while_its_holder_leads(renewed: float, looked_after: float, duration: float) -> None:
    """The other process saw the renewal at least `looked_after` seconds later, and waits from then."""
    lease = replace(HELD, duration=duration)
    if next_step(lease, me="me", unchanged_for=renewed - looked_after) is LeaseStep.TAKE:
        assert not leads(renewed_before=renewed, duration=duration)


def test_a_leader_has_several_tries_before_it_must_stop() -> None:
    assert GIVE_UP / RENEW >= 3


def test_a_leader_stops_at_the_end_of_its_time() -> None:
    assert not leads(renewed_before=GIVE_UP * 10, duration=10)
