from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from github_adapters.client import GitHub
from github_adapters.endpoints.jobs import JobSeen
from ostler.errors import Busy, Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable, UpstreamError
from ostler.secrets import Secret
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE
from tests.unit.github_adapters.conftest import Clock
from tests.unit.github_adapters.upstream import Call, Reply, Upstream

ACME = Scope.organization("acme")
RUNNER = {"id": 5, "name": "r", "status": "offline", "busy": False, "labels": [{"id": 1, "name": "linux"}]}
JOB = {"id": 3, "run_id": 4, "status": "queued", "conclusion": None, "labels": ["linux"]}
LEAK = "the-body-of-the-answer"


def mint(github: GitHub) -> object:
    return github.mint(installation_id=1, scope=ACME, name="r", labels=["linux"], runner_group_id=1)


def find(github: GitHub) -> object:
    return github.find_runner(installation_id=1, scope=ACME, name="r")


def listed(github: GitHub) -> object:
    return github.list_runners(installation_id=1, scope=ACME)


def delete(github: GitHub) -> object:
    return github.delete_runner(installation_id=1, scope=ACME, runner_id=5)


def job(github: GitHub) -> object:
    return github.get_job(installation_id=1, repository="acme/app", job_id=3)


def deliveries(github: GitHub) -> object:
    return github.list_deliveries()


def redeliver(github: GitHub) -> object:
    return github.redeliver(delivery_id=3)


EVERY = [mint, find, listed, delete, job, deliveries, redeliver]
RESET = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1772359230"}  # 30 s after the clock's 10:00:00


@pytest.mark.parametrize("call", EVERY)
@pytest.mark.parametrize(
    ("reply", "meaning", "detail"),
    [
        (Reply(status=403, headers={"Retry-After": "17"}), RateLimited, 17),
        (Reply(status=429, headers={"Retry-After": "17"}), RateLimited, 17),
        (Reply(status=403, headers={"Retry-After": "0"}), RateLimited, 0),
        (Reply(status=403, headers={"Retry-After": "Sun, 01 Mar 2026 10:00:17 GMT"}), RateLimited, 60),
        (Reply(status=403, headers={"Retry-After": "9" * 40}), RateLimited, 86400),
        (Reply(status=403, headers=RESET), RateLimited, 31),
        (Reply(status=429, headers=RESET), RateLimited, 31),
        (Reply(status=403, headers={"x-ratelimit-remaining": "0"}), RateLimited, 60),
        (Reply(status=403, headers={**RESET, "x-ratelimit-reset": "1"}), RateLimited, 1),
        (Reply(status=429), RateLimited, 60),
        (Reply(status=403, body={"message": "You have exceeded a secondary rate limit"}), RateLimited, 60),
        (Reply(status=403, headers={"x-ratelimit-remaining": "12"}), Forbidden, None),
        (Reply(status=401), Forbidden, None),
        (Reply(status=500), Retryable, 500),
        (Reply(status=502), Retryable, 502),
        (Reply(status=503, headers={"Retry-After": "5"}), Retryable, 503),
        (Reply(status=418), Retryable, 418),
        (Reply(status=409), Conflict, None),
        (Reply(status=400), Invalid, None),
    ],
)
def test_a_refusal_has_one_meaning_and_tells_no_body(
    upstream: Upstream, github: GitHub, call: Callable[[GitHub], object], reply: Reply, meaning: type, detail: Any
) -> None:
    body = reply.body or {"message": LEAK}
    upstream.answer = lambda _: Reply(status=reply.status, headers=reply.headers, body=body)

    with pytest.raises(UpstreamError) as caught:
        call(github)

    error = caught.value
    assert type(error) is meaning
    if isinstance(error, RateLimited):
        assert error.after == detail
    if isinstance(error, Retryable):
        assert error.status == detail
    text = repr(error) + str(error.__cause__)
    assert LEAK not in text
    assert "token-" not in text


@pytest.mark.parametrize(
    ("call", "status", "meaning"),
    [
        (mint, 404, Gone),
        (listed, 404, Gone),
        (find, 404, Gone),
        (delete, 404, Gone),
        (mint, 422, Invalid),
        (delete, 422, Busy),
    ],
)
def test_404_and_422_mean_what_the_call_makes_of_them(
    upstream: Upstream, github: GitHub, call: Callable[[GitHub], object], status: int, meaning: type
) -> None:
    upstream.answer = lambda _: Reply(status=status, body={"message": LEAK})

    with pytest.raises(UpstreamError) as caught:
        call(github)

    assert type(caught.value) is meaning


def test_what_is_gone_is_deleted_and_an_unknown_job_is_none(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda call: (
        Reply(body={"total_count": 0, "runners": []})
        if call.method == "GET" and "/runners" in call.path
        else Reply(status=404)
    )

    delete(github)

    assert job(github) is None


@pytest.mark.parametrize(
    ("call", "status", "body"),
    [
        (mint, 201, b"half a"),
        (mint, 201, {"runner": RUNNER}),
        (mint, 201, {"runner": {}, "encoded_jit_config": "x"}),
        (mint, 200, {}),
        (find, 200, []),
        (find, 200, {"total_count": 1, "runners": [{"id": 5}]}),
        (listed, 200, {"total_count": 3, "runners": [RUNNER]}),
        (listed, 200, {"total_count": 1, "runners": None}),
        (listed, 200, {"runners": []}),
        (job, 200, {}),
        (job, 200, {**JOB, "id": 9}),
        (job, 200, {**JOB, "status": None}),
    ],
)
def test_an_answer_that_makes_no_sense_is_doubt(
    upstream: Upstream, github: GitHub, call: Callable[[GitHub], object], status: int, body: Any
) -> None:
    upstream.answer = lambda _: Reply(status=status, body=body)

    with pytest.raises(Retryable):
        call(github)


@pytest.mark.parametrize("call", [mint, find, listed, job])
def test_half_an_answer_is_none(upstream: Upstream, github: GitHub, call: Callable[[GitHub], object]) -> None:
    upstream.answer = lambda _: Reply(status=200, body={"padding": "x" * 100}, cut=True)

    with pytest.raises(Retryable) as caught:
        call(github)

    assert caught.value.status is None


def test_calls_share_a_connection(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(body=JOB)

    for _ in range(5):
        job(github)

    assert len({call.connection for call in upstream.calls}) == 1


def test_one_call_is_one_attempt(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(status=502)

    with pytest.raises(Retryable):
        mint(github)

    assert len(upstream.to("/generate-jitconfig")) == 1


def test_the_path_prefix_of_an_enterprise_server_is_kept(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(body=JOB)

    seen = job(github)

    assert isinstance(seen, JobSeen)
    assert (seen.status, seen.run_attempt, seen.runner_name) == ("queued", 1, None)
    assert [call.path for call in upstream.calls] == [
        "/api/v3/app/installations/1/access_tokens",
        "/api/v3/repos/acme/app/actions/jobs/3",
    ]


def test_a_renamed_repository_is_followed_to_its_jobs(upstream: Upstream, github: GitHub) -> None:
    new = "/api/v3/repositories/9/actions/jobs/3"
    upstream.answer = lambda call: Reply(body=JOB) if call.path == new else Reply(status=301, headers={"Location": new})

    assert job(github) is not None


def test_a_redirect_that_was_followed_to_a_list_costs_a_call_too(upstream: Upstream, github: GitHub) -> None:
    new = "/api/v3/repositories/9/actions/runs"

    def ask(etag: str | None = None) -> int:
        return github.list_runs(installation_id=1, repository="acme/app", status="queued", etag=etag).cost

    upstream.answer = lambda call: (
        Reply(body={"total_count": 0, "workflow_runs": []})
        if call.path.partition("?")[0] == new
        else Reply(status=301, headers={"Location": new})
    )
    assert ask() == 2
    upstream.answer = lambda call: (
        Reply(status=304, headers={"Connection": "close"})
        if call.path.partition("?")[0] == new
        else Reply(status=301, headers={"Location": new})
    )
    assert ask('"x"') == 1


def test_a_redirect_that_was_followed_to_a_run_costs_a_call_too(upstream: Upstream, github: GitHub) -> None:
    new = "/api/v3/repositories/9/actions/runs/4"
    upstream.answer = lambda call: Reply(status=404 if call.path == new else 301, headers={"Location": new})

    found = github.look_up_run(installation_id=1, repository="acme/app", run_id=4)

    assert (found.items, found.cost) == ((), 2)


def test_a_mint_is_never_redirected(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(status=307, headers={"Location": "/api/v3/elsewhere"})

    with pytest.raises(Gone):
        mint(github)

    assert upstream.to("/elsewhere") == []


def test_a_filter_that_a_server_does_not_know_is_made_up_for(upstream: Upstream, github: GitHub) -> None:
    everyone = [{**RUNNER, "id": number, "name": f"other-{number}"} for number in range(1, 150)] + [
        RUNNER | {"id": 900}
    ]

    def page(call: Call) -> Reply:
        first = 100 if call.path.endswith("page=2") else 0
        return Reply(body={"total_count": len(everyone), "runners": everyone[first : first + 100]})

    upstream.answer = page

    seen = github.find_runner(installation_id=1, scope=ACME, name="R")

    assert seen is not None
    assert seen.id == 900


@pytest.mark.parametrize("gone", [1, 60, 100])
def test_runners_that_go_between_two_pages_hide_no_other(upstream: Upstream, github: GitHub, gone: int) -> None:
    everyone = [{**RUNNER, "id": number} for number in range(1, 351)]

    def page(call: Call) -> Reply:
        number = int(call.path.rpartition("page=")[2])
        if number == 3 and len(everyone) == 350:  # and so the first ones of the third page are on the second
            del everyone[:gone]
        return Reply(body={"total_count": len(everyone), "runners": everyone[number * 100 - 100 : number * 100]})

    upstream.answer = page

    seen = github.list_runners(installation_id=1, scope=ACME)

    assert {runner.id for runner in seen} >= set(range(gone + 1, 351))


def test_a_list_from_which_more_went_than_a_page_has_is_doubted(upstream: Upstream, github: GitHub) -> None:
    everyone = [{**RUNNER, "id": number} for number in range(1, 351)]

    def page(call: Call) -> Reply:
        number = int(call.path.rpartition("page=")[2])
        if number == 2:
            del everyone[:101]
        return Reply(body={"total_count": len(everyone), "runners": everyone[number * 100 - 100 : number * 100]})

    upstream.answer = page

    with pytest.raises(Retryable):
        github.list_runners(installation_id=1, scope=ACME)


def test_a_deadline_that_has_passed_sends_nothing(upstream: Upstream, github: GitHub) -> None:
    with pytest.raises(Retryable):
        github.list_runners(installation_id=1, scope=ACME, policy=replace(ONCE, deadline=0))

    assert upstream.calls == []


def test_a_deadline_ends_a_call_that_hangs(upstream: Upstream, github: GitHub) -> None:
    released = threading.Event()

    def hang(_: Call) -> Reply:
        released.wait(30)
        return Reply(body=JOB)

    upstream.answer = hang
    with pytest.raises(Retryable) as caught:
        github.get_job(installation_id=1, repository="acme/app", job_id=3, policy=replace(ONCE, deadline=0.3))
    released.set()

    assert caught.value.status is None


def test_a_deadline_ends_an_answer_that_drips(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(body={"padding": "x" * 500}, drip=0.1)

    with pytest.raises(Retryable) as caught:
        github.get_job(installation_id=1, repository="acme/app", job_id=3, policy=replace(ONCE, deadline=0.4))

    assert caught.value.status is None


def test_nobody_listening_is_retryable(pem: Secret) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    github = GitHub(api_url=f"http://127.0.0.1:{port}", app_id="7", private_key=pem)

    with pytest.raises(Retryable) as caught:
        job(github)

    github.close()
    assert str(caught.value) == f"GitHub at 127.0.0.1:{port} did not answer: connection refused"


def test_token_calls_are_made_once_for_many_threads(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(body=JOB)
    together = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            together.wait()
            job(github)
        except BaseException as error:  # noqa: BLE001  shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(upstream.to("/access_tokens")) == 1


def test_a_refused_token_is_renewed_once(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda call: Reply(body=JOB) if call.authorization == "Bearer token-2" else Reply(status=401)

    assert job(github) is not None

    assert len(upstream.to("/access_tokens")) == 2
    assert len(upstream.to("/jobs/3")) == 2


def test_a_call_that_stays_refused_is_forbidden_after_two_attempts(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(status=401)

    with pytest.raises(Forbidden):
        job(github)

    assert len(upstream.to("/jobs/3")) == 2


def test_an_app_that_is_not_installed_any_more_is_gone_even_for_a_delete(upstream: Upstream, github: GitHub) -> None:
    upstream.tokens = lambda _: Reply(status=404)

    for call in (delete, job):
        with pytest.raises(Gone):
            call(github)


def test_installations_have_tokens_of_their_own(upstream: Upstream, github: GitHub, clock: Clock) -> None:
    upstream.answer = lambda _: Reply(body=JOB)
    for installation in (1, 2, 1):
        clock.forward(seconds=1)
        github.get_job(installation_id=installation, repository="acme/app", job_id=3)

    assert [call.authorization for call in upstream.to("/jobs/3")] == [
        "Bearer token-1",
        "Bearer token-2",
        "Bearer token-1",
    ]
