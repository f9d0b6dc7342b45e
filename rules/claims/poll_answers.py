"""Answers to the polls of runner Pods, from the rows about the Pod.

The answers are those of `POST /runners/v1/dispatch`. 410 makes a Pod exit for ever, so it is given only if the Pod is
to be deleted under a retire claim, or if its JIT cannot be delivered any more. An old template, a deleted pool or a
drain alone is never a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.claims.machines import ClaimState, Purpose, Stamp


class Verdict(StrEnum):
    """Decision about a poll."""

    HOLD = "hold"
    DELIVER = "deliver"
    DELIVER_AGAIN = "deliver_again"
    NOTHING = "nothing"  # 204: a newer poll of this Pod has the offer
    REPLACE = "replace"  # 410
    REFUSE = "refuse"  # 403
    NOT_YET = "not_yet"  # 503: cannot be judged now
    LOOK_UP = "look_up"  # no row: the cluster knows whether the Pod is ours


@dataclass(frozen=True, slots=True)
class PolledClaim:
    """The live claim on the Pod that polls. `delivered`: its JIT was delivered at least once."""

    id: int
    purpose: Purpose
    state: ClaimState
    stamp: Stamp
    delivered: bool


@dataclass(frozen=True, slots=True)
class PollFacts:
    """Facts from the rows about the Pod that polls.

    - `known`: it has a row.
    - `bound`: that row carries its UID.
    - `gone`: it is proven terminal or gone.
    - `offered`: the offer is this poll's.
    - `used`: an ended claim on this UID was delivered.
    - `locked`: another transaction holds a row that its offer needs.
    - `arrived`: the statement that read these facts also wrote the poll's first offer, so the poll is newer than all
      facts.
    """

    known: bool
    bound: bool
    gone: bool
    offered: bool
    used: bool
    claim: PolledClaim | None
    locked: bool = False
    arrived: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict with its reason; `claim_id` is set if a JIT is to be delivered.

    `cancels_unstamp`: the poll arrived after the un-stamp of its Pod began, so nothing has to be un-stamped (L10).
    """

    verdict: Verdict
    why: str
    claim_id: int | None = None
    cancels_unstamp: bool = False


_LOCKED = Answer(Verdict.NOT_YET, "another transaction holds a row that the offer of this Pod needs")
_SUPERSEDED = Answer(Verdict.NOTHING, "a newer poll of this Pod has the offer")


def answer(facts: PollFacts) -> Answer:
    """Return the answer to a poll, from the facts in the rows."""
    if not facts.known:
        return Answer(Verdict.LOOK_UP, "no row of this Pod")
    if not facts.bound:
        return Answer(Verdict.NOT_YET, "the row of this Pod is being written by another transaction")
    if facts.gone:
        return Answer(Verdict.REFUSE, "this Pod is terminal or gone")
    if facts.used:
        return Answer(Verdict.REPLACE, "an ended claim on this Pod was delivered")
    if facts.claim is not None and (final := _of_claim(facts.claim)) is not None:
        return final
    if not facts.offered:
        return _LOCKED if facts.locked else _SUPERSEDED
    claim = facts.claim
    return Answer(Verdict.HOLD, "no claim") if claim is None else _of_undelivered(claim, arrived=facts.arrived)


def _of_undelivered(claim: PolledClaim, *, arrived: bool) -> Answer:
    if claim.state is not ClaimState.MINTED:
        return Answer(Verdict.HOLD, f"claim is {claim.state}")
    if claim.stamp is Stamp.REMOVING and arrived:
        return Answer(Verdict.DELIVER, "the Pod reaches us, stamped or not", claim.id, cancels_unstamp=True)
    if claim.stamp is Stamp.REMOVING:
        return Answer(Verdict.HOLD, "nothing is delivered while the stamp is being removed")
    return Answer(Verdict.DELIVER, "claim is minted", claim.id)


def _of_claim(claim: PolledClaim) -> Answer | None:
    """Return the answer that a claim requires, whichever poll has the offer; None if it requires none."""
    if claim.purpose is Purpose.RETIRE:
        return Answer(Verdict.REPLACE, "this Pod is being retired")
    if claim.state is ClaimState.EXECUTING:
        return Answer(Verdict.REPLACE, "the JIT was seen used")
    if claim.state is ClaimState.RELEASING and claim.delivered:
        return Answer(Verdict.REPLACE, "the claim is being released after its delivery")
    if claim.state is ClaimState.DELIVERED:
        return Answer(Verdict.DELIVER_AGAIN, "the reply was lost", claim.id)
    return None
