"""A native sidecar that restarts or starts slowly: the start of its Pod has not failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from k8s_adapters.calls.client import Json
from k8s_adapters.runners.pods import read_pod
from models.pools.pod_rows import PodRow
from rules.pools.pod_states import PodState
from rules.pools.pool_plan import PlanFacts, PoolPlan, Why, plan
from tasks.pools.plan import observed_pod
from tasks.worker.nodes import NodeSnapshot
from tests.rows import pool_spec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILED = {"terminated": {"exitCode": 1, "reason": "Error"}}
RUNS: Json = {"running": {}}


def planned(sidecar: Json, *, age: float, started: bool) -> tuple[PodState, PoolPlan]:
    """Return the state of a Pod with this status of its sidecar, and the plan of its pool with a limit of 300 s."""
    created = NOW - timedelta(seconds=age)
    state = {"running": {}} if started else {"waiting": {"reason": "PodInitializing"}}
    containers = [{"name": name, "state": state, "restartCount": 0} for name in ("poller", "runner")]
    pod = read_pod(
        {
            "metadata": {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": created.isoformat()},
            "spec": {"nodeName": "node", "initContainers": [{"name": "cache", "restartPolicy": "Always"}]},
            "status": {
                "phase": "Running" if started else "Pending",
                "initContainerStatuses": [{"name": "cache", **sidecar}],
                "containerStatuses": containers,
            },
        }
    )
    nobody: dict[str, Any] = dict.fromkeys(
        ("first_polled_at", "polled_at", "terminal_at", "claim_id", "claim_purpose", "freed_at")
    )
    flags: dict[str, Any] = dict.fromkeys(("claim_delivered", "offered", "ever_delivered"), False)
    row = PodRow(id=1, name="p", uid="u", attempt_id="a", template_hash="h", created_at=created, **nobody, **flags)
    nodes = NodeSnapshot(known=frozenset({"node"}), cordoned=frozenset(), gone={})
    found = observed_pod(row, pod, template_hash="h", generation=created, nodes=nodes, now=NOW)
    return found.state, plan(PlanFacts(pool=pool_spec(replicas=1), web_beats=True), [found], most=9, now=NOW)


@pytest.mark.parametrize(
    ("sidecar", "started"),
    [
        ({"restartCount": 0, "state": FAILED}, False),
        ({"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": FAILED}, False),
        ({"restartCount": 1, "state": RUNS, "lastState": FAILED, "started": False}, False),
        ({"restartCount": 1, "state": RUNS, "lastState": FAILED, "started": True}, True),
        ({"restartCount": 1, "state": FAILED, "lastState": FAILED}, True),
    ],
)
def test_restart_of_a_sidecar_is_no_failed_start(sidecar: Json, *, started: bool) -> None:
    state, made = planned(sidecar, age=90, started=started)
    assert state is PodState.STARTING
    assert (made.retire, made.create, made.starts.failures) == ((), 0, 0)


def test_sidecar_that_starts_within_the_limit_is_awaited_and_a_later_one_is_named() -> None:
    slow = {"restartCount": 0, "state": RUNS, "started": False}
    assert planned(slow, age=90, started=False)[1].retire == ()
    (retired,) = planned(slow, age=300, started=False)[1].retire
    assert retired.why is Why.NOT_STARTED
    assert "a sidecar did not become ready, within 300 s" in retired.detail
