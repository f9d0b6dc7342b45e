"""Why a job waits: every state and every hold has words, and what helps names the thing to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rules.fairness import Budget, Usage
from rules.holds import HoldReason
from rules.labels import PoolLabels
from rules.machines import ClaimState, JobState, Stamp
from rules.waiting import ClaimFacts, Explanation, JobFacts, PoolFacts, WaitsFor, closest_pool, explain

POOL = PoolFacts(
    id=1,
    name="small",
    vcpu_millicores=2000,
    memory_mib=4096,
    replicas=3,
    draining=False,
    deleted=False,
    taken=1,
    warm=2,
)
JOB = JobFacts(
    id=1,
    state=JobState.QUEUED,
    hold_reason=None,
    hold_detail=None,
    not_before=None,
    labels=("linux",),
    account_id=7,
    account="acme",
    budget=Budget(count=2, vcpu_millicores=4000, memory_mib=8192),
    usage=Usage(count=0, vcpu_millicores=0, memory_mib=0),
    pool=POOL,
    ahead=0,
    claim=None,
    runner=None,
    conclusion=None,
    near=None,
)


def claimed(state: ClaimState, stamp: Stamp = Stamp.ON) -> Explanation:
    claim = ClaimFacts(id=9, state=state, stamp=stamp, pod="small-1", runner="small-1-r")
    return explain(replace(JOB, state=JobState.CLAIMED, claim=claim))


def test_a_release_that_an_upstream_failed_says_so() -> None:
    claim = ClaimFacts(
        id=9, state=ClaimState.RELEASING, stamp=Stamp.ON, pod="small-1", runner=None, last_error="Retryable"
    )
    found = explain(replace(JOB, state=JobState.CLAIMED, claim=claim))
    assert found.summary.endswith("which is being released; then it is queued again. The last try ended so: Retryable.")


@pytest.mark.parametrize("reason", list(HoldReason))
def test_every_hold_has_a_sentence_and_a_cure(reason: HoldReason) -> None:
    found = explain(replace(JOB, hold_reason=reason, hold_detail="pools 1, 2"))
    assert found.summary.endswith(".")
    assert found.cure


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_sentence(state: JobState) -> None:
    assert explain(replace(JOB, state=state)).summary.endswith(".")


def test_a_backoff_says_until_when() -> None:
    held = replace(JOB, hold_reason=HoldReason.BACKOFF, not_before=datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC))
    assert "2026-11-21 03:04:05 UTC" in explain(held).summary


@pytest.mark.parametrize(
    ("usage", "short"),
    [
        (Usage(count=2, vcpu_millicores=0, memory_mib=0), True),
        (Usage(count=1, vcpu_millicores=2001, memory_mib=0), True),
        (Usage(count=1, vcpu_millicores=2000, memory_mib=4097), True),
        (Usage(count=1, vcpu_millicores=2000, memory_mib=4096), False),
    ],
)
def test_a_job_waits_for_budget_exactly_when_its_pod_does_not_fit(usage: Usage, short: bool) -> None:
    assert (explain(replace(JOB, usage=usage)).waits_for is WaitsFor.BUDGET) is short


def test_a_queued_job_waits_for_a_pod_or_for_the_matcher() -> None:
    assert explain(JOB).waits_for is WaitsFor.MATCH
    assert explain(replace(JOB, pool=replace(POOL, warm=0))).waits_for is WaitsFor.POD
    assert explain(replace(JOB, pool=replace(POOL, draining=True))).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, pool=replace(POOL, rerouting=True))).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, pool=None)).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, ahead=1)).summary.startswith("1 job of its account in its pool come")


@pytest.mark.parametrize(
    ("state", "stamp", "waits_for"),
    [
        (ClaimState.CLAIMED, Stamp.NONE, WaitsFor.STAMP),
        (ClaimState.CLAIMED, Stamp.GAVE_UP, WaitsFor.MINT),
        (ClaimState.MINTED, Stamp.ON, WaitsFor.DELIVERY),
        (ClaimState.DELIVERED, Stamp.ON, WaitsFor.START),
        (ClaimState.EXECUTING, Stamp.ON, WaitsFor.END),
        (ClaimState.RELEASING, Stamp.ON, WaitsFor.RELEASE),
    ],
)
def test_a_claimed_job_waits_for_the_next_step_of_its_claim(
    state: ClaimState, stamp: Stamp, waits_for: WaitsFor
) -> None:
    found = claimed(state, stamp)
    assert found.waits_for is waits_for
    assert "claim 9 on Pod small-1" in found.summary


def pool(**changes: object) -> PoolLabels:
    values = {
        "id": 1, "labels": frozenset({"linux", "x64"}), "routing_priority": 0, "allowed_accounts": frozenset(),
        "allowed_repositories": frozenset(),
    }  # fmt: skip
    return PoolLabels(**(values | changes))  # type: ignore[arg-type]


def test_the_closest_pool_is_named_with_what_is_in_the_way() -> None:
    def near(labels: list[str], **changes: object) -> str | None:
        return closest_pool([("small", pool(**changes))], labels=labels, account_id=7, repository="Acme/Shop")

    assert near(["Linux", "GPU"]) == "The closest is small, which lacks gpu."
    assert "allowedAccounts do not name account 7" in (near(["linux"], allowed_accounts=frozenset({8})) or "")
    assert "allowedRepositories do not name Acme/Shop" in (
        near(["linux"], allowed_repositories=frozenset({"a/b"})) or ""
    )
    assert near(["linux"], allowed_repositories=frozenset({"acme/shop"})) == "Pool small serves it now."
    assert closest_pool([], labels=["linux"], account_id=7, repository="a/b") is None
