"""Reasons why a job waits: every state and every hold has a text, and the cure names the next act."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rules.claims.fairness import (
    AccountView,
    Budget,
    JobHead,
    Reservation,
    SkipReason,
    Turn,
    Usage,
    plan_batch,
    turn_of,
)
from rules.claims.machines import ClaimState, JobState, Stamp
from rules.claims.mint_questions import QUOTA_REACHED
from rules.claims.pod_ends import PodEnd
from rules.claims.runner_brakes import ENDED_BEFORE_IT, Brake
from rules.pools.starts import Trouble
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolLabels
from rules.routing.unlabelled import not_given
from rules.waiting.closest import closest_pool
from rules.waiting.facts import ClaimFacts, JobFacts, LostPod, RegisteredRunners, SupplyFacts, TopAccount
from rules.waiting.jobs import explain
from rules.waiting.steps import Explanation, WaitsFor
from tests.rows import pool_spec

POOL = SupplyFacts(1, pool_spec(replicas=3, vcpu_millicores=2000, memory_mib=4096), taken=1, warm=2)
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


def of_spec(pool: SupplyFacts, **changed: Any) -> SupplyFacts:
    """Return a pool with these changes of its specification, or of the facts beside it."""
    facts = {each.name: changed.pop(each.name) for each in fields(SupplyFacts) if each.name in changed}
    return replace(pool, spec=replace(pool.spec, **changed), **facts)


def claimed(state: ClaimState, stamp: Stamp = Stamp.ON) -> Explanation:
    claim = ClaimFacts(id=9, state=state, stamp=stamp, pod="small-1", runner="small-1-r")
    return explain(replace(JOB, state=JobState.CLAIMED, claim=claim))


def test_a_release_that_an_upstream_failed_says_so() -> None:
    claim = ClaimFacts(
        id=9, state=ClaimState.RELEASING, stamp=Stamp.ON, pod="small-1", runner=None, last_error="Retryable"
    )
    found = explain(replace(JOB, state=JobState.CLAIMED, claim=claim))
    assert found.summary.endswith(
        "The claim is being released, and the job is then queued again. The last try failed: Retryable."
    )


def test_a_step_that_a_rate_limit_postponed_has_not_failed() -> None:
    due = datetime(2026, 1, 1, 12, tzinfo=UTC)
    claim = ClaimFacts(9, ClaimState.CLAIMED, Stamp.ON, "small-1", "r", postponed=QUOTA_REACHED, due_at=due)
    found = explain(replace(JOB, state=JobState.CLAIMED, claim=claim))
    assert found.summary.endswith("The step waits: GitHub's rate limit is reached.")
    assert found.cure == "No action is needed: the jobs continue when GitHub's limit is renewed."
    assert (found.waits_for, found.next_at) == (WaitsFor.MINT, due)
    failed = explain(replace(JOB, state=JobState.CLAIMED, claim=replace(claim, postponed=None, last_error="reset")))
    assert failed.summary.endswith("The last try failed: reset.")


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
    assert explain(replace(JOB, pool=of_spec(POOL, deleted_at=datetime.now(UTC)))).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, pool=replace(POOL, rerouting=True))).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, pool=None)).waits_for is WaitsFor.POOL
    assert explain(replace(JOB, ahead=1)).summary.startswith("1 job of the same account in the same pool comes")


def no_pod(**changes: Any) -> Explanation:
    return explain(replace(JOB, pool=of_spec(POOL, **{"warm": 0, **changes})))


@pytest.mark.parametrize(
    ("changes", "why", "cure"),
    [
        ({"replicas": 0, "taken": 0}, "the field replicas of the pool is 0", "`ostler pool scale small 1`"),
        ({"replicas": 3, "taken": 3}, "3 of 3 Pods have a job", "`ostler pool scale small 4`"),
        ({"replicas": 3, "taken": 1}, "the others start", "Wait until a Pod starts"),
        (
            {"replicas": 3, "taken": 1, "without_surge": True},
            "because no node has room for one more",
            "Wait until a Pod starts",
        ),
        ({"paused": True}, "paused", "`ostler pool resume small`"),
        ({"problem": "image: it is empty"}, "image: it is empty", "Correct the spec"),
        (
            {"autoscaled": True, "max_replicas": 9, "replicas": 3, "taken": 3},
            "up to 9",
            "the autoscaler adds Pods within seconds",
        ),
        ({"autoscaled": True, "max_replicas": 3, "replicas": 3, "taken": 3}, "3 of 3", "spec.autoscaling.maxReplicas"),
        (
            {"autoscaled": True, "max_replicas": 0, "replicas": 0, "taken": 0},
            "maxReplicas of the pool is 0",
            "to 1 or more",
        ),
        (
            {"autoscaled": True, "max_replicas": 9, "taken": 3, "cluster_gate": "9 of 10 calls failed"},
            "gate of Kubernetes is tripped",
            "9 of 10 calls failed",
        ),
        (
            {
                "trouble": Trouble.IMAGE,
                "trouble_detail": "ImagePullBackOff",
                "create_after": datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC),
            },
            "cannot pull its image (ImagePullBackOff); the next Pod is not created before 2026-11-21 03:04:05 UTC",
            "credentials",
        ),
        ({"trouble": Trouble.QUOTA, "trouble_detail": "cpu"}, "its namespace is used up (cpu)", "Raise"),
        ({"trouble": Trouble.UNSCHEDULABLE}, "no node accepts its Pods", "Add nodes"),
    ],
)
def test_missing_pod_is_explained_with_what_helps(changes: dict[str, Any], why: str, cure: str) -> None:
    found = no_pod(**changes)
    assert found.waits_for is WaitsFor.POD
    assert why in found.summary
    assert cure in (found.cure or "")


@pytest.mark.parametrize("trouble", list(Trouble))
def test_every_trouble_of_starts_has_words_and_a_cure(trouble: Trouble) -> None:
    found = no_pod(trouble=trouble)
    assert found.summary.endswith(".")
    assert found.cure


@pytest.mark.parametrize("taken", [0, 3, 9])
def test_replicas_of_an_autoscaled_pool_are_never_advised(taken: int) -> None:
    for most in (0, 3, 9):
        cure = no_pod(autoscaled=True, max_replicas=most, taken=taken).cure or ""
        assert "pool scale" not in cure
        assert "replicas of" not in cure.replace("maxReplicas of", "")


def test_waiting_is_not_advised_where_the_whole_budget_is_too_small() -> None:
    none = explain(replace(JOB, budget=Budget(count=0, vcpu_millicores=4000, memory_mib=8192)))
    assert "`ostler account set 7 --count 1`" in (none.cure or "")
    small = explain(replace(JOB, budget=Budget(count=2, vcpu_millicores=1000, memory_mib=2048)))
    assert "`ostler account set 7 --vcpu 2 --memory 4`" in (small.cure or "")
    for found in (none, small):
        assert (found.waits_for, "Wait for" in (found.cure or "")) == (WaitsFor.BUDGET, False)
    full = explain(replace(JOB, usage=Usage(count=2, vcpu_millicores=0, memory_mib=0)))
    assert "Wait until a Pod of the account ends" in (full.cure or "")


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
        "id": 1,
        "labels": frozenset({"linux", "x64"}),
        "routing_priority": 0,
        "allowed_accounts": frozenset(),
        "allowed_repositories": frozenset(),
    }
    return PoolLabels(**(values | changes))  # type: ignore[arg-type]


def test_the_closest_pool_is_named_with_what_is_in_the_way() -> None:
    def near(labels: list[str], **changes: object) -> str | None:
        return closest_pool([("small", pool(**changes))], labels=labels, account_id=7, repository="Acme/Shop")

    assert near(["Linux", "GPU"]) == "The closest pool is small, which lacks the labels gpu."
    assert "allowedAccounts do not name account 7" in (near(["linux"], allowed_accounts=frozenset({8})) or "")
    assert "allowedRepositories do not name Acme/Shop" in (
        near(["linux"], allowed_repositories=frozenset({"a/b"})) or ""
    )
    assert near(["linux"], allowed_repositories=frozenset({"acme/shop"})) == "Pool small serves the job now."
    assert closest_pool([], labels=["linux"], account_id=7, repository="a/b") is None


def braked(account_id: int | None, *, code: int | None) -> Explanation:
    at = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)
    brake = Brake(account_id, at, at, at, jobs=3, pods=4, exit_code=code, why="the Pod has ended")
    return explain(replace(JOB, pool=replace(POOL, brake=brake)))


def test_a_job_of_a_braked_pool_is_told_the_exit_code_and_when_the_next_one_is_tried() -> None:
    found = braked(None, code=134)
    assert found.waits_for is WaitsFor.POOL
    assert "The runners of pool small do not start: 4 runners in a row ended without a job" in found.summary
    assert "exit code 134, the Pod has ended" in found.summary
    assert "2026-11-21 03:04:05 UTC" in found.summary
    assert "log of container `runner`" in (found.cure or "")


def test_a_job_whose_runner_is_too_old_is_told_to_take_a_newer_image() -> None:
    found = braked(None, code=7)
    assert "too old (exit code 7)" in found.summary
    assert "newer runner" in (found.cure or "")


def test_only_the_jobs_of_a_braked_account_wait_for_its_brake() -> None:
    assert braked(7, code=0).waits_for is WaitsFor.POOL
    assert braked(8, code=0).waits_for is WaitsFor.MATCH


def test_a_job_that_was_set_aside_for_its_runners_names_them() -> None:
    detail = f"3 runners of pool small {ENDED_BEFORE_IT}; the last runner: container `runner` exited 7"
    found = explain(replace(JOB, hold_reason=HoldReason.SET_ASIDE, hold_detail=detail))
    assert "3 runners of pool small ended before it began" in found.summary
    assert "runnerGroup" not in (found.cure or "")
    assert "log of container `runner`" in (found.cure or "")


LOST = LostPod("small-1", PodEnd(runner_exit_code=137, reason="OOMKilled"))


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.RUNNING])
def test_a_job_that_lost_its_pod_is_told_how_that_ended(state: JobState) -> None:
    failed = replace(JOB, state=state, conclusion="failure", lost=LOST)
    before = explain(replace(failed, lost=None)).summary
    assert explain(failed).summary.startswith(f"{before} Pod small-1 of the job was killed for lack of memory")
    unseen = replace(failed, lost=LostPod("small-1", PodEnd()))
    assert explain(unseen).summary == before


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, state=JobState.COMPLETED, conclusion="success", lost=LOST),
        replace(JOB, state=JobState.COMPLETED, conclusion="skipped", lost=LOST),
        replace(JOB, state=JobState.QUEUED, lost=LOST),
    ],
)
def test_the_end_of_a_pod_is_not_told_where_it_explains_nothing(job: JobFacts) -> None:
    assert explain(job) == explain(replace(job, lost=None))


def test_what_is_known_of_a_job_is_named() -> None:
    assert explain(replace(JOB, state=JobState.COMPLETED, conclusion="failure")).summary.endswith("at GitHub: failure.")
    assert explain(replace(JOB, state=JobState.COMPLETED)).summary.endswith("at GitHub: no conclusion.")
    assert explain(replace(JOB, state=JobState.RUNNING, runner="small-1-r")).summary == "The job runs on small-1-r."
    no_pool = replace(JOB, hold_reason=HoldReason.NO_POOL)
    assert "its labels are linux, x64." in explain(replace(no_pool, labels=("linux", "x64"))).summary
    assert "There is no pool at all." in explain(replace(no_pool, labels=("linux",))).summary
    assert "The closest is small." in explain(replace(no_pool, near="The closest is small.")).summary


def test_a_waiting_job_is_sent_to_its_environment() -> None:
    found = explain(replace(JOB, state=JobState.WAITING))
    assert found.waits_for is WaitsFor.ENVIRONMENT
    assert "environment" in found.summary
    assert "environment" in (found.cure or "")


def test_nothing_is_said_of_rows_that_may_be_old() -> None:
    for state in (JobState.QUEUED, JobState.CLAIMED):
        found = explain(replace(JOB, state=state, database_older=True, hold_reason=HoldReason.NO_POOL))
        assert found.waits_for is WaitsFor.RESTORE
        assert "earlier state" in found.summary
        assert "ostler restore" in (found.cure or "")
    assert explain(replace(JOB, state=JobState.RUNNING, database_older=True)).waits_for is WaitsFor.END
    assert explain(replace(JOB, state=JobState.COMPLETED, database_older=True)).waits_for is WaitsFor.NOTHING


def test_a_release_that_nothing_failed_says_no_more() -> None:
    found = claimed(ClaimState.RELEASING)
    assert found.summary.endswith("and the job is then queued again.")


def test_a_job_without_a_pool_is_told_apart_from_one_whose_pool_goes() -> None:
    assert explain(replace(JOB, pool=None)).summary.startswith("The job has no pool;")
    drains = of_spec(POOL, deleted_at=datetime.now(UTC))
    for going in (drains, replace(drains, deleted=True)):
        assert explain(replace(JOB, pool=going)).summary.startswith("Pool small of the job takes no new jobs;")


def test_a_brake_of_an_account_is_told_as_one() -> None:
    assert "The runners of account acme in pool small do not start" in braked(7, code=0).summary


@pytest.mark.parametrize(
    ("ahead", "told"), [(0, "The job is the next"), (None, "The job is the next"), (2, "2 jobs of the same")]
)
def test_the_place_of_a_job_is_told(ahead: int | None, told: str) -> None:
    assert explain(replace(JOB, ahead=ahead)).summary.startswith(told)


@pytest.mark.parametrize(
    ("budget", "cure"),
    [
        (Budget(count=0, vcpu_millicores=2000, memory_mib=4096), "--count 1`."),
        (Budget(count=1, vcpu_millicores=1999, memory_mib=4096), "--vcpu 2`."),
        (Budget(count=1, vcpu_millicores=2000, memory_mib=4095), "--memory 4`."),
        (Budget(count=0, vcpu_millicores=0, memory_mib=0), "--count 1 --vcpu 2 --memory 4`."),
    ],
)
def test_only_what_is_too_small_of_a_budget_is_to_be_raised(budget: Budget, cure: str) -> None:
    assert (explain(replace(JOB, budget=budget)).cure or "").endswith(f"`ostler account set 7 {cure}")


def test_a_budget_that_admits_just_one_job_is_waited_for() -> None:
    just = replace(JOB, budget=Budget(1, 2000, 4096), usage=Usage(1, 2000, 4096))
    assert "Wait until a Pod of the account ends" in (explain(just).cure or "")
    assert "uses 1 of 1 Pods, 2 of 2 vCPU and 4 of 4 GiB, and this job needs 2 vCPU and 4 GiB" in explain(just).summary


def test_account_with_the_most_pods_of_a_full_pool_is_named() -> None:
    full = no_pod(replicas=7, taken=7, top=TopAccount("acme", 7, 18)).summary
    assert "7 of 7 Pods have a job: 7 of acme, which has 18 more queued" in full
    assert no_pod(replicas=7, taken=7, top=TopAccount("acme", 4, 0)).summary.endswith("a job: 4 of acme.")


def test_a_pool_of_one_pod_is_no_pool_of_none() -> None:
    assert "1 of 1 Pods have a job" in no_pod(replicas=1, taken=1).summary
    assert "1 of 1 Pods have a job" in no_pod(autoscaled=True, max_replicas=1, replicas=1, taken=1).summary


def test_a_trouble_without_a_detail_or_a_time_is_told_without() -> None:
    assert no_pod(trouble=Trouble.UNSCHEDULABLE).summary.endswith("is warm: no node accepts its Pods.")


def test_a_job_without_labels_is_told_that_it_names_only_a_group() -> None:
    found = explain(replace(JOB, hold_reason=HoldReason.NO_POOL, labels=()))
    assert found.summary.startswith("No pool serves the job: the workflow names only a runner group, and no pool ")
    assert "Set serveUnlabelled to true in one RunnerPool" in (found.cure or "")
    assert "add the labels of a pool to `runs-on`" in (found.cure or "")
    assert closest_pool([("small", pool())], labels=(), account_id=7, repository="a/b") is None


def test_a_job_that_no_runner_gets_is_told_that_its_group_is_the_likely_cause() -> None:
    detail = not_given(pool="large", group="builders")
    found = explain(replace(JOB, hold_reason=HoldReason.RUNNER_GROUP, hold_detail=detail, labels=()))
    assert "the workflow probably names another group" in found.summary
    assert "with runnerGroup of the RunnerPool" in (found.cure or "")
    assert "the default runner group" in not_given(pool="large", group="1")


def test_the_closest_pool_lacks_fewest_labels_and_the_first_name_wins() -> None:
    def nearest(*pools: tuple[str, PoolLabels]) -> str:
        return closest_pool(pools, labels=["linux", "gpu", "big"], account_id=7, repository="a/b") or ""

    gpu = pool(labels=frozenset({"linux", "gpu"}))
    assert nearest(("a", pool()), ("z", gpu)) == "The closest pool is z, which lacks the labels big."
    assert nearest(("z", gpu), ("y", gpu)) == "The closest pool is y, which lacks the labels big."


def test_a_job_of_a_persistent_pool_waits_for_github_and_gets_a_cure() -> None:
    runners = RegisteredRunners(scope="orgs/acme", online=2, busy=1, failure="no such group")
    persistent = replace(POOL, runners=runners)
    found = explain(replace(JOB, pool=persistent))
    assert found.waits_for is WaitsFor.GITHUB
    assert "2 of 3 runners are online, and 1 of them run a job. The last registration failed: no such group." in (
        found.summary
    )
    assert "`ostler pool scale small 4`" in (found.cure or "")
    full = replace(JOB, pool=of_spec(persistent, autoscaled=True, max_replicas=9), budget=Budget(0, 2000, 4096))
    found = explain(full)
    assert "The autoscaler adds no runner for account acme, whose budget has no room: it uses" in found.summary
    assert "Set spec.autoscaling.maxReplicas of RunnerPool small to 10 or more." in (found.cure or "")


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SIZES = st.integers(0, 4)


def head(job_id: int, account_id: int, *, age: int, priority: int = 0, pool_id: int = 1) -> JobHead:
    """Return a job whose Pod has one vCPU and one GiB."""
    queued_at = NOON - timedelta(seconds=age)
    return JobHead(job_id, account_id, priority, queued_at, vcpu_millicores=1000, memory_mib=1024, pool_id=pool_id)


@given(
    budgets=st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=3),
    jobs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 1)), min_size=1, max_size=8),
    reserved=st.dictionaries(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=3),
    slots=st.integers(1, 9),
)
# The second job is older than the reservation, but waits behind the first, which is newer and more urgent.
@example(budgets=[(2, 2, 2)], jobs=[(0, 1, 1), (0, 9, 0)], reserved={1: (2, 5)}, slots=3)
def test_job_that_the_plan_leaves_beside_a_free_pod_is_told_the_rule(
    budgets: list[tuple[int, int, int]],
    jobs: list[tuple[int, int, int]],
    reserved: dict[int, tuple[int, int]],
    slots: int,
) -> None:
    accounts = {
        number: AccountView(number, 1, Budget(count, vcpu * 1000, memory * 1024), Usage(0, 0, 0))
        for number, (count, vcpu, memory) in enumerate(budgets, start=1)
    }
    heads = [
        head(number, account % len(accounts) + 1, age=age, priority=priority)
        for number, (account, age, priority) in enumerate(jobs, start=1)
    ]
    totals = Budget(12, 12000, 12 * 1024)
    reservations = {
        account: Reservation(size * 1000, size * 1024, 1, 2, NOON - timedelta(seconds=age), 99)
        for account, (size, age) in reserved.items()
    }
    plan = plan_batch(heads, accounts, totals=totals, slots=slots, reservations=reservations)
    if len(plan.picks) == slots:
        return
    for pick in plan.picks:
        seen = accounts[pick.account_id]
        used = seen.usage.count + 1
        accounts[pick.account_id] = replace(seen, usage=Usage(used, used * 1000, used * 1024))
    left = [each for each in heads if each not in plan.picks]
    for each in left:
        view = accounts[each.account_id]
        turn = turn_of(
            each.job_id,
            each.account_id,
            left,
            accounts,
            totals=totals,
            slots=slots - len(plan.picks),
            reservations=reservations,
            last={},
        )
        pool = of_spec(POOL, vcpu_millicores=1000, memory_mib=1024, warm=slots - len(plan.picks))
        facts = replace(JOB, budget=view.budget, usage=view.usage, pool=pool, turn=turn, reserved_for="99 of a/b")
        found = explain(facts)
        assert found.waits_for is WaitsFor.BUDGET
        kept = plan.skipped[each.account_id] is SkipReason.RESERVED
        assert ("is reserved for its older job 99 of a/b" in found.summary) is kept
        assert ("has no room in its budget" in found.summary) is not kept


def test_only_a_job_that_the_plan_has_is_told_of_the_next_run() -> None:
    def told(slots: int) -> Explanation:
        heads = [head(1, 7, age=60), head(2, 7, age=5)]
        views = {7: AccountView(7, 1, JOB.budget, JOB.usage)}
        turn = turn_of(2, 7, heads, views, totals=JOB.budget, slots=slots, reservations={}, last={})
        return explain(replace(JOB, turn=turn, ahead=1))

    assert told(2).summary.endswith("no rule holds the job back: the next run of the matcher gives it a Pod.")
    assert "for jobs that come first" in told(1).summary
    assert turn_of(2, 8, [head(1, 7, age=1)], {}, totals=JOB.budget, slots=1, reservations={}, last={}) is None


def test_reservation_is_told_before_a_missing_pod_and_with_its_size() -> None:
    kept = Reservation(2000, 4096, 1, 2, NOON, 99)
    view = AccountView(7, 1, JOB.budget, Usage(1, 1000, 0))
    first = replace(head(1, 7, age=-60), vcpu_millicores=2000, memory_mib=4096)
    turn = Turn(first, view, kept, picked=False)
    job = replace(JOB, usage=view.usage, turn=turn, reserved_for="99 of a/b in pool big", pool=replace(POOL, warm=0))
    found = explain(job)
    assert found.waits_for is WaitsFor.BUDGET
    assert (
        "The rest of the budget of account acme is reserved for its older job 99 of a/b in pool big, which waits since "
        "2026-11-21 12:00:00 UTC: 2 vCPU and 4 GiB for 1 job. It uses 1 of 2 Pods, 1 of 4 vCPU and 0 of 8 GiB"
    ) in found.summary
    assert "`ostler account set 7`" in (found.cure or "")


def test_pods_of_a_silent_web_process_are_told() -> None:
    found = no_pod(silent=2)
    assert "2 of its Pods poll a web process that has sent no heartbeat" in found.summary
    assert "web processes run" in (found.cure or "")
