"""`ostler job requeue` and `POST /v1/jobs/{id}/requeue`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rules.token_scopes import TokenScope
from tests.integration.cli.test_operator import Operator, operator
from tests.integration.cli.test_remote import Developer, developer
from tests.integration.web.api.conftest import Stage, serving

__all__ = ["developer", "operator"]


@pytest.fixture
def stage(operator: Operator) -> Iterator[Stage]:
    with serving(operator.database) as stage:
        yield stage


def hold(operator: Operator, job: int) -> None:
    operator.execute(
        "UPDATE jobs SET hold_reason = 'backoff', hold_detail = '503', not_before = now() + interval '1 h' "
        "WHERE id = :id",
        id=job,
    )


def test_held_job_is_queued_again_and_the_change_has_its_author(operator: Operator) -> None:
    hold(operator, 12)
    done = operator.run("job", "requeue", "12")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "The hold of the job is cleared. It gets the next free Pod of its turn.",
    )
    assert operator.json("job", "12")["hold_reason"] is None
    (change,) = operator.json("changes", "--kind", "job")
    assert (change["object_id"], change["old"], change["new"]) == (12, {"hold": "backoff"}, {"hold": None})


def test_claimed_job_begins_its_release_and_says_what_it_waits_for(operator: Operator) -> None:
    operator.execute("UPDATE claims SET state = 'delivered', delivered_at = now(), runner_name = 'r'")
    operator.execute("UPDATE jobs SET state = 'claimed' WHERE id = 11")
    found = operator.json("job", "requeue", "11")
    assert found["action"] == "release"
    assert "If GitHub does not remove the runner because it is busy" in found["message"]
    assert found["why"]["summary"]
    assert [(row.state, row.ended_at) for row in operator.execute("SELECT state, ended_at FROM claims")] == [
        ("releasing", None)
    ]


def test_job_that_runs_or_does_not_exist_is_one_line(operator: Operator) -> None:
    operator.execute("UPDATE jobs SET state = 'running' WHERE id = 11")
    for job, said in (("11", "A runner executes the job"), ("99", "there is no job 99")):
        done = operator.run("job", "requeue", job)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert said in done.stderr
    assert operator.json("changes") == []


def test_job_without_an_id_or_with_an_unknown_word_is_a_mistake(operator: Operator) -> None:
    for words, said in ((("job",), "Missing argument 'ID'"), (("job", "restart"), "restart")):
        done = operator.run(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_developer_queues_a_job_again_over_the_api(developer: Developer) -> None:
    hold(developer.operator, 12)
    refused = developer.run("job", "requeue", "12")
    assert (refused.returncode, "scope" in refused.stderr) == (2, True)
    token = developer.stage.token(TokenScope.READ, TokenScope.WRITE, name="alice")
    done = developer.run("job", "requeue", "12", token=token)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The hold of the job is cleared. It gets the next free Pod of its turn.\n")
    assert developer.operator.json("changes", "--kind", "job")[0]["who"] == "alice"
    again = developer.json("job", "requeue", "12", token=token)
    assert set(again) == set(developer.operator.json("job", "requeue", "12"))
    missing = developer.run("job", "requeue", "99", token=token)
    assert (missing.returncode, "there is no job 99" in missing.stderr) == (1, True)
    developer.operator.execute("UPDATE jobs SET state = 'running' WHERE id = 11")
    runs = developer.run("job", "requeue", "11", token=token)
    assert (runs.returncode, "A runner executes the job" in runs.stderr) == (1, True)


def test_api_wakes_the_pool_of_the_job(operator: Operator, stage: Stage) -> None:
    hold(operator, 12)
    answer = stage.client.call("POST", "/api/v1/jobs/12/requeue", token=stage.writer)
    assert (answer.status_code, answer.json()["action"]) == (200, "route")
    assert answer.json()["why"]["summary"]
    ((pool,),) = operator.execute("SELECT id FROM pools")
    assert stage.outbox.wakes == [pool]


def test_api_sends_the_release_of_a_claim(operator: Operator, stage: Stage) -> None:
    operator.execute("UPDATE jobs SET state = 'claimed' WHERE id = 11")
    operator.execute("UPDATE claims SET state = 'minted'")
    assert stage.client.call("POST", "/api/v1/jobs/11/requeue", token=stage.writer).json()["action"] == "release"
    ((claim,),) = operator.execute("SELECT id FROM claims")
    assert stage.outbox.sent == [("ostler.release", {"claim_id": claim})]


def test_api_refuses_without_a_change(operator: Operator, stage: Stage) -> None:
    operator.execute("UPDATE jobs SET state = 'running' WHERE id = 11")
    limited = stage.token(TokenScope.READ, name="limited", accounts=[77])
    found = {
        (token, job): stage.client.call("POST", f"/api/v1/jobs/{job}/requeue", token=token).status_code
        for token in (stage.writer, stage.reader, limited)
        for job in (11, 99)
    }
    assert list(found.values()) == [409, 404, 403, 403, 403, 403]
    assert operator.json("changes", "--kind", "job") == []
