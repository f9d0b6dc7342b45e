"""Judgement of `ostler restore` on a Pod: a Pod that might hold a JIT is never freed, and no later claim is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.machines import RUNNERS, ClaimState, Purpose
from rules.restore.restoring import Act, Registered, RestoredPod, RowClaim, judge_pod, stem_of, stem_of_runner

BUSY = Registered(id=1, name="p-0123abcd", online=True, busy=True, installation_id=1, scope="orgs/acme")
WARM = RestoredPod(
    terminal=False,
    owner=None,
    stamp_claim=0,
    poller_exit_code=None,
    runner_ready=False,
    runners=(),
    asked=True,
    used=False,
    claim=None,
)
CLAIMED = RowClaim(50, Purpose.JOB, ClaimState.CLAIMED, delivered=False)

runners = st.builds(replace, st.just(BUSY), online=st.booleans(), busy=st.booleans(), id=st.integers(1, 3))
claims = st.one_of(
    st.none(),
    st.builds(
        RowClaim, st.just(50), st.sampled_from(Purpose), st.sampled_from(ClaimState), delivered=st.booleans()
    ).filter(lambda claim: not (claim.purpose is Purpose.RETIRE and claim.delivered)),
)
pods = st.builds(
    RestoredPod,
    terminal=st.booleans(),
    owner=st.sampled_from([None, 7]),
    stamp_claim=st.sampled_from([0, 49, 50, 51]),
    poller_exit_code=st.sampled_from([None, 0, 1]),
    runner_ready=st.booleans(),
    runners=st.lists(runners, max_size=2).map(tuple),
    asked=st.booleans(),
    used=st.booleans(),
    claim=claims,
).filter(lambda pod: not (pod.used and pod.claim is not None and pod.claim.purpose in RUNNERS))
"""A used Pod is claimed again only for its retirement."""


@given(pods)
def test_what_may_hold_a_jit_is_never_released_and_always_has_a_claim(pod: RestoredPod) -> None:
    signs = pod.poller_exit_code == 0 or pod.runner_ready or any(each.online or each.busy for each in pod.runners)
    verdict = judge_pod(pod)
    if pod.terminal or not signs:
        return
    known = pod.used or (pod.claim is not None and pod.claim.delivered)
    if not known and pod.claim is not None and pod.claim.purpose is Purpose.REGISTER:
        assert verdict.act is (Act.REGISTER if pod.runners else Act.LEAVE)
        return
    assert verdict.act in ({Act.LEAVE} if known else {Act.EXECUTE, Act.REBUILD, Act.KEEP})


@given(pods)
def test_pod_without_an_answer_from_github_is_never_released_without_its_own_claim(pod: RestoredPod) -> None:
    verdict = judge_pod(replace(pod, asked=False, runners=(), claim=None))
    assert verdict.act is not Act.RELEASE


def test_the_busiest_of_several_runners_is_the_pods() -> None:
    idle = replace(BUSY, id=9, name="p-99999999", busy=False)
    verdict = judge_pod(replace(WARM, owner=7, stamp_claim=50, runners=(idle, BUSY)))
    assert (verdict.act, verdict.runner) == (Act.REBUILD, BUSY)


def test_a_claim_that_a_later_one_followed_is_dropped() -> None:
    pod = replace(WARM, owner=7, stamp_claim=51, claim=CLAIMED)
    assert judge_pod(pod).drops == CLAIMED
    assert judge_pod(replace(pod, poller_exit_code=0)).drops == CLAIMED
    assert judge_pod(replace(pod, stamp_claim=50)).drops is None


def test_a_retirement_of_a_busy_pod_is_dropped() -> None:
    retire = RowClaim(50, Purpose.RETIRE, ClaimState.CLAIMED, delivered=False)
    verdict = judge_pod(replace(WARM, claim=retire, runners=(BUSY,)))
    assert (verdict.act, verdict.drops) == (Act.REBUILD, retire)
    assert judge_pod(replace(WARM, claim=retire)).act is Act.LEAVE


def test_a_retirement_of_a_used_pod_goes_on() -> None:
    retire = RowClaim(50, Purpose.RETIRE, ClaimState.CLAIMED, delivered=False)
    verdict = judge_pod(replace(WARM, used=True, poller_exit_code=0, claim=retire))
    assert (verdict.act, verdict.drops) == (Act.LEAVE, None)


@pytest.mark.parametrize(
    ("owner", "account_id", "scope", "installation_id", "dropped"),
    [
        (None, 7, "orgs/acme", 1, False),
        (7, 7, "orgs/acme", 1, False),
        (8, 7, "orgs/acme", 1, True),
        (None, 7, "orgs/other", 1, True),
        (None, 7, "orgs/acme", 2, True),
        (None, None, None, None, False),
    ],
)
def test_a_claim_of_another_account_than_the_pod_works_for_is_dropped(
    owner: int | None, account_id: int | None, scope: str | None, installation_id: int | None, dropped: bool
) -> None:
    claim = replace(CLAIMED, account_id=account_id, scope=scope, installation_id=installation_id)
    verdict = judge_pod(replace(WARM, owner=owner, runners=(BUSY,), claim=claim))
    assert verdict.act is (Act.REBUILD if dropped else Act.EXECUTE)
    assert verdict.drops == (claim if dropped else None)


@pytest.mark.parametrize(
    ("claimed", "listed", "dropped"),
    [
        ("repos/ada/app#5", "repos/ada/app#5", False),
        ("repos/ada/app#5", "repos/ada/former#5", False),
        ("repos/ada/app#5", "repos/ada/app#6", True),
        ("repos/ada/app#5", "repos/ada/app", False),
        ("repos/ada/app", "repos/ada/app#5", False),
        ("repos/ada/app", "repos/ada/another#5", True),
        ("orgs/acme", "repos/acme/app#5", True),
    ],
)
def test_a_repository_is_the_same_by_its_id_and_where_that_is_not_known_by_its_name(
    claimed: str, listed: str, dropped: bool
) -> None:
    claim, runner = replace(CLAIMED, installation_id=1, scope=claimed), replace(BUSY, scope=listed)
    assert judge_pod(replace(WARM, runners=(runner,), claim=claim)).act is (Act.REBUILD if dropped else Act.EXECUTE)


def test_runner_listed_twice_is_read_from_the_entry_with_a_certain_repository() -> None:
    by_name, by_id = replace(BUSY, scope="repos/ada/app"), replace(BUSY, scope="repos/ada/app#5")
    for runners in ((by_name, by_id), (by_id, by_name)):
        assert judge_pod(replace(WARM, runners=runners)).runner == by_id


@pytest.mark.parametrize(
    ("runner", "pod", "is_its"),
    [
        ("small-0a1b2c3d-0123abcd", "small-0a1b2c3d", True),
        ("small-0a1b2c3d-0123abcz", "small-0a1b2c3d", False),
        ("small-0a1b2c3d", "small", True),
        ("other-0123abcd", "small-0a1b2c3d", False),
        ("x", "x", False),
    ],
)
def test_a_runner_is_known_by_the_name_of_its_pod(runner: str, pod: str, is_its: bool) -> None:
    assert (stem_of_runner(runner) == stem_of(pod)) is is_its


def test_a_pod_without_owner_claim_and_runner_is_left_alone() -> None:
    assert judge_pod(WARM).act is Act.LEAVE
    assert judge_pod(replace(WARM, asked=False)).act is Act.LEAVE


@pytest.mark.parametrize("trace", [{"owner": 7}, {"runners": (replace(BUSY, online=False, busy=False),)}])
def test_a_free_pod_with_a_trace_of_a_lost_claim_is_released_when_github_was_asked(trace: dict[str, Any]) -> None:
    pod = replace(WARM, **trace)
    verdict = judge_pod(pod)
    assert verdict.act is Act.RELEASE
    assert verdict.runner == next(iter(pod.runners), None)
    assert judge_pod(replace(pod, asked=False)).act is Act.KEEP


def test_a_claim_that_was_not_delivered_is_released_with_its_runner() -> None:
    idle = replace(BUSY, online=False, busy=False)
    verdict = judge_pod(replace(WARM, owner=7, stamp_claim=50, claim=CLAIMED, runners=(idle,)))
    assert (verdict.act, verdict.runner) == (Act.RELEASE, idle)
    assert "claim 50" in verdict.why


def test_a_claim_that_was_delivered_since_executes_on_the_runner_that_shows_it() -> None:
    verdict = judge_pod(replace(WARM, claim=CLAIMED, runners=(BUSY,)))
    assert (verdict.act, verdict.runner) == (Act.EXECUTE, BUSY)
    assert "claim 50" in verdict.why
    lost = judge_pod(replace(WARM, poller_exit_code=0))
    assert (lost.act, lost.runner) == (Act.KEEP, None)


@pytest.mark.parametrize("claim", [None, CLAIMED])
def test_a_terminal_pod_is_left_to_the_reconciler(claim: RowClaim | None) -> None:
    assert judge_pod(replace(WARM, terminal=True, owner=7, claim=claim)).act is Act.LEAVE


@pytest.mark.parametrize("runner", ["small-1_0123abcd", "small-1.0123abcd", "small-1-0123ABCD"])
def test_a_name_that_ostler_does_not_make_is_of_no_pod(runner: str) -> None:
    assert stem_of_runner(runner) is None
