"""Diagnoses of Pods, pools and accounts: the check that has the problem, and what follows next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rules.claims.fairness import Budget, Usage
from rules.claims.hook_pods import HookPod
from rules.claims.machines import ClaimState, Purpose
from rules.claims.mint_questions import QUOTA_REACHED
from rules.claims.pod_ends import PodEnd
from rules.claims.pod_events import PodEvent
from rules.pools.starts import Trouble
from rules.waiting.diagnoses import (
    AccountFacts,
    Counted,
    Decision,
    Executed,
    ListedPod,
    LiveClaim,
    Periods,
    PodFacts,
    PoolQueue,
    of_account,
    of_pod,
    of_pool,
)
from rules.waiting.facts import HeldAccount, SupplyFacts
from rules.waiting.steps import Diagnosis, Explanation, Finding, Result, Source, WaitsFor
from tests.rows import pool_spec
from tests.unit.rules.test_waiting import of_spec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PERIODS = Periods(sweep=60, resume=5, reconcile=10)
LISTED = ListedPod(NOW, "Running", "node-1", terminating=False, volumes=False, obstacle=None)
WARM = PodFacts(
    pool="small",
    workload="Pod",
    start_timeout=300,
    volume_reclaim=None,
    created_at=NOW - timedelta(minutes=5),
    first_polled_at=NOW - timedelta(minutes=4, seconds=50),
    polled_at=NOW,
    over_at=None,
    node_gone_at=None,
    gone_at=None,
    listed=LISTED,
    claim=None,
    delivered=False,
    quiet_until=None,
    stuck=False,
    executed=None,
    end=PodEnd(),
)
CLAIM = LiveClaim(7, Purpose.JOB, ClaimState.EXECUTING, 100, NOW + timedelta(seconds=9))


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    (found,) = (each for each in diagnosis.checks if each.check == name)
    return found


def pod(**changes: object) -> Diagnosis:
    return of_pod(replace(WARM, **changes), periods=PERIODS, now=NOW)  # type: ignore[arg-type]


def test_warm_pod_has_no_problem_and_shows_each_source() -> None:
    found = pod()
    assert found.summary == "No problem of this Pod is known."
    assert {each.source for each in found.checks} == set(Source)
    assert finding(found, "kubernetes").evidence == "phase Running, node node-1"
    assert finding(found, "polls").evidence == "the first poll came 10 s after the creation"
    assert finding(found, "next").evidence == "nothing: the Pod waits for a job"


def test_pod_whose_claim_ended_before_its_job_shows_that_the_job_started() -> None:
    found = finding(pod(delivered=True, started=("job 100 started on small-1-ab", NOW)), "runner")
    assert (found.result, found.evidence, found.at) == (Result.PASSED, "job 100 started on small-1-ab", NOW)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (PodEnd(reason="OOMKilled", runner_exit_code=137, over=True), "It was killed for lack of memory"),
        (PodEnd(reason="Evicted", over=True), "It was evicted by the kubelet"),
        (PodEnd(reason="DeletionByTaintManager", deletion_at=NOW, deleted_first=True), "evicted for a taint"),
        (PodEnd(deletion_at=NOW, deleted_first=True), "by a client other than Ostler"),
        (PodEnd(over=True, runner_exit_code=2), "container `runner` exited 2"),
        (
            PodEnd(deletion_at=NOW, deleted_first=True, event=PodEvent("ScaleDown", "cluster-autoscaler", "x")),
            "cluster-autoscaler",
        ),
    ],
)
def test_pod_that_lost_its_job_is_explained_by_its_end(end: PodEnd, words: str) -> None:
    assert words in pod(end=end, over_at=NOW).summary


def test_end_by_ostler_or_after_the_job_is_no_problem() -> None:
    for end in (PodEnd(deletion_at=NOW, ours=True), PodEnd(over=True, runner_exit_code=0, poller_exit_code=0)):
        assert pod(end=end, over_at=NOW).summary == "No problem of this Pod is known."


def test_end_that_the_reader_may_not_see_is_not_shown() -> None:
    found = pod(end=None, over_at=NOW)
    assert {finding(found, each).result for each in ("end", "containers")} == {Result.OPEN}
    assert "your token does not show it" in (finding(found, "end").evidence or "")


@pytest.mark.parametrize(
    ("changes", "words", "at"),
    [
        ({"gone_at": NOW}, "nothing: the Pod is gone", None),
        ({"stuck": True, "node_gone_at": NOW}, "the sweep gone_nodes checks", None),
        ({"delivered": True, "node_gone_at": NOW}, "the sweep finished_jobs asks GitHub", None),
        ({"over_at": NOW}, "the reconciler of the pool ends the claim", None),
        ({"claim": CLAIM}, "the sweep missing_pods checks", None),
        ({"claim": replace(CLAIM, state=ClaimState.MINTED)}, "the sweep resume continues", CLAIM.due_at),
        (
            {"first_polled_at": None, "polled_at": None},
            "the reconciler of the pool replaces the Pod",
            NOW,
        ),
        (
            {"quiet_until": NOW + timedelta(seconds=30)},
            "the sweep unresponsive_pods retires",
            NOW + timedelta(seconds=30),
        ),
    ],
)
def test_pod_names_the_sweep_that_acts_next(changes: dict[str, object], words: str, at: datetime | None) -> None:
    found = finding(pod(**changes), "next")
    assert words in (found.evidence or "")
    assert found.at == at


def test_pod_that_does_not_start_is_explained_by_kubernetes() -> None:
    listed = replace(LISTED, phase="Pending", node=None, obstacle="ImagePullBackOff")
    found = pod(listed=listed, first_polled_at=None, polled_at=None)
    assert found.summary == "Phase Pending, no node yet, ImagePullBackOff."
    assert pod(listed=listed, node_gone_at=NOW).summary == found.summary
    assert pod(node_gone_at=NOW).summary == "The node of the Pod is gone."


def test_claim_whose_step_a_rate_limit_postpones_says_so() -> None:
    found = pod(claim=replace(CLAIM, state=ClaimState.CLAIMED, postponed=QUOTA_REACHED))
    assert found.summary == "Job claim 7 is claimed for job 100; its step waits: GitHub's rate limit is reached."
    assert found.cure == "No action is needed: the jobs continue when GitHub's limit is renewed."


def test_runner_of_a_pod_is_what_github_said_last() -> None:
    job = Executed(100, "small-1-r", NOW - timedelta(minutes=2), None)
    assert finding(pod(executed=job), "runner").evidence == "small-1-r executes job 100"
    seen = replace(CLAIM, runner="small-1-r", seen="busy", seen_at=NOW)
    assert finding(pod(claim=seen, executed=job), "runner").evidence == "small-1-r is busy"
    failing = replace(CLAIM, last_error="GitHub answers 500")
    assert "GitHub answers 500" in pod(claim=failing).summary


POOL = SupplyFacts(1, pool_spec(replicas=3), taken=0, warm=2)
QUEUE = PoolQueue(queued=0, held=0, oldest_queued_at=None, trouble="")
COUNTED = Counted("2 warm", NOW)


def pool(facts: SupplyFacts = POOL, queue: PoolQueue = QUEUE, *, fleet: str | None = None) -> Diagnosis:
    decision = Decision("up", "3 = 3", NOW)
    return of_pool(facts, queue, COUNTED, decision if facts.spec.autoscaled else None, fleet=fleet)


def test_pool_without_a_problem_says_so() -> None:
    assert pool().summary == "Nothing is in the way of this pool."
    assert pool(replace(POOL, warm=0)).summary == "Nothing is in the way of this pool."


def test_pool_is_explained_by_its_first_problem_and_the_cure() -> None:
    waiting = replace(QUEUE, queued=3)
    broken = replace(POOL, warm=0, trouble=Trouble.IMAGE)
    told = replace(waiting, trouble="ImagePullFailed: no such image")
    assert pool(fleet="frozen: x").summary == "Frozen: x."
    assert pool(broken, told).summary == "ImagePullFailed: no such image."
    assert "Correct `image`" in (pool(broken, told).cure or "")
    assert pool(of_spec(POOL, warm=0, paused=True), waiting).summary.startswith("No pod is warm".replace("pod", "Pod"))
    assert pool(of_spec(POOL, deleted_at=NOW), waiting).summary == "The pool drains: it has begun."
    assert pool(of_spec(POOL, deleted_at=NOW, deleted=True)).summary == "The RunnerPool was deleted."


def test_pool_shows_the_last_decision_of_the_autoscaler() -> None:
    scaled = of_spec(POOL, autoscaled=True, max_replicas=3)
    assert finding(pool(scaled), "autoscaler").evidence == "up: 3 = 3"
    assert finding(pool(scaled), "autoscaler").at == NOW
    assert "maxReplicas" in (finding(pool(scaled), "autoscaler").cure or "")
    assert "`ostler pool scale`" in (finding(pool(), "autoscaler").evidence or "")


ACCOUNT = AccountFacts(
    id=7,
    login="acme",
    held_account=None,
    weight=1,
    budget=Budget(count=2, vcpu_millicores=4000, memory_mib=8192),
    usage=Usage(count=1, vcpu_millicores=2000, memory_mib=4096),
    ending=0,
    queued=0,
    held=0,
    share=None,
    oldest=None,
)
FULL = Usage(count=2, vcpu_millicores=4000, memory_mib=8192)


def test_held_jobs_of_an_account_are_a_problem_of_its_queue() -> None:
    found = of_account(replace(ACCOUNT, queued=0, held=3))
    assert found.summary == "0 queued and 3 held jobs."
    assert found.cure == "`ostler jobs --held --account 7` shows the reason of each hold."
    assert finding(found, "queue").result is Result.WAITS
    assert finding(of_account(ACCOUNT), "queue").result is Result.PASSED


def test_account_is_explained_by_its_first_problem() -> None:
    why = Explanation(WaitsFor.POD, "No Pod is warm.", "Wait.", ahead=0)
    waiting = replace(ACCOUNT, queued=3, share=0.25, oldest=(100, NOW, why))
    assert of_account(ACCOUNT).summary == "No job of this account waits."
    assert of_account(replace(ACCOUNT, usage=FULL)).summary == "No job of this account waits."
    assert of_account(waiting).summary == "Job 100 waits longest: No Pod is warm."
    assert of_account(waiting).cure == "Wait."
    assert "25%" in (finding(of_account(waiting), "share").evidence or "")
    full = of_account(replace(waiting, usage=FULL, ending=1))
    assert full.summary.startswith("The budget is used up: 2 of 2 Pods, 4 of 4 vCPU, 8 of 8 GiB; 1 of these")
    held = of_account(replace(waiting, held_account=HeldAccount()))
    assert held.summary.startswith("The account is not allowed, so its queued jobs wait.")
    assert "`ostler account allow acme`" in (held.cure or "")


HOOK = HookPod(name="small-1-workflow", phase="Running", node="node-2", problem=None, created_at=NOW, seen_at=NOW)


def test_pod_shows_its_hook_pods_and_those_that_failed_first() -> None:
    assert finding(pod(), "hook pods").evidence == "the watch has seen none"
    good = pod(hooks=(HOOK,))
    assert finding(good, "hook pods").evidence == "small-1-workflow (Running on node node-2)"
    assert good.summary == "No problem of this Pod is known."
    killed = replace(HOOK, name="small-1-step-1", gone=True, problem="container main ended with exit code 1")
    failed = pod(hooks=(killed, HOOK, HOOK, HOOK))
    words = "small-1-step-1 (gone; container main ended with exit code 1) and 3 more"
    assert finding(failed, "hook pods").evidence == words
    assert failed.summary == f"S{words[1:]}."
    assert "your token" in (finding(pod(hooks=(HOOK,), end=None), "hook pods").evidence or "")


def test_pod_that_is_gone_shows_the_node_that_it_had() -> None:
    gone = pod(gone_at=NOW, listed=None, last_node="node-1")
    assert finding(gone, "node").evidence == "it was on node node-1"
    assert finding(pod(gone_at=NOW, listed=None), "node").evidence == "no node is known"
