"""The adapter with a GitHub in another process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from github_adapters import permissions
from github_adapters.client import GitHub
from github_adapters.endpoints.deliveries import DeliverySeen
from github_adapters.endpoints.pages import ListPage
from github_adapters.endpoints.runners import Jit
from github_adapters.endpoints.runs import RunSeen
from github_adapters.webhooks import parse_workflow_job
from ostler.clock import utcnow
from ostler.errors import (
    Busy,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
    UpstreamError,
)
from ostler.secrets import Secret
from rules.routing.forks import Origin
from rules.routing.scopes import Scope
from tests.contract.github.conftest import ORG_INSTALLATION, USER_INSTALLATION, Lab
from tests.waiting import eventually

ACME = Scope.organization("acme")
ADA = Scope.repository("ada/app")


def mint(github: GitHub, name: str = "runner-1", *, scope: Scope = ACME) -> Jit:
    installation = ORG_INSTALLATION if scope == ACME else USER_INSTALLATION
    return github.mint(installation_id=installation, scope=scope, name=name, labels=["linux"], runner_group_id=1)


@pytest.mark.parametrize("scope", [ACME, ADA], ids=str)
def test_a_minted_runner_is_found_offline_with_exactly_its_labels(github: GitHub, scope: Scope) -> None:
    installation = ORG_INSTALLATION if scope == ACME else USER_INSTALLATION

    jit = mint(github, scope=scope)

    seen = github.find_runner(installation_id=installation, scope=scope, name="runner-1")
    assert seen is not None
    assert (seen.id, seen.name, seen.online, seen.busy, seen.labels) == (
        jit.runner_id,
        jit.runner_name,
        False,
        False,
        ("linux",),
    )
    assert github.list_runners(installation_id=installation, scope=scope) == [seen]


def test_nobody_is_found_under_a_name_that_was_never_minted(github: GitHub) -> None:
    assert github.find_runner(installation_id=ORG_INSTALLATION, scope=ACME, name="nobody") is None


def test_a_deleted_runner_is_gone_and_may_be_deleted_again(github: GitHub) -> None:
    jit = mint(github)

    for _ in range(2):
        github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=jit.runner_id)

    assert github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME) == []


def test_a_taken_name_is_a_conflict(github: GitHub) -> None:
    mint(github)

    with pytest.raises(Conflict):
        mint(github)


def test_a_lost_reply_leaves_a_runner_that_can_be_looked_up(lab: Lab, github: GitHub) -> None:
    lab.fault(method="POST", path_regex="generate-jitconfig", after_apply=True, reset=True)

    with pytest.raises(Retryable) as lost:
        mint(github)

    assert lost.value.status is None
    assert github.find_runner(installation_id=ORG_INSTALLATION, scope=ACME, name="runner-1") is not None


def test_a_busy_runner_is_not_deleted(lab: Lab, github: GitHub) -> None:
    jit = mint(github)
    session = lab.start(jit.config)
    (job,) = lab.jobs()
    assert lab.next_job(session) == job
    assert lab.call("POST", f"/_runner/sessions/{session}/started", {"job_id": job})[0] == 204

    with pytest.raises(Busy):
        github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=jit.runner_id)

    (seen,) = github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)
    assert (seen.online, seen.busy) == (True, True)


def test_a_job_is_followed_from_queued_to_completed(lab: Lab, github: GitHub) -> None:
    (job,) = lab.jobs()
    queued = github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=job)
    session = lab.start(mint(github).config)

    lab.run(session, lab.next_job(session))

    done = github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=job)
    assert queued is not None
    assert done is not None
    assert (queued.status, queued.conclusion, queued.runner_name) == ("queued", None, None)
    assert (done.status, done.conclusion, done.runner_name) == ("completed", "success", "runner-1")


def test_a_job_is_found_by_the_id_of_its_repository_whatever_that_is_called(lab: Lab, github: GitHub) -> None:
    (job,) = lab.jobs()
    assert lab.call("PATCH", "/_lab/accounts/acme", {"login": "apex"})[0] == 200
    found = github.get_job(installation_id=ORG_INSTALLATION, repository=11, job_id=job)
    assert found is not None
    assert found.status == "queued"
    assert github.get_job(installation_id=ORG_INSTALLATION, repository=12, job_id=job) is None


def tell(github: GitHub, *, check_id: int | None = None, name: str = "build", commit: str = "a" * 40) -> int:
    return github.tell_check_run(
        installation_id=ORG_INSTALLATION,
        repository="acme/app",
        commit=commit,
        check_id=check_id,
        name=name,
        title="Waits 6 min",
        text="no Pod",
    )


def allow_checks(lab: Lab) -> None:
    lab.call("PATCH", "/_lab/app", {"permissions": {**permissions.ORGANIZATION, **permissions.CHECKS}})


def test_a_check_run_is_made_and_then_changed_in_its_place(lab: Lab, github: GitHub) -> None:
    lab.jobs()
    allow_checks(lab)
    made = tell(github)
    assert tell(github, check_id=made) == made
    assert tell(github, name="test") != made


def test_a_check_run_is_refused_without_the_permission_and_on_no_commit(lab: Lab, github: GitHub) -> None:
    lab.jobs()
    with pytest.raises(Forbidden):
        tell(github)
    allow_checks(lab)
    with pytest.raises(Invalid):
        tell(github, commit="main")
    with pytest.raises(Gone):
        tell(github, check_id=987)


def test_an_unknown_job_is_none(github: GitHub) -> None:
    assert github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=5) is None


def test_the_runs_and_jobs_of_a_repository_are_listed(lab: Lab, github: GitHub) -> None:
    first, second = lab.jobs(count=2, in_one_run=True)
    (run,) = github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/app", status="queued").items
    assert (run.status, run.conclusion, run.attempt, run.home.repository) == ("queued", None, 1, "acme/app")
    assert github.get_run(installation_id=ORG_INSTALLATION, repository="acme/app", run_id=run.id) == run
    page = github.list_run_jobs(installation_id=ORG_INSTALLATION, repository="acme/app", run=run)
    assert {job.job_id: job.status for job in page.items} == {first: "queued", second: "queued"}
    hooks = eventually(lambda: lab.hooks.seen if len(lab.hooks.seen) == 2 else None)
    told = {hook.payload["workflow_job"]["id"]: parse_workflow_job(hook.body) for hook in hooks}
    assert {job.job_id: job for job in page.items} == told, "a listed job is what its webhook is"


def test_what_has_not_changed_costs_no_quota(lab: Lab, github: GitHub) -> None:
    lab.settings(rate_limit_per_hour=1000)
    lab.jobs()

    def ask(etag: str | None) -> ListPage[RunSeen]:
        return github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/app", status="queued", etag=etag)

    first = ask(None)
    assert (first.unchanged, first.quota) == (False, 1000)
    for _ in range(3):
        assert ask(first.etag).unchanged
    lab.jobs()
    assert len(ask(first.etag).items) == 2
    lab.settings(rate_limit_per_hour=2)
    with pytest.raises(RateLimited):
        ask(None)


def test_a_run_that_could_not_start_leaves_its_jobs_queued(lab: Lab, github: GitHub) -> None:
    (job,) = lab.jobs()
    (run,) = github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/app", status="queued").items
    assert lab.call("POST", f"/_lab/runs/{run.id}/end")[0] == 204
    over = github.get_run(installation_id=ORG_INSTALLATION, repository="acme/app", run_id=run.id)
    assert over is not None
    assert (over.over, over.conclusion) == (True, "startup_failure")
    seen = github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=job)
    assert seen is not None
    assert (seen.status, seen.run_id) == ("queued", run.id)
    assert github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/app", status="queued").items == ()
    assert github.get_run(installation_id=ORG_INSTALLATION, repository="acme/app", run_id=5) is None
    with pytest.raises(Gone):
        github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/none", status="queued")


def test_a_webhook_that_was_never_sent_is_in_no_list_and_may_still_come(lab: Lab, github: GitHub) -> None:
    lab.call("POST", "/_lab/webhooks", {"vanish_action": "queued"})
    (job,) = lab.jobs()
    assert delivered(github) == []
    (lost,) = [each for each in lab.call("GET", "/_lab/deliveries")[1]["deliveries"] if each["job"] == job]
    assert lab.call("POST", f"/_lab/deliveries/{lost['guid']}/redeliver")[0] == 202
    assert eventually(lambda: lab.hooks.of(job)) == ["queued"]


def test_a_list_of_several_pages_is_whole(github: GitHub) -> None:
    names = {mint(github, f"runner-{number}").runner_name for number in range(205)}

    seen = github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)

    assert {runner.name for runner in seen} == names


@pytest.mark.parametrize(
    ("scope", "installation", "meaning"),
    [
        (Scope.organization("nobody"), ORG_INSTALLATION, Gone),
        (Scope.organization("ada"), USER_INSTALLATION, Gone),
        (Scope.repository("acme/none"), ORG_INSTALLATION, Gone),
        (ACME, 999, Gone),
        (ADA, ORG_INSTALLATION, Forbidden),
    ],
    ids=["no such organisation", "a user is none", "no such repository", "not installed", "another's repository"],
)
def test_a_mint_where_we_are_not_is_refused(
    github: GitHub, scope: Scope, installation: int, meaning: type[Exception]
) -> None:
    with pytest.raises(meaning):
        github.mint(installation_id=installation, scope=scope, name="r", labels=["linux"], runner_group_id=1)


@pytest.mark.parametrize(
    ("name", "labels", "group"),
    [("x" * 65, ["linux"], 1), ("r", [], 1), ("r", ["l"] * 101, 1), ("r", ["linux"], 0)],
    ids=["long name", "no labels", "too many labels", "no group"],
)
def test_a_mint_that_github_does_not_like_is_invalid(github: GitHub, name: str, labels: list[str], group: int) -> None:
    with pytest.raises(Invalid):
        github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name=name, labels=labels, runner_group_id=group)


def test_an_empty_quota_asks_to_wait_for_its_reset(lab: Lab, github: GitHub) -> None:
    lab.settings(rate_limit_per_hour=1)
    mint(github)

    with pytest.raises(RateLimited) as limited:
        mint(github, "runner-2")

    assert 3000 < limited.value.after <= 3602


def registration_token(github: GitHub, *, scope: Scope = ACME) -> Secret:
    installation = ORG_INSTALLATION if scope == ACME else USER_INSTALLATION
    return github.registration_token(installation_id=installation, scope=scope)


@pytest.mark.parametrize("scope", [ACME, ADA], ids=str)
def test_a_registration_token_is_requested_for_its_scope(lab: Lab, github: GitHub, scope: Scope) -> None:
    token = registration_token(github, scope=scope)

    assert lab.call("GET", "/_lab/secrets")[1]["registration_tokens"] == [token.reveal()]
    assert token.reveal() not in f"{token} {token!r}"


@pytest.mark.parametrize(
    ("status", "headers", "meaning"),
    [
        (403, {}, Forbidden),
        (403, {"Retry-After": "17"}, RateLimited),
        (429, {"Retry-After": "17"}, RateLimited),
        (404, {}, Gone),
        (422, {}, Invalid),
        (502, {}, Retryable),
        (201, {}, Retryable),
    ],
    ids=["403", "403 with a wait", "429", "404", "422", "502", "201 without a token"],
)
def test_a_refused_registration_token_raises_the_error_of_its_status(
    lab: Lab, github: GitHub, status: int, headers: dict[str, str], meaning: type[UpstreamError]
) -> None:
    lab.fault(method="POST", path_regex="^/orgs/acme/.*/registration-token$", status=status, headers=headers)

    with pytest.raises(UpstreamError) as refused:
        registration_token(github)

    assert type(refused.value) is meaning
    if isinstance(refused.value, RateLimited):
        assert refused.value.after == 17


def test_a_revoked_token_is_replaced_without_notice(lab: Lab, github: GitHub) -> None:
    mint(github)
    assert lab.call("DELETE", "/_lab/tokens")[1] == {"revoked": 1}

    mint(github, "runner-2")

    assert len(github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)) == 2


def test_a_key_of_another_app_is_forbidden(lab: Lab, app_key: tuple[Secret, Path]) -> None:
    stranger = GitHub(api_url=lab.url, app_id="78", private_key=app_key[0])

    with pytest.raises(Forbidden):
        mint(stranger)

    stranger.close()


def test_a_github_that_went_away_is_retryable(lab: Lab, github: GitHub) -> None:
    mint(github)
    lab.fault(method="*", path_regex="/actions/", reset=True, times=1)

    with pytest.raises(Retryable):
        mint(github, "runner-2")

    assert eventually(lambda: mint(github, "runner-3"))


def delivered(github: GitHub) -> list[DeliverySeen]:
    """Return the first page of the list of deliveries."""
    return list(github.list_deliveries().deliveries)


def test_a_failed_delivery_is_listed_and_its_redelivery_is_an_attempt_of_its_own(lab: Lab, github: GitHub) -> None:
    lab.hooks.statuses.put(503)
    lab.jobs()
    (failed,) = eventually(lambda: delivered(github))
    assert (failed.accepted, failed.event, failed.action) == (False, "workflow_job", "queued")
    assert abs(utcnow() - failed.delivered_at) < timedelta(minutes=1)

    github.redeliver(delivery_id=failed.id)

    again, first = eventually(lambda: found if len(found := delivered(github)) == 2 else None)
    assert first == failed
    assert (again.guid, again.accepted) == (failed.guid, True)
    assert again.id > failed.id
    assert [hook.headers["x-github-delivery"] for hook in lab.hooks.seen] == [failed.guid] * 2
    assert lab.hooks.seen[0].body == lab.hooks.seen[1].body


def test_deliveries_of_several_pages_are_read_newest_first_by_the_cursor(lab: Lab, github: GitHub) -> None:
    lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    lab.jobs(count=205)
    pages = [github.list_deliveries()]
    lab.jobs(count=3)  # what is delivered meanwhile shifts nothing
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(github.list_deliveries(cursor=cursor))
    assert [len(page.deliveries) for page in pages] == [100, 100, 5]
    ids = [each.id for page in pages for each in page.deliveries]
    assert ids == sorted(set(ids), reverse=True)
    assert len({each.guid for page in pages for each in page.deliveries}) == 205


def test_a_cursor_and_a_delivery_that_github_does_not_know_are_refused(github: GitHub) -> None:
    assert github.list_deliveries().deliveries == ()
    with pytest.raises(Invalid):
        github.list_deliveries(cursor="nonsense")
    with pytest.raises(Gone):
        github.redeliver(delivery_id=1)


def test_a_stranger_sees_no_deliveries(lab: Lab, app_key: tuple[Secret, Path]) -> None:
    stranger = GitHub(api_url=lab.url, app_id="78", private_key=app_key[0])

    with pytest.raises(Forbidden):
        stranger.list_deliveries()
    with pytest.raises(Forbidden):
        stranger.redeliver(delivery_id=1)

    stranger.close()


def test_a_suspended_installation_says_so_and_works_again_afterwards(lab: Lab, github: GitHub) -> None:
    mint(github)
    assert lab.call("PATCH", "/_lab/accounts/acme", {"suspended": True})[0] == 200
    with pytest.raises(Suspended):
        mint(github, "runner-2")
    lab.call("DELETE", "/_lab/tokens")
    with pytest.raises(Suspended):
        mint(github, "runner-2")
    assert github.get_installation(installation_id=ORG_INSTALLATION).suspended

    lab.call("PATCH", "/_lab/accounts/acme", {"suspended": False})

    mint(github, "runner-2")


def test_a_removed_installation_is_told_apart_from_a_scope_that_is_not_there(lab: Lab, github: GitHub) -> None:
    mint(github)
    lab.call("PATCH", "/_lab/accounts/acme", {"installed": False})

    for _ in range(2):
        with pytest.raises(NotInstalled):
            mint(github, "runner-2")
    with pytest.raises(NotInstalled):
        github.get_installation(installation_id=ORG_INSTALLATION)


def test_a_renamed_organisation_is_gone_and_its_installation_knows_the_new_name(lab: Lab, github: GitHub) -> None:
    jit = mint(github)
    (job,) = lab.jobs()
    lab.call("PATCH", "/_lab/accounts/acme", {"login": "acme-two"})

    with pytest.raises(Gone):
        mint(github, "runner-2")

    seen = github.get_installation(installation_id=ORG_INSTALLATION)
    assert (seen.account_id, seen.login, seen.suspended) == (1, "acme-two", False)
    renamed = Scope.organization(seen.login)
    (runner,) = github.list_runners(installation_id=ORG_INSTALLATION, scope=renamed)
    assert runner.id == jit.runner_id
    assert lab.next_job(lab.start(jit.config)) == job


def test_a_runner_of_a_renamed_organisation_is_not_taken_for_deregistered(lab: Lab, github: GitHub) -> None:
    jit = mint(github)
    lab.call("PATCH", "/_lab/accounts/acme", {"login": "acme-two"})

    with pytest.raises(Gone):
        github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=jit.runner_id)

    renamed = Scope.organization("acme-two")
    github.delete_runner(installation_id=ORG_INSTALLATION, scope=renamed, runner_id=jit.runner_id)
    assert github.list_runners(installation_id=ORG_INSTALLATION, scope=renamed) == []


@pytest.mark.parametrize("renamed", ["the repository", "its owner"])
def test_a_renamed_repository_is_followed_by_every_call(lab: Lab, github: GitHub, renamed: str) -> None:
    (job,) = lab.jobs(repository="ada/app")
    if renamed == "the repository":
        assert lab.call("PATCH", "/_lab/repositories/ada/app", {"name": "program"})[0] == 200
    else:
        assert lab.call("PATCH", "/_lab/accounts/ada", {"login": "countess"})[0] == 200

    jit = mint(github, scope=ADA)

    found = github.find_runner(installation_id=USER_INSTALLATION, scope=ADA, name="runner-1")
    assert found is not None
    assert found.id == jit.runner_id
    assert github.get_job(installation_id=USER_INSTALLATION, repository="ada/app", job_id=job) is not None
    (run,) = github.list_runs(installation_id=USER_INSTALLATION, repository="ada/app", status="queued").items
    assert run.home.repository in {"ada/program", "countess/app"}
    assert github.list_run_jobs(installation_id=USER_INSTALLATION, repository="ada/app", run=run).items
    assert github.get_run(installation_id=USER_INSTALLATION, repository="ada/app", run_id=run.id) == run
    github.delete_runner(installation_id=USER_INSTALLATION, scope=ADA, runner_id=jit.runner_id)
    assert github.list_runners(installation_id=USER_INSTALLATION, scope=ADA) == []


def test_a_runner_is_made_found_and_listed_by_the_id_of_its_repository(github: GitHub) -> None:
    scope = Scope.parse("repos/ada/former#12")

    jit = mint(github, scope=scope)

    found = github.find_runner(installation_id=USER_INSTALLATION, scope=scope, name=jit.runner_name)
    assert found is not None
    assert [found] == github.list_runners(installation_id=USER_INSTALLATION, scope=ADA)
    assert [found] == github.list_runners(installation_id=USER_INSTALLATION, scope=scope)


def test_a_runner_is_removed_by_the_id_of_its_repository_whatever_that_is_called(github: GitHub) -> None:
    """Another repository has its former name. It answers 404, and still lists its own runners."""
    jit = mint(github, scope=ADA)
    scope = Scope.parse("repos/ada/former#12")

    github.delete_runner(installation_id=USER_INSTALLATION, scope=scope, runner_id=jit.runner_id)

    assert github.list_runners(installation_id=USER_INSTALLATION, scope=ADA) == []


def test_a_token_that_ends_in_mid_call_is_renewed_for_every_call(lab: Lab, github: GitHub) -> None:
    jit = mint(github)
    (job,) = lab.jobs()
    for call in (
        lambda: github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME),
        lambda: github.find_runner(installation_id=ORG_INSTALLATION, scope=ACME, name="runner-1"),
        lambda: github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=job),
    ):
        assert lab.call("DELETE", "/_lab/tokens")[1] == {"revoked": 1}
        assert call()
    lab.call("DELETE", "/_lab/tokens")
    github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=jit.runner_id)


def groups_of(lab: Lab, number: int, **group: object) -> None:
    """Create a runner group of `acme`."""
    assert lab.call("PUT", f"/_lab/accounts/acme/groups/{number}", group)[0] == 200


def test_runner_groups_are_listed_page_by_page_and_for_one_repository(github: GitHub, lab: Lab) -> None:
    for number in range(2, 121):
        groups_of(lab, number, name=f"g{number}", visibility="selected")
    groups_of(lab, 121, name="app's", visibility="selected", repositories=["app"], public=True)

    found = github.list_runner_groups(installation_id=ORG_INSTALLATION, login="acme")

    assert [group.id for group in found] == list(range(1, 122))
    assert (found[0].name, found[0].visibility, found[0].public) == ("Default", "all", False)
    mine = github.list_runner_groups(installation_id=ORG_INSTALLATION, login="acme", visible_to="app")
    assert [(group.id, group.name, group.public) for group in mine] == [(1, "Default", False), (121, "app's", True)]


def test_a_user_has_no_runner_groups_and_a_group_that_is_not_there_takes_no_runner(github: GitHub) -> None:
    with pytest.raises(Gone):
        github.list_runner_groups(installation_id=USER_INSTALLATION, login="ada")
    with pytest.raises(Gone):
        github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=9)


def test_a_runner_gets_no_job_of_a_repository_that_its_group_does_not_admit(github: GitHub, lab: Lab) -> None:
    groups_of(lab, 5, visibility="selected")
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=5)
    (job,) = lab.jobs()
    session = lab.start(jit.config)
    status, _ = lab.call("GET", f"/_runner/sessions/{session}/message?wait=1")
    assert status == 204
    groups_of(lab, 5, visibility="selected", repositories=["app"])
    assert lab.next_job(session) == job


@pytest.mark.parametrize(
    ("sent", "origin"),
    [
        ({}, Origin.HERE),
        ({"event": "pull_request"}, Origin.HERE),
        ({"event": "pull_request", "fork": "eve/app"}, Origin.FORK),
        ({"event": "pull_request_target", "fork": "eve/app"}, Origin.FORK),
    ],
    ids=["push", "own pull request", "a fork's", "a fork's for the base"],
)
def test_a_run_tells_whether_a_fork_sent_it(github: GitHub, lab: Lab, sent: dict[str, str], origin: Origin) -> None:
    (job,) = lab.jobs(**sent)
    run_id = lab.job(job)["run_id"]
    run = github.get_run(installation_id=ORG_INSTALLATION, repository="acme/app", run_id=run_id)
    assert run is not None
    assert run.origin is origin


def mint_in(github: GitHub, *, group: int) -> Jit:
    """Mint for a runner group of `acme`."""
    return github.mint(
        installation_id=ORG_INSTALLATION, scope=ACME, name=f"in-{group}", labels=["linux"], runner_group_id=group
    )


def refuse_mints(lab: Lab, *refusals: dict[str, object], login: str = "acme") -> None:
    """Let GitHub refuse these mints of an account. Earlier refusals end."""
    assert lab.call("PUT", f"/_lab/accounts/{login}/refusals", list(refusals))[0] == 200


def test_mint_is_refused_for_one_runner_group_only(github: GitHub, lab: Lab) -> None:
    groups_of(lab, 7)
    refuse_mints(lab, {"group": 7, "message": "Resource not accessible by integration"})

    with pytest.raises(Forbidden):
        mint_in(github, group=7)
    mint_in(github, group=1)

    refuse_mints(lab)
    mint_in(github, group=7)


def test_removed_installation_may_go_unannounced(lab: Lab, github: GitHub) -> None:
    mint(github)
    lab.call("PATCH", "/_lab/accounts/acme", {"installed": False, "announce": False})

    with pytest.raises(NotInstalled):
        mint(github, "runner-2")
    assert lab.call("GET", "/_lab/stats")[1]["webhooks_in_flight"] == 0


@pytest.mark.parametrize(
    ("because", "meaning", "status", "words"),
    [
        ("ip-allow-list", Forbidden, 403, "IP allow list"),
        ("permission", Forbidden, 403, "(needs organization_self_hosted_runners=write)"),
        ("group-full", Invalid, 422, "Runner group 1 has reached max limit of 10000 runners"),
        ("blocked", Forbidden, 451, "blocked"),
    ],
)
def test_refused_mint_says_why_in_github_words(
    github: GitHub, lab: Lab, because: str, meaning: type[Exception], status: int, words: str
) -> None:
    refuse_mints(lab, {"because": because})

    with pytest.raises(meaning) as refused:
        mint(github)

    assert isinstance(refused.value, UpstreamError)
    assert refused.value.status == status
    assert words in (refused.value.words or "")
    assert words not in str(refused.value)


def test_unknown_installation_is_told_of(lab: Lab, app_key: tuple[Secret, Path]) -> None:
    left: list[int] = []
    github = GitHub(api_url=lab.url, app_id="77", private_key=app_key[0], left=left.append)
    mint(github)
    lab.call("PATCH", "/_lab/accounts/acme", {"installed": False, "announce": False})
    lab.call("DELETE", "/_lab/tokens")

    with pytest.raises(NotInstalled):
        mint(github, "runner-2")

    assert left == [ORG_INSTALLATION]
    github.close()
