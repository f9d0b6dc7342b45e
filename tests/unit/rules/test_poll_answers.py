"""The answer table of the runners' poll."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.machines import ClaimState, Purpose, Stamp
from rules.claims.poll_answers import PolledClaim, PollFacts, Verdict, answer

WARM = PollFacts(known=True, bound=True, gone=False, offered=True, used=False, claim=None)


def claimed(
    state: ClaimState, *, purpose: Purpose = Purpose.JOB, stamp: Stamp = Stamp.ON, delivered: bool = False
) -> PolledClaim:
    return PolledClaim(id=5, purpose=purpose, state=state, stamp=stamp, delivered=delivered)


C = ClaimState
TABLE = [
    ("no row", replace(WARM, known=False, bound=False, offered=False), Verdict.LOOK_UP),
    ("row held by another transaction", replace(WARM, bound=False, offered=False), Verdict.NOT_YET),
    ("offer held by another transaction", replace(WARM, offered=False, locked=True), Verdict.NOT_YET),
    (
        "offer held by another transaction, retiring",
        replace(WARM, offered=False, locked=True, claim=claimed(C.CLAIMED, purpose=Purpose.RETIRE)),
        Verdict.REPLACE,
    ),
    ("gone", replace(WARM, gone=True, offered=False), Verdict.REFUSE),
    ("warm", WARM, Verdict.HOLD),
    ("warm, a newer poll elsewhere", replace(WARM, offered=False), Verdict.NOTHING),
    ("claimed", replace(WARM, claim=claimed(C.CLAIMED)), Verdict.HOLD),
    ("minted", replace(WARM, claim=claimed(C.MINTED)), Verdict.DELIVER),
    ("minted, a newer poll elsewhere", replace(WARM, offered=False, claim=claimed(C.MINTED)), Verdict.NOTHING),
    ("minted, never stamped", replace(WARM, claim=claimed(C.MINTED, stamp=Stamp.GAVE_UP)), Verdict.DELIVER),
    ("minted, stamp coming off", replace(WARM, claim=claimed(C.MINTED, stamp=Stamp.REMOVING)), Verdict.HOLD),
    ("minted, stamp off", replace(WARM, claim=claimed(C.MINTED, stamp=Stamp.OFF)), Verdict.DELIVER),
    (
        "delivered",
        replace(WARM, offered=False, claim=claimed(C.DELIVERED, delivered=True)),
        Verdict.DELIVER_AGAIN,
    ),
    ("JIT seen used", replace(WARM, offered=False, claim=claimed(C.EXECUTING, delivered=True)), Verdict.REPLACE),
    ("released before delivery", replace(WARM, claim=claimed(C.RELEASING)), Verdict.HOLD),
    (
        "released after delivery",
        replace(WARM, offered=False, claim=claimed(C.RELEASING, delivered=True)),
        Verdict.REPLACE,
    ),
    ("retiring", replace(WARM, offered=False, claim=claimed(C.CLAIMED, purpose=Purpose.RETIRE)), Verdict.REPLACE),
    ("an ended claim was delivered", replace(WARM, offered=False, used=True), Verdict.REPLACE),
    (
        "an ended claim was delivered, another is minted",
        replace(WARM, offered=False, used=True, claim=claimed(C.MINTED)),
        Verdict.REPLACE,
    ),
]


@pytest.mark.parametrize(("facts", "verdict"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_row_of_the_table(facts: PollFacts, verdict: Verdict) -> None:
    assert answer(facts).verdict is verdict


FACTS = st.builds(
    PollFacts,
    known=st.booleans(),
    bound=st.booleans(),
    gone=st.booleans(),
    offered=st.booleans(),
    used=st.booleans(),
    claim=st.none()
    | st.builds(
        PolledClaim,
        id=st.just(5),
        purpose=st.sampled_from(Purpose),
        state=st.sampled_from([state for state in C if state is not C.ENDED]),
        stamp=st.sampled_from(Stamp),
        delivered=st.booleans(),
    ),
)


@given(FACTS)
def test_only_a_live_claim_for_a_job_or_a_registration_is_ever_delivered(facts: PollFacts) -> None:
    given_answer = answer(facts)
    delivers = given_answer.verdict in {Verdict.DELIVER, Verdict.DELIVER_AGAIN}
    assert (given_answer.claim_id is not None) == delivers
    if delivers:
        assert facts.claim is not None
        assert facts.claim.purpose in {Purpose.JOB, Purpose.REGISTER}
        assert facts.claim.state in {C.MINTED, C.DELIVERED}
        assert not facts.used


@given(FACTS)
def test_a_pod_without_claims_is_never_told_to_go_for_good(facts: PollFacts) -> None:
    if facts.claim is None and not facts.used:
        assert answer(facts).verdict is not Verdict.REPLACE


def test_a_poll_that_arrived_under_an_unstamp_gets_its_jit_and_cancels_that() -> None:
    removing = replace(WARM, claim=claimed(C.MINTED, stamp=Stamp.REMOVING))
    arrived = answer(replace(removing, arrived=True))
    assert (arrived.verdict, arrived.claim_id, arrived.cancels_unstamp) == (Verdict.DELIVER, 5, True)
    assert not answer(removing).cancels_unstamp
    stamped = answer(replace(WARM, claim=claimed(C.MINTED), arrived=True))
    assert (stamped.verdict, stamped.claim_id, stamped.cancels_unstamp) == (Verdict.DELIVER, 5, False)
    assert answer(replace(WARM, claim=claimed(C.DELIVERED, delivered=True))).claim_id == 5
