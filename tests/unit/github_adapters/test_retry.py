"""Retries of calls to GitHub: by their policy, never beyond their deadline, and only one attempt of a mint."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from github_adapters.client import GitHub
from ostler.clock import Timing
from ostler.errors import Busy, Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable, UpstreamError
from ostler.secrets import Secret
from rules.claims.job_outcomes import NextStep
from rules.routing.scopes import Scope
from rules.upstream.retry import RetryPolicy
from tasks.claims.github import ask_job_outcome
from tests.unit.github_adapters.conftest import Clock
from tests.unit.github_adapters.upstream import Call, Reply, Upstream

ACME = Scope.organization("acme")
FOUR = RetryPolicy(attempts=4)
JOB = {"id": 3, "run_id": 4, "status": "queued", "conclusion": None, "labels": ["linux"]}
NOBODY = {"total_count": 0, "runners": []}
TOO_LATE = 50.0


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def github(upstream: Upstream, pem: Secret, clock: Clock, slept: list[float]) -> Iterator[GitHub]:
    timing = Timing(sleep=slept.append, roll=lambda: 0.5)
    client = GitHub(api_url=upstream.url, app_id="7", private_key=pem, clock=clock, timeout=5, timing=timing)
    yield client
    client.close()


def find(github: GitHub, policy: RetryPolicy) -> object:
    return github.find_runner(installation_id=1, scope=ACME, name="r", policy=policy)


def listed(github: GitHub, policy: RetryPolicy) -> object:
    return github.list_runners(installation_id=1, scope=ACME, policy=policy)


def delete(github: GitHub, policy: RetryPolicy) -> object:
    return github.delete_runner(installation_id=1, scope=ACME, runner_id=5, policy=policy)


def job(github: GitHub, policy: RetryPolicy) -> object:
    return github.get_job(installation_id=1, repository="acme/app", job_id=3, policy=policy)


def deliveries(github: GitHub, policy: RetryPolicy) -> object:
    return github.list_deliveries(policy=policy)


def run(github: GitHub, policy: RetryPolicy) -> object:
    return github.get_run(installation_id=1, repository="acme/app", run_id=4, policy=policy)


def runs(github: GitHub, policy: RetryPolicy) -> object:
    return github.list_runs(installation_id=1, repository="acme/app", status="queued", policy=policy)


PolicyCall = Callable[[GitHub, RetryPolicy], object]
EVERY: list[tuple[PolicyCall, Reply]] = [
    (find, Reply(body=NOBODY)),
    (listed, Reply(body=NOBODY)),
    (delete, Reply(status=204)),
    (job, Reply(body=JOB)),
    (deliveries, Reply(body=[])),
    (run, Reply(status=404)),
    (runs, Reply(body={"total_count": 0, "workflow_runs": []})),
]
EACH_CALL = pytest.mark.parametrize(("call", "fine"), EVERY, ids=[call.__name__ for call, _ in EVERY])


def replies(*first: Reply, then: Reply) -> Callable[[Call], Reply]:
    """Answer with each of `first` in turn, and with `then` after that."""
    turn = itertools.chain(first, itertools.repeat(then))
    return lambda _: next(turn)


@EACH_CALL
@pytest.mark.parametrize(
    "broken",
    [
        Reply(status=500),
        Reply(status=502),
        Reply(status=503),
        Reply(status=504),
        Reply(status=200, body=[JOB], cut=True),
    ],
    ids=["500", "502", "503", "504", "cut"],
)
def test_what_may_end_differently_is_retried(
    github: GitHub, upstream: Upstream, slept: list[float], call: PolicyCall, fine: Reply, broken: Reply
) -> None:
    upstream.answer = replies(broken, broken, broken, then=fine)
    call(github, FOUR)
    assert len(upstream.calls) - len(upstream.to("/access_tokens")) == 4
    assert slept == [1, 2, 4]


@EACH_CALL
def test_an_answer_that_makes_no_sense_is_retried(
    github: GitHub, upstream: Upstream, slept: list[float], call: PolicyCall, fine: Reply
) -> None:
    status = 503 if fine.status == 204 else 200  # a 204 has no body to be nonsense
    upstream.answer = replies(Reply(status=status, body="nonsense"), then=fine)
    call(github, FOUR)
    assert slept == [1]


@EACH_CALL
def test_the_last_error_leaves_when_the_attempts_are_used_up(
    github: GitHub, upstream: Upstream, slept: list[float], call: PolicyCall, fine: Reply
) -> None:
    upstream.answer = replies(*[Reply(status=502)] * 4, then=fine)
    with pytest.raises(Retryable) as last:
        call(github, FOUR)
    assert last.value.status == 502
    assert len(slept) == 3


@EACH_CALL
@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (Reply(status=429, headers={"Retry-After": "1"}), RateLimited),
        (Reply(status=403, headers={"Retry-After": "0"}), RateLimited),
        (Reply(status=403), Forbidden),
        (Reply(status=401), Forbidden),
        (Reply(status=409), Conflict),
        (Reply(status=400), Invalid),
        (Reply(status=501), Retryable),
    ],
    ids=["429", "limited", "403", "401", "409", "400", "501"],
)
def test_an_answer_is_not_retried(
    github: GitHub,
    upstream: Upstream,
    slept: list[float],
    call: PolicyCall,
    fine: Reply,
    answer: Reply,
    meaning: type[UpstreamError],
) -> None:
    del fine
    upstream.answer = lambda _: answer
    with pytest.raises(meaning):
        call(github, FOUR)
    assert slept == []


@EACH_CALL
def test_without_a_policy_a_call_is_made_once(
    github: GitHub, upstream: Upstream, slept: list[float], call: Any, fine: Reply
) -> None:
    upstream.answer = replies(Reply(status=502), then=fine)
    with pytest.raises(Retryable):
        call(github, RetryPolicy(attempts=1))
    assert slept == []


@EACH_CALL
def test_no_attempt_begins_when_the_wait_would_outlive_the_deadline(
    github: GitHub, upstream: Upstream, slept: list[float], call: PolicyCall, fine: Reply
) -> None:
    upstream.answer = replies(Reply(status=502), then=fine)
    with pytest.raises(Retryable):
        call(github, RetryPolicy(attempts=4, base=TOO_LATE, cap=TOO_LATE, deadline=20))
    assert slept == []


def test_a_refused_token_of_an_installation_is_retried_too(
    github: GitHub, upstream: Upstream, slept: list[float]
) -> None:
    upstream.tokens = replies(Reply(status=502), then=upstream.tokens(upstream_call()))
    upstream.answer = lambda _: Reply(body=JOB)
    assert job(github, FOUR) is not None
    assert slept == [1]


def upstream_call() -> Call:
    return Call(method="POST", path="/app/installations/1/access_tokens", authorization="", body=b"", connection=0)


def test_each_page_has_its_attempts(github: GitHub, upstream: Upstream, slept: list[float]) -> None:
    runner = {"name": "r", "status": "offline", "busy": False, "labels": []}
    first = [{**runner, "id": number} for number in range(1, 101)]
    upstream.answer = replies(
        Reply(status=502),
        Reply(body={"total_count": 101, "runners": first}),
        Reply(status=502),
        Reply(status=502),
        then=Reply(body={"total_count": 101, "runners": [{**runner, "id": 101}]}),
    )
    assert len(github.list_runners(installation_id=1, scope=ACME, policy=FOUR)) == 101
    assert slept == [1, 1, 2]


def test_a_delete_whose_answer_was_lost_ends_with_the_404_of_its_repetition(
    github: GitHub, upstream: Upstream, slept: list[float]
) -> None:
    upstream.answer = replies(Reply(status=200, cut=True), Reply(status=404), then=Reply(body=NOBODY))
    delete(github, FOUR)
    assert slept == [1]


def test_a_busy_runner_is_not_asked_for_again(github: GitHub, upstream: Upstream, slept: list[float]) -> None:
    upstream.answer = lambda _: Reply(status=422)
    with pytest.raises(Busy):
        delete(github, FOUR)
    assert slept == []


def test_neither_a_mint_nor_a_redelivery_is_ever_retried(
    github: GitHub, upstream: Upstream, slept: list[float]
) -> None:
    upstream.answer = lambda _: Reply(status=502)
    with pytest.raises(Retryable):
        github.mint(installation_id=1, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    with pytest.raises(Retryable):
        github.redeliver(delivery_id=1)
    assert len(upstream.calls) - len(upstream.to("/access_tokens")) == 2
    assert slept == []


def test_question_about_the_end_of_a_job_makes_one_attempt_and_celery_repeats_it(
    github: GitHub, upstream: Upstream, slept: list[float]
) -> None:
    rt: Any = SimpleNamespace(github=github)
    upstream.answer = replies(Reply(status=502), Reply(body=JOB), then=Reply(status=404))
    with pytest.raises(Retryable):
        ask_job_outcome(rt, job_id=3, repository="acme/app", installation_id=1)
    assert ask_job_outcome(rt, job_id=3, repository="acme/app", installation_id=1).next_step is NextStep.REQUEUE
    upstream.answer = lambda _: Reply(status=410)
    with pytest.raises(Gone):
        ask_job_outcome(rt, job_id=3, repository="acme/app", installation_id=1)
    assert slept == []
