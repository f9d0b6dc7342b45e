"""A Pod that might hold a JIT is not deleted, un-stamped or scaled away, whichever task tries it (law L3)."""

from __future__ import annotations

import pytest

from k8s_adapters.names import OWNER_LABEL
from k8s_adapters.pools.pools import patch_pool_replicas
from models.claims import busy
from models.claims.busy import Recorded
from models.db.engine import transaction
from tasks.claims.retire import retire
from tasks.claims.stamp import unstamp
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


def recorded(stage: Stage, pod: str) -> Recorded:
    uid = stage.pods()[pod].uid
    return transaction(stage.rt.engine, lambda db: busy.recorded(db, uid))


def ended(stage: Stage, claim: int) -> None:
    stage.rows(
        "UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now(), due_at = NULL WHERE id = :id",
        id=claim,
    )


def put_stamp(stage: Stage, pod: str) -> None:
    stage.kube.request(
        "PATCH",
        f"/api/v1/namespaces/{stage.namespace}/pods/{pod}",
        body={"metadata": {"labels": {OWNER_LABEL: "1"}}},
        content_type="application/merge-patch+json",
    )


def claims(stage: Stage, purpose: str) -> list[tuple[str, str | None]]:
    rows = stage.rows("SELECT state, end_reason FROM claims WHERE purpose = :purpose ORDER BY id", purpose=purpose)
    return [(row.state, row.end_reason) for row in rows]


class TestWhatIsRecorded:
    def test_a_warm_pod_was_given_nothing(self, stage: Stage, pod: str) -> None:
        assert recorded(stage, pod) == Recorded(any_delivered=False)

    def test_a_pod_without_a_row_is_doubtful(self, stage: Stage) -> None:
        assert transaction(stage.rt.engine, lambda db: busy.recorded(db, "nobody")).any_delivered

    def test_a_minted_claim_is_no_delivery(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        stage.claim(pod, job_id=7, state="minted", runner=RUNNER)
        assert recorded(stage, pod) == Recorded(any_delivered=False)

    @pytest.mark.parametrize("outcomes", [(), ("minted",), ("removed", "open"), ("removed", "minted"), ("refused",)])
    def test_a_delivered_claim_proves_nothing_while_a_runner_of_it_may_be_there(
        self, stage: Stage, pod: str, outcomes: tuple[str, ...]
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="delivered")
        attempts(stage, claim, outcomes)
        assert recorded(stage, pod) == Recorded(any_delivered=True, runners_removed=False)

    def test_a_delivered_claim_whose_runner_github_removed_is_proof(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        attempts(stage, stage.claim(pod, job_id=7, state="delivered"), ("refused", "removed"))
        assert recorded(stage, pod) == Recorded(any_delivered=True, runners_removed=True)

    def test_one_of_two_claims_is_not_enough(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        first = stage.claim(pod, job_id=7, state="delivered")
        attempts(stage, first, ("removed",))
        ended(stage, first)
        stage.claim(pod, job_id=7, state="executing")
        assert recorded(stage, pod) == Recorded(any_delivered=True, runners_removed=False, executed=True)


def attempts(stage: Stage, claim: int, outcomes: tuple[str, ...]) -> None:
    for number, outcome in enumerate(outcomes):
        stage.rows(
            """
            INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at)
            VALUES (:claim, :name, 77, :outcome, now())
            """,
            claim=claim,
            name=f"{claim}-{number}",
            outcome=outcome,
        )


class TestRetire:
    def test_pod_whose_poller_wrote_a_jit_stays_until_it_ends_despite_the_rows(self, stage: Stage, pod: str) -> None:
        claim = stage.retire_claim(pod)
        stage.finish(pod, phase="Running", poller=0, runner=None)
        retire.run(claim_id=claim)
        assert pod in stage.pods()
        (row,) = stage.rows("SELECT ended_at, last_error FROM claims")
        assert row.ended_at is None
        assert "the poller exited 0" in row.last_error
        stage.finish(pod)
        retire.run(claim_id=claim)
        assert pod not in stage.pods()

    def test_delivered_pod_without_a_known_runner_stays(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="delivered"))
        claim = stage.retire_claim(pod)
        retire.run(claim_id=claim)
        assert pod in stage.pods()

    def test_a_delivered_pod_goes_once_github_has_removed_its_runner_and_not_before(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="delivered", runner=RUNNER))
        github.runner = "busy"
        claim = stage.retire_claim(pod)
        retire.run(claim_id=claim)
        assert pod in stage.pods()
        github.runner = "idle"
        retire.run(claim_id=claim)
        assert (github.deleted, pod in stage.pods()) == ([77], False)
        assert claims(stage, "retire") == [("ended", "retired")]

    def test_a_warm_pod_goes_at_once(self, stage: Stage, pod: str) -> None:
        claim = stage.retire_claim(pod)
        retire.run(claim_id=claim)
        assert pod not in stage.pods()
        assert claims(stage, "retire") == [("ended", "retired")]


class TestUnstamp:
    def test_pod_with_the_jit_of_another_claim_keeps_its_stamp_and_is_retired(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="delivered"))
        claim = stage.claim(pod, job_id=7, state="minted", age=400)
        put_stamp(stage, pod)
        stage.release(claim)
        assert stage.pods()[pod].owner == 1
        assert stage.see(claim).end_reason == "released"
        assert stage.see(claim).job_state == "queued"
        assert claims(stage, "retire") == [("claimed", None)]

    def test_a_pod_that_was_given_none_is_warm_again_at_once(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="minted", age=400)
        put_stamp(stage, pod)
        stage.release(claim)
        assert stage.pods()[pod].owner is None
        assert stage.see(claim).end_reason == "released"
        assert claims(stage, "retire") == []

    def test_cut_off_pod_with_another_jit_keeps_its_stamp_and_its_claim_is_released(
        self, stage: Stage, pod: str
    ) -> None:
        stage.job(7)
        ended(stage, stage.claim(pod, job_id=7, state="delivered"))
        claim = stage.claim(pod, job_id=7, state="minted", age=400)
        stage.rows("UPDATE claims SET stamp = 'removing' WHERE id = :id", id=claim)
        put_stamp(stage, pod)
        unstamp.run(claim_id=claim)
        assert stage.pods()[pod].owner == 1
        assert stage.see(claim).state == "releasing"
        assert len(stage.outbox.take("ostler.release")) == 1

    def test_a_cut_off_pod_that_was_given_none_is_unstamped(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="minted", age=400)
        stage.rows("UPDATE claims SET stamp = 'removing' WHERE id = :id", id=claim)
        put_stamp(stage, pod)
        unstamp.run(claim_id=claim)
        assert stage.pods()[pod].owner is None
        assert (stage.see(claim).state, stage.see(claim).stamp) == ("minted", "off")


class TestReleaseOfADeliveredClaim:
    def test_pod_without_a_known_runner_keeps_its_claim_until_it_ends(self, stage: Stage, pod: str) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="delivered", age=400)
        stage.release(claim)
        assert stage.see(claim).state == "releasing"
        assert claims(stage, "retire") == []
        (due,) = stage.rows("SELECT due_at > now() + interval '30 s' AS later FROM claims WHERE id = :id", id=claim)
        assert due.later  # it may run for hours
        stage.finish(pod)
        stage.release(claim)
        assert stage.see(claim).end_reason == "never_started"

    def test_one_whose_runner_github_removed_is_ended_and_retired(
        self, stage: Stage, pod: str, github: StubGitHub
    ) -> None:
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="delivered", age=400, runner=RUNNER)
        github.runner = "offline"
        stage.release(claim)
        assert stage.see(claim).end_reason == "never_started"
        assert claims(stage, "retire") == [("claimed", None)]


class TestKeeper:
    def test_a_pod_whose_poller_wrote_a_jit_is_never_too_many_whatever_the_rows_say(
        self, stage: Stage, pod: str
    ) -> None:
        stage.finish(pod, phase="Running", poller=0, runner=None)
        patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=0)
        pools.run()
        for message in stage.outbox.take("ostler.reconcile"):
            reconcile.run(**message)
        rows = stage.rows(
            "SELECT p.name FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id WHERE c.purpose = 'retire'"
        )
        assert [row.name for row in rows] == [name for name in stage.pods() if name != pod]
