"""The status of a pool: its counts, and the condition for each problem."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rules.claims.runner_brakes import TOO_OLD, Brake
from rules.pools.blocked_mints import BlockedMints
from rules.pools.draining import DrainReport
from rules.pools.failing_calls import REPEATED, FailingCall
from rules.pools.pod_security import PodSecurity, refusal
from rules.pools.pod_states import PodState
from rules.pools.pool_plan import PoolPlan
from rules.pools.pool_status import Condition, StatusFacts, WaitingPods, conditions_of, dated, status_of, written
from rules.pools.starts import Starts, Trouble
from rules.pools.volumes import VolumePlan
from tests.rows import pool_spec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = StatusFacts(pool=pool_spec(generation=3), selector="a=b")
BRAKE = Brake(
    account_id=None, since=NOW, last_at=NOW, probe_at=NOW, jobs=1, pods=3, exit_code=1, why="the runner failed"
)
HELD = BlockedMints(
    kind="account", key="7", words="no", failures=1, not_before=NOW, jobs=1, oldest=NOW, account="ada", others=0, more=0
)


def plan(warm: int = 2, *, wanted: int = 2, starts: Starts | None = None, **more: Any) -> PoolPlan:
    counts = {PodState.WARM: warm, **more.pop("counts", {})}
    return PoolPlan(counts=counts, wanted=wanted, starts=starts or Starts(), **more)


def of_spec(**changed: Any) -> StatusFacts:
    return replace(POOL, pool=replace(POOL.pool, **changed))


def of_type(kind: str, pool: StatusFacts, made: PoolPlan) -> Condition:
    return next(each for each in conditions_of(pool, made, now=NOW) if each.type == kind)


def ready(pool: StatusFacts, made: PoolPlan) -> tuple[str, str]:
    found = of_type("Ready", pool, made)
    assert found.message
    return found.status, found.reason


def degraded(pool: StatusFacts, made: PoolPlan) -> tuple[str, str, str]:
    found = of_type("Degraded", pool, made)
    return found.status, found.reason, found.message


def test_the_status_has_every_count() -> None:
    counts = {PodState.BUSY: 3, PodState.SPENT: 4}
    status = status_of(POOL, plan(counts=counts, stale=5, lost=6), before=None, now=NOW)
    conditions = status.pop("conditions")
    assert status == {
        "observedGeneration": 3,
        "replicas": 5,
        "selector": "a=b",
        "starting": 0,
        "warm": 2,
        "reserved": 0,
        "busy": 3,
        "ending": 0,
        "retiring": 0,
        "unresponsive": 0,
        "spent": 4,
        "stale": 5,
        "lost": 6,
    }
    assert [each["type"] for each in conditions] == ["Ready", "Draining", "Degraded"]
    assert {each["observedGeneration"] for each in conditions} == {3}
    assert {each["lastTransitionTime"] for each in conditions} == {"2026-01-01T12:00:00Z"}


def test_the_times_of_scaling_are_written_when_there_are_any() -> None:
    up, down = NOW - timedelta(hours=1), NOW - timedelta(hours=2)
    status = status_of(replace(POOL, scaled_up_at=up, scaled_down_at=down), plan(), before=None, now=NOW)
    assert status["lastScaleUpTime"] == "2026-01-01T11:00:00Z"
    assert status["lastScaleDownTime"] == "2026-01-01T10:00:00Z"
    assert "lastScaleDownTime" not in status_of(replace(POOL, scaled_up_at=up), plan(), before=None, now=NOW)


def test_a_time_is_written_in_utc() -> None:
    assert written(NOW.astimezone(timezone(timedelta(hours=5)))) == "2026-01-01T12:00:00Z"


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = status_of(POOL, plan(), before=None, now=NOW)
    later = NOW + timedelta(hours=1)
    second = status_of(of_spec(generation=4), plan(0), before=first, now=later)
    times = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert times == {
        "Ready": "2026-01-01T13:00:00Z",
        "Draining": "2026-01-01T12:00:00Z",
        "Degraded": "2026-01-01T12:00:00Z",
    }
    assert {each["observedGeneration"] for each in second["conditions"]} == {4}


def test_a_dated_condition_has_all_that_it_says() -> None:
    (found,) = dated([Condition("Ready", "True", "Because", "of this")], before={}, generation=9, now=NOW)
    assert found == {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "message": "of this",
        "observedGeneration": 9,
        "lastTransitionTime": "2026-01-01T12:00:00Z",
    }


@pytest.mark.parametrize(
    ("warm", "wanted", "percent", "expected"),
    [
        (2, 2, 10, ("True", "PodsAvailable")),
        (1, 2, 10, ("True", "PodsAvailable")),
        (1, 3, 10, ("False", "PodsStarting")),
        (0, 1, 10, ("False", "PodsStarting")),
        (0, 1, 100, ("False", "PodsStarting")),
        (0, 0, 10, ("True", "PodsAvailable")),
        (3, 6, 50, ("True", "PodsAvailable")),
        (2, 6, 50, ("False", "PodsStarting")),
        (18, 20, 10, ("True", "PodsAvailable")),
        (17, 20, 10, ("False", "PodsStarting")),
    ],
)
def test_a_pool_is_ready_with_enough_pods(warm: int, wanted: int, percent: int, expected: tuple[str, str]) -> None:
    pool = of_spec(replicas=wanted, max_unavailable_percent=percent)
    assert ready(pool, plan(warm, wanted=wanted)) == expected


def test_pods_that_wait_for_another_program_have_conditions_of_their_own() -> None:
    pods = WaitingPods(3, "a.example/b, c", NOW)
    gated, held = replace(POOL, gated=pods), replace(POOL, held=pods)
    told = "(3 Pods, the oldest since 2026-01-01T12:00:00Z: a.example/b, c)"
    assert ready(gated, plan(0)) == ("False", "PodsGated")
    assert ready(gated, plan(2)) == ("True", "PodsAvailable")
    assert degraded(gated, plan(0))[:2] == ("False", "PodsGated")
    assert told in degraded(gated, plan(0))[2]
    assert degraded(replace(gated, brake=BRAKE), plan(0))[1] == "RunnersDoNotStart"
    assert degraded(held, plan())[:2] == ("True", "FinalizersRemain")
    assert told in degraded(held, plan())[2]


def test_failing_calls_are_named_beside_every_other_problem() -> None:
    create, delete = (FailingCall(call, REPEATED, NOW, NOW, "Internal error") for call in ("POST pods", "DELETE pods"))
    failing = replace(POOL, failing_calls=(create, delete))
    told = f"{create.describe()}; {delete.describe()}"
    assert degraded(failing, plan()) == ("True", "FailedCreate", told)
    assert degraded(replace(POOL, failing_calls=(delete,)), plan())[1] == "FailedDelete"
    braked = degraded(replace(failing, brake=BRAKE), plan())
    assert (braked[1], braked[2].endswith(f"; {told}")) == ("RunnersDoNotStart", True)
    assert ready(failing, plan(0)) == ("False", "PodsMissing")
    assert ready(replace(POOL, failing_calls=(delete,)), plan(0)) == ("False", "PodsStarting")
    once = replace(create, failures=1)
    assert degraded(replace(POOL, failing_calls=(once,)), plan())[0] == "False"


def test_a_pool_that_wants_no_pods_is_not_ready_when_its_spec_is_wrong() -> None:
    assert ready(of_spec(problem="no image"), plan(0, wanted=0)) == ("False", "PodsMissing")
    assert ready(of_spec(problem="no image"), plan(1, wanted=1)) == ("True", "PodsAvailable")


def test_pool_that_the_cluster_does_not_allow_is_not_ready_while_a_job_runs() -> None:
    problem = refusal(PodSecurity.PRIVILEGED, allowed=PodSecurity.BASELINE, namespace="a", elevated_namespace="a")
    assert ready(of_spec(problem=problem), plan(1, wanted=0)) == ("False", "PodSecurityNotAllowed")


def test_pods_are_missing_when_something_keeps_them_from_starting() -> None:
    assert ready(POOL, plan(0, hopeless="ErrImagePull")) == ("False", "PodsMissing")
    assert ready(POOL, plan(0, starts=Starts(trouble=Trouble.UNRESPONSIVE))) == ("False", "PodsMissing")


def test_a_pool_that_is_deleted_or_paused_says_so() -> None:
    assert ready(of_spec(deleted_at=NOW), plan()) == ("False", "Deleted")
    assert ready(of_spec(paused=True), plan()) == ("True", "Paused")
    assert ready(of_spec(paused=True), plan(0)) == ("False", "Paused")


def test_a_used_up_quota_is_told_while_pods_are_missing() -> None:
    short = Starts(trouble=Trouble.QUOTA, detail="10 of 10 cores")
    assert ready(POOL, plan(0, starts=short)) == ("False", "QuotaExceeded")
    assert of_type("Ready", POOL, plan(0, starts=short)).message == "10 of 10 cores"
    assert ready(POOL, plan(1, starts=short)) == ("True", "QuotaExceeded")
    assert ready(POOL, plan(2, starts=short)) == ("True", "PodsAvailable")


def test_a_drain_is_told_in_its_own_words() -> None:
    told = replace(POOL, drain=DrainReport(overdue=False, reason="Waiting", message="for one Pod"))
    assert of_type("Draining", told, plan()) == Condition("Draining", "True", "Waiting", "for one Pod")
    idle = of_type("Draining", POOL, plan())
    assert (idle.status, idle.reason) == ("False", "NotDeleted")


def test_an_outdated_runner_has_a_condition_of_its_own() -> None:
    found = conditions_of(replace(POOL, version="2.1 expires"), plan(), now=NOW)
    assert found[3:] == (Condition("RunnerOutdated", "True", "VersionExpires", "2.1 expires"),)


def test_a_pool_without_problems_is_not_degraded() -> None:
    assert degraded(POOL, plan())[0] == "False"
    waiting = Starts(trouble=Trouble.QUOTA, failures=9, detail="10 of 10 cores")
    assert degraded(POOL, plan(starts=waiting))[0] == "False"


def test_the_problem_of_the_spec_is_told_first_and_then_that_of_the_image() -> None:
    everything = plan(hopeless="ErrImagePull", starts=Starts(trouble=Trouble.REFUSED, detail="no"), lost=1)
    assert degraded(of_spec(problem="no image"), everything) == ("True", "InvalidSpec", "no image")
    status, reason, message = degraded(POOL, everything)
    assert (status, reason) == ("True", "ErrImagePull")
    assert "ErrImagePull" in message


@pytest.mark.parametrize(
    ("starts", "reason"),
    [
        (Starts(trouble=Trouble.REFUSED, detail="why"), "PodRefused"),
        (Starts(trouble=Trouble.IMAGE, detail="why"), "why"),
        (Starts(trouble=Trouble.IMAGE, detail="UnusableImage: why: cure", failures=1), "UnusableImage"),
        (Starts(trouble=Trouble.UNRESPONSIVE, detail="why", failures=2), "PodsDoNotStart"),
    ],
)
def test_pods_that_do_not_start_degrade_their_pool_before_pods_that_run(starts: Starts, reason: str) -> None:
    found = degraded(replace(POOL, brake=BRAKE), plan(starts=starts, lost=1))
    assert found[:2] == ("True", reason)
    assert "why" in found[2]


def test_one_failed_start_degrades_nothing() -> None:
    assert degraded(POOL, plan(starts=Starts(trouble=Trouble.UNRESPONSIVE, detail="why", failures=1)))[0] == "False"


def test_a_brake_is_told_with_its_account_and_its_cure() -> None:
    everything = replace(of_spec(replicas_writer="argo"), blocked_mints=HELD)
    status, reason, message = degraded(replace(everything, brake=BRAKE), plan(lost=1))
    assert (status, reason) == ("True", "RunnersDoNotStart")
    assert message == f"Runners do not start: {BRAKE.describe()}"
    of_account = replace(BRAKE, account_id=7, exit_code=TOO_OLD)
    told = degraded(replace(POOL, brake=of_account), plan())[2]
    assert told.startswith(f"Runners do not start for jobs of account 7: {of_account.describe()}; ")
    assert told.endswith("newer runner")


def test_held_mints_are_told_with_the_pods_that_work() -> None:
    status, reason, message = degraded(replace(POOL, blocked_mints=HELD), plan(counts={PodState.BUSY: 4}, lost=1))
    assert (status, reason) == ("True", "MintsRefused")
    assert message == HELD.describe(busy=4, now=NOW)
    assert degraded(replace(POOL, blocked_mints=HELD), plan())[2] == HELD.describe(busy=0, now=NOW)


def test_failed_registrations_are_told_before_lost_nodes() -> None:
    found = degraded(replace(POOL, registration="GitHub refuses"), plan(lost=1))
    assert found == ("True", "RunnersNotRegistered", "Runners are not registered: GitHub refuses")


def test_volumes_without_storage_degrade_a_pool_and_name_the_cure() -> None:
    of = replace(POOL, volumes=VolumePlan(in_use=3, unbound=2))
    status, reason, message = degraded(of, plan(lost=1))
    assert (status, reason) == ("True", "VolumesNotBound")
    assert message.startswith("Volumes without storage for 300 s or longer: 2; `kubectl describe pvc`")
    assert degraded(replace(POOL, volumes=VolumePlan(in_use=3)), plan())[0] == "False"


def test_one_failed_start_degrades_a_pool_with_volumes_alone() -> None:
    once = plan(starts=Starts(failures=1, trouble=Trouble.UNSCHEDULABLE, detail="no node: a full zone"))
    assert degraded(POOL, once)[0] == "False"
    found = degraded(replace(POOL, volumes=VolumePlan()), once)
    assert found == ("True", "PodsDoNotStart", "Pods do not start: no node: a full zone")


def test_lost_nodes_are_told_before_a_second_writer_of_replicas() -> None:
    found = degraded(of_spec(replicas_writer="argo"), plan(lost=2))
    assert found[:2] == ("True", "NodeLost")
    assert "2" in found[2]
    found = degraded(of_spec(replicas_writer="argo"), plan())
    assert found[:2] == ("True", "ReplicasConflict")
    assert "argo" in found[2]


def test_the_reason_of_a_healthy_pool_has_the_form_of_reasons() -> None:
    assert re.fullmatch("([A-Z][a-z]+)+", degraded(POOL, plan())[1])


def test_times_do_not_depend_on_the_zone_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert written(NOW) == "2026-01-01T12:00:00Z"
        assert "2026-01-01T12:00:00Z" in HELD.describe(busy=0, now=NOW)
    finally:
        monkeypatch.undo()
        time.tzset()
