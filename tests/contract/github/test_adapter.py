"""The adapter against a GitHub in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from github_adapters.client import GitHub, Jit, Quota
from ostler.errors import Busy, Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable
from ostler.secrets import Secret
from rules.scopes import Scope
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, USER_INSTALLATION, Lab, eventually

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


def test_an_unknown_job_is_none(github: GitHub) -> None:
    assert github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=5) is None


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


def test_the_quota_of_each_answer_is_observed(lab: Lab) -> None:
    quotas: list[Quota] = []
    client = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key, observe=quotas.append)

    mint(client)

    client.close()
    (quota,) = quotas
    assert (quota.installation_id, quota.resource) == (ORG_INSTALLATION, "actions_runner_registration")
    assert quota.limit - quota.remaining == 1


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
