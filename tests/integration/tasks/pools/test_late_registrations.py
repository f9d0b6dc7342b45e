"""A persistent runner that registers late: its Pod is deleted only when no runner can appear (laws L3 and L8)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH
from ostler.clock import utcnow
from tasks.claims import retire as of_retire
from tasks.claims.retire import retire
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.dead_nodes import Nodes, bind, nodes
from tests.integration.tasks.pools.test_persistent_runners import (
    LIFE,
    GitHub,
    delivers,
    github,
    match,
    mints,
    no_chains,
    offered,
    releases,
    sweep,
)

__all__ = ["github", "no_chains", "nodes"]

pytestmark = pytest.mark.usefixtures("no_chains")


class Killed(BaseException):
    """The process is killed here."""


def minutes_ago(minutes: float) -> str:
    return (utcnow() - timedelta(minutes=minutes)).isoformat()


def report(stage: Stage, pod: str, *, register: int | None, ended: float = 0) -> None:
    """Write the kubelet's status: the poller has its token, and `register` runs (None) or has ended with this code.

    `ended`: the number of minutes since its end.
    """
    known: dict[str, Any] = {"image": "runner:1", "imageID": "", "ready": False, "restartCount": 0}
    state: dict[str, Any] = (
        {"running": {}}
        if register is None
        else {"terminated": {"exitCode": register, "startedAt": minutes_ago(9), "finishedAt": minutes_ago(ended)}}
    )
    states = {"poller": {"terminated": {"exitCode": 0}}, "register": state, "runner": {"running": {}}}
    containers = [{**known, "name": name, "state": each} for name, each in states.items()]
    stage.kube.request(
        "PATCH",
        f"/api/v1/namespaces/{stage.namespace}/pods/{pod}/status",
        body={"status": {"phase": "Running", "containerStatuses": containers}},
        content_type=MERGE_PATCH,
    )


def given_up(stage: Stage) -> tuple[str, str]:
    """Deliver a registration and let its time expire while container `register` runs. Return its Pod and runner."""
    stage.pool(replicas=1, **LIFE)
    offered(stage)
    claims = match(stage)
    mints(stage, claims)
    (pod,) = stage.pods()
    delivers(stage, claims)
    report(stage, pod, register=None)
    stage.rows("UPDATE claims SET delivered_at = delivered_at - interval '601 s'")
    sweep(stage)
    return pod, str(stage.see(claims[0]).runner_name)


def retires(stage: Stage) -> None:
    """Run every retirement that is due now or later."""
    for row in stage.rows("SELECT id FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"):
        stage.rows("UPDATE claims SET leased_until = NULL WHERE id = :id", id=row.id)
        retire.run(claim_id=row.id)


def goes_on(stage: Stage) -> None:
    """Run the release and the retirement, and then each of them again, as `resume` does."""
    for _ in range(2):
        releases(stage)
        retires(stage)


@pytest.mark.parametrize("killed", [False, True], ids=["goes on", "killed"])
@pytest.mark.parametrize("point", range(5))
def test_pod_stays_when_its_runner_registers_late_at_any_point(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, point: int, *, killed: bool
) -> None:
    """`config.sh` registers the runner before or after a call of the release or the retirement, and GitHub has a job.

    The points extend from the look-up of the release to the DELETE of a retirement that does not wait.
    """
    pod, runner = given_up(stage)
    left = point

    def reach() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            github.show(runner, busy=True)
            report(stage, pod, register=0)
            if killed:
                raise Killed

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            reach()
            answer = call(*given, **named)
            reach()
            return answer

        return wrapped

    monkeypatch.setattr(GitHub, "find_runner", watched(GitHub.find_runner))
    for name in ("get_pod", "delete_runner"):
        monkeypatch.setattr(of_retire, name, watched(getattr(of_retire, name)))
    with suppress(Killed):
        goes_on(stage)
    goes_on(stage)

    assert runner in github.runners
    assert pod in stage.pods(), "the Pod of a runner that executes a job was deleted"


def test_pod_waits_for_the_end_of_register_and_for_another_answer_of_github(stage: Stage, github: GitHub) -> None:
    pod, runner = given_up(stage)
    goes_on(stage)
    (row,) = stage.rows("SELECT last_error FROM claims WHERE purpose = 'retire' AND ended_at IS NULL")
    assert (pod in stage.pods(), row.last_error) == (
        True,
        "container `register` runs, so a runner of the Pod might still appear",
    )

    github.show(runner, online=False)  # config.sh was killed after its last request
    report(stage, pod, register=1)
    goes_on(stage)

    assert (github.deletions, github.runners) == ([runner], {})
    assert pod not in stage.pods()


def test_pod_waits_while_github_might_not_show_a_registered_runner_yet(stage: Stage, github: GitHub) -> None:
    pod, runner = given_up(stage)
    report(stage, pod, register=0)
    goes_on(stage)
    assert pod in stage.pods()

    github.show(runner)
    goes_on(stage)

    assert (github.deletions, github.runners) == ([runner], {})
    assert pod not in stage.pods()


def test_pod_is_deleted_a_minute_after_a_registration_that_github_never_shows(stage: Stage, github: GitHub) -> None:
    pod, _ = given_up(stage)
    report(stage, pod, register=0, ended=1.5)
    goes_on(stage)

    assert github.runners == {}
    assert pod not in stage.pods()


def test_pod_on_a_gone_node_does_not_wait_for_the_end_of_register(stage: Stage, github: GitHub, nodes: Nodes) -> None:
    dead, *_ = [nodes.add(name) for name in ("dead", "alive-1", "alive-2")]
    pod, _ = given_up(stage)
    bind(stage, pod, dead)
    goes_on(stage)
    assert pod in stage.pods()

    nodes.dies(dead, seconds_ago=700)
    goes_on(stage)

    assert github.runners == {}
    assert pod not in stage.pods()
