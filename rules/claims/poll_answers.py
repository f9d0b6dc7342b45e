"""Answers to the polls of runner Pods, from the rows about the Pod.

The answers are those of `POST /runners/v1/dispatch`. A Pod that receives a 410 exits and never polls again. A 410 is
therefore given only if the Pod will be deleted under a retire claim, or if the Pod's JIT cannot be delivered any more.
An old template, a deleted pool or a drain alone is no reason for a 410.
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
    NOT_YET = "not_yet"  # 503: the poll cannot be judged now
    LOOK_UP = "look_up"  # the Pod has no row, so the cluster is asked whether the Pod is Ostler's


@dataclass(frozen=True, slots=True)
class PolledClaim:
    """The live claim on the Pod that polls. `delivered` is true if the claim's JIT was delivered at least once."""

    id: int
    purpose: Purpose
    state: ClaimState
    stamp: Stamp
    delivered: bool


@dataclass(frozen=True, slots=True)
class PollFacts:
    """Facts from the rows about the Pod that polls.

    - `known`: the Pod has a row.
    - `bound`: the row has the UID of the Pod.
    - `gone`: the Pod is proven terminal or gone.
    - `offered`: the Pod's offer belongs to this poll.
    - `used`: an ended claim on this UID was delivered.
    - `claim`: the live claim on the Pod, or None.
    - `locked`: another transaction holds a lock on a row that the offer needs.
    - `arrived`: the statement that read these facts also wrote the poll's first offer. The poll is then newer than all
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
    """A verdict with its reason. `claim_id` is set if a JIT must be delivered.

    `cancels_unstamp` is true if the poll arrived after the un-stamp of the Pod began. Such a poll proves that the Pod
    reaches web, so the un-stamp is not needed (law L10).
    """

    verdict: Verdict
    why: str
    claim_id: int | None = None
    cancels_unstamp: bool = False


_LOCKED = Answer(Verdict.NOT_YET, "another transaction has locked a row that the offer of this Pod needs")
_SUPERSEDED = Answer(Verdict.NOTHING, "a newer poll of this Pod has the offer")


def answer(facts: PollFacts) -> Answer:
    """Return the answer to a poll, from the facts in the rows."""
    if not facts.known:
        return Answer(Verdict.LOOK_UP, "Ostler has no row of this Pod")
    if not facts.bound:
        return Answer(Verdict.NOT_YET, "another transaction is writing the row of this Pod")
    if facts.gone:
        return Answer(Verdict.REFUSE, "this Pod is terminal or gone")
    if facts.used:
        return Answer(Verdict.REPLACE, "this Pod received the JIT of a claim that has ended")
    if facts.claim is not None and (final := _of_claim(facts.claim)) is not None:
        return final
    if not facts.offered:
        return _LOCKED if facts.locked else _SUPERSEDED
    claim = facts.claim
    return (
        Answer(Verdict.HOLD, "this Pod has no live claim")
        if claim is None
        else _of_undelivered(claim, arrived=facts.arrived)
    )


def _of_undelivered(claim: PolledClaim, *, arrived: bool) -> Answer:
    if claim.state is not ClaimState.MINTED:
        return Answer(Verdict.HOLD, f"the claim is {claim.state}")
    if claim.stamp is Stamp.REMOVING and arrived:
        return Answer(Verdict.DELIVER, "the Pod reaches web, with or without its stamp", claim.id, cancels_unstamp=True)
    if claim.stamp is Stamp.REMOVING:
        return Answer(Verdict.HOLD, "nothing is delivered while the stamp is being removed")
    return Answer(Verdict.DELIVER, "the claim is minted", claim.id)


def _of_claim(claim: PolledClaim) -> Answer | None:
    """Return the answer that a claim requires for every poll of its Pod, or None if the answer depends on the offer."""
    if claim.purpose is Purpose.RETIRE:
        return Answer(Verdict.REPLACE, "this Pod is being retired")
    if claim.state is ClaimState.EXECUTING:
        return Answer(Verdict.REPLACE, "a runner already used the JIT")
    if claim.state is ClaimState.RELEASING and claim.delivered:
        return Answer(Verdict.REPLACE, "the claim is being released after its delivery")
    if claim.state is ClaimState.DELIVERED:
        return Answer(Verdict.DELIVER_AGAIN, "this Pod polls again although its JIT was delivered", claim.id)
    return None
