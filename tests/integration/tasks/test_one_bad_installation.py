"""Installations that GitHub does not answer for: no other installation waits for them, and pools stay full (L14)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runners import RunnerSeen
from k8s_adapters.pools.pools import patch_pool_replicas
from ostler.errors import Retryable
from rules.upstream.retry import RetryPolicy
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.listing import job_seen

GOOD = 501
HANGS, FAILS = 10.0, 0.2
"""Seconds of one attempt: no answer until the client's timeout, or a 5xx at once."""


@dataclass(slots=True)
class PartlyAway:
    """A GitHub that answers for some installations. The time of the other calls passes for the tasks."""

    attempt_takes: dict[int, float] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    passed: float = 0

    def monotonic(self) -> float:
        """Return the clock of the tasks, which only calls to GitHub move."""
        return self.passed

    def _answer(self, installation_id: int, policy: RetryPolicy) -> None:
        self.calls.append(installation_id)
        takes = self.attempt_takes.get(installation_id)
        if takes is None:
            return
        deadline, cost = policy.deadline or 0, 0.0
        for attempt in range(1, policy.attempts + 1):
            cost += takes
            wait = 2.0 ** (attempt - 1)
            if attempt == policy.attempts or cost + wait >= deadline:
                break
            cost += wait
        self.passed += min(cost, deadline)
        raise Retryable("down", status=503)

    def list_runners(self, *, installation_id: int, policy: RetryPolicy, **_: Any) -> list[RunnerSeen]:
        """Return the offline runner of the claim of that installation."""
        self._answer(installation_id, policy)
        return [RunnerSeen(id=77, name=f"runner-{installation_id}", status="offline", busy=False, labels=())]

    def find_runner(self, *, installation_id: int, name: str, policy: RetryPolicy, **_: Any) -> RunnerSeen:
        """Return that runner by its name."""
        self._answer(installation_id, policy)
        return RunnerSeen(id=77, name=name, status="offline", busy=False, labels=())

    def get_job(self, *, installation_id: int, job_id: int, policy: RetryPolicy, **_: Any) -> JobSeen | None:
        """Return a job that is over."""
        self._answer(installation_id, policy)
        return job_seen(job_id, "completed", "success")


@pytest.fixture
def github(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> PartlyAway:
    """The stage's GitHub, whose delays are the tasks' time."""
    stub = PartlyAway()
    stage.rt.github = stub
    monkeypatch.setattr("tasks.worker.base.time", SimpleNamespace(monotonic=stub.monotonic))
    return stub


def reconcile_all(stage: Stage) -> None:
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)


def claims(stage: Stage, installations: list[int], *, state: str) -> list[int]:
    """Create a Pod with a claim for each installation, the oldest first."""
    stage.pool(replicas=len(installations) + 1)
    reconcile_all(stage)
    made = []
    pods = [row.name for row in stage.rows("SELECT name FROM runner_pods ORDER BY id")]
    for number, (pod, installation) in enumerate(zip(pods, installations, strict=False)):
        stage.job(number, state="running" if state == "executing" else "claimed")
        claim = stage.claim(pod, job_id=number, state=state, age=900 - number, runner=f"runner-{installation}-{number}")
        stage.rows(
            "UPDATE claims SET installation_id = :i, scope = :scope, runner_name = :runner WHERE id = :id",
            i=installation,
            scope=f"orgs/org-{installation}",
            runner=f"runner-{installation}",
            id=claim,
        )
        made.append(claim)
    return made


def lose_pods(stage: Stage, claimed: list[int]) -> None:
    """Delete the Pods of these claims without Ostler's knowledge."""
    for row in stage.rows(
        "SELECT name FROM runner_pods p JOIN claims c ON c.runner_pod_id = p.id WHERE c.id = ANY(:ids)", ids=claimed
    ):
        stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{row.name}")


@pytest.mark.parametrize(
    ("bad", "takes"), [([601], HANGS), ([601, 602, 603], FAILS)], ids=["one hangs", "three fail at once"]
)
def test_runners_are_checked_although_those_of_other_installations_cannot_be_listed(
    stage: Stage, github: PartlyAway, bad: list[int], takes: float
) -> None:
    *_, good = claims(stage, [*bad, GOOD], state="delivered")
    github.attempt_takes = dict.fromkeys(bad, takes)
    unused_runners.run()
    assert stage.see(good).state == "releasing"


def test_however_many_scopes_hang_each_other_one_has_its_turn(stage: Stage, github: PartlyAway) -> None:
    bad = [601, 602, 603]
    *_, good = claims(stage, [*bad, GOOD], state="delivered")
    github.attempt_takes = dict.fromkeys(bad, HANGS)
    for _ in range(60):
        unused_runners.run()
    assert stage.see(good).state == "releasing"


@pytest.mark.parametrize(
    ("bad", "takes"),
    [([601, 602, 603], FAILS), ([601] * 5, HANGS)],
    ids=["three installations", "five claims of one"],
)
def test_a_claim_whose_pod_is_gone_ends_although_github_does_not_answer_for_others(
    stage: Stage, github: PartlyAway, bad: list[int], takes: float
) -> None:
    claimed = claims(stage, [*bad, GOOD], state="executing")
    lose_pods(stage, claimed)
    github.attempt_takes = dict.fromkeys(bad, takes)
    missing_pods.run()
    assert stage.see(claimed[-1]).end_reason == "pod_gone"
    assert [stage.see(claim).state for claim in claimed[:-1]] == ["executing"] * len(bad)
    assert github.calls.count(601) == 1


@pytest.mark.parametrize("repair", ["missing_pods", "reconcile"])
def test_claims_of_a_healthy_installation_are_served_while_many_others_hang(
    stage: Stage, github: PartlyAway, repair: str
) -> None:
    bad = [601, 602, 603, 604]
    claimed = claims(stage, [*bad, GOOD], state="executing")
    lose_pods(stage, claimed)
    github.attempt_takes = dict.fromkeys(bad, HANGS)
    (pool,) = stage.rows("SELECT id FROM pools")
    for _ in range(60):
        if repair == "reconcile":
            reconcile.run(pool_id=pool.id)
        else:
            missing_pods.run()
        if stage.see(claimed[-1]).end_reason is not None:
            break
    assert stage.see(claimed[-1]).end_reason == "pod_gone"


def test_a_pool_is_filled_although_the_claims_of_its_lost_pods_cannot_be_ended(
    stage: Stage, github: PartlyAway
) -> None:
    bad = [601, 602, 603]
    claimed = claims(stage, [*bad, GOOD], state="executing")
    lose_pods(stage, claimed)
    github.attempt_takes = dict.fromkeys(bad, FAILS)
    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=7)
    before = len(stage.pods())
    reconcile_all(stage)
    assert len(stage.pods()) == before + 2
    assert stage.see(claimed[-1]).end_reason == "pod_gone"


def test_spent_pods_of_a_hanging_installation_keep_their_claims_and_cost_one_call(
    stage: Stage, github: PartlyAway
) -> None:
    *bad, good = claims(stage, [601, 601, 601, 601, GOOD], state="executing")
    for row in stage.rows("SELECT p.name FROM runner_pods p JOIN claims c ON c.runner_pod_id = p.id"):
        stage.finish(row.name)
    reconcile_all(stage)
    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE terminal_at IS NOT NULL")
    github.attempt_takes = {601: HANGS}
    reconcile_all(stage)
    assert stage.see(good).end_reason == "pod_spent"
    assert sorted(stage.see(claim).state for claim in bad) == ["ended", "executing", "executing", "executing"]
    assert github.calls.count(601) == 1
