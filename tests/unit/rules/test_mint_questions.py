"""Scope of a refused mint: it blocks the same request, and no other."""

from __future__ import annotations

import pytest

from rules.claims.mint_questions import (
    BUSY_RUNNER,
    INVALID_RUNNER,
    LIMIT_REACHED,
    NO_INSTALLATION,
    NO_RUNNER,
    NO_RUNNERS,
    PACE_REACHED,
    QUOTA_REACHED,
    asked_for,
    cure_of_refusal,
    describe,
    group_key,
    is_full,
    why_postponed,
)


@pytest.mark.parametrize(
    ("scope", "group", "full", "found"),
    [
        ("orgs/acme", 1, False, ("account", "7")),
        ("orgs/acme", "Default", False, ("account", "7")),
        ("orgs/acme", 2, False, ("runner_group", "5/2")),
        ("orgs/acme", "gpu", False, ("runner_group", "5/'gpu'")),
        ("orgs/acme", 1, True, ("runner_group", "5/1")),
        ("repos/acme/app", 1, False, ("repository", "acme/app")),
        ("repos/acme/app#11", 1, True, ("repository", "acme/app")),
    ],
)
def test_refusal_holds_what_was_asked_for(scope: str, group: int | str, full: bool, found: tuple[str, str]) -> None:
    asked = asked_for(scope=scope, repository="acme/app", account_id=7, installation_id=5, group=group, full=full)

    assert asked == found


def test_group_named_like_a_number_has_a_key_of_its_own() -> None:
    assert group_key(5, 2) != group_key(5, "2")


@pytest.mark.parametrize(
    ("kind", "key", "told"),
    [
        ("account", "7", "account 7"),
        ("repository", "acme/app", "repository acme/app"),
        ("runner_group", "5/'a/b'", "runner group 'a/b' of installation id 5"),
        ("installation", "503", "installation id 503"),
    ],
)
def test_backoff_is_described(kind: str, key: str, told: str) -> None:
    assert describe(kind, key) == told


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ("Runner group 1 has reached max limit of 10000 runners", True),
        ("Invalid request. labels must be 1 to 100 strings.", False),
        (None, False),
    ],
)
def test_full_group_is_known_by_github_words(words: str | None, full: bool) -> None:
    assert is_full(words) is full


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("the `acme` organization has an IP allow list enabled", "add the address"),
        ("Resource not accessible by integration (needs organization_self_hosted_runners=write)", "GitHub names"),
        ("Resource not accessible by integration", "larger runners"),
        ("Runner group 1 has reached max limit of 10000 runners", "another runnerGroup"),
        ("Not Found", "check that the App is installed"),
    ],
)
def test_cure_follows_github_words(words: str, cure: str) -> None:
    assert cure in cure_of_refusal(f"account 7: GitHub answers 403 to a mint: {words}")


@pytest.mark.parametrize(
    ("detail", "cure"),
    [
        (f"{NO_RUNNER}: the server did not answer", "status page of GitHub"),
        (f"{NO_RUNNER}: the server answered 503", "status page of GitHub"),
        (f"installation 5: {NO_RUNNERS} (the server did not answer)", "`ostler gates`"),
        (f"installation 5: {QUOTA_REACHED}", "No action is needed"),
        (PACE_REACHED, "raise OSTLER_GITHUB_MINTS_PER_MINUTE"),
        ("installation 5: the App's installation is suspended", "Unsuspend the installation"),
        ("the App is no longer installed for this account or repository", "Install the App"),
        (NO_INSTALLATION, "Install the App"),
        (BUSY_RUNNER, "remove the runner"),
        (f"{INVALID_RUNNER}: labels", "runnerLabels"),
    ],
)
def test_cure_follows_the_cause_of_the_hold(detail: str, cure: str) -> None:
    assert cure in cure_of_refusal(detail)
    assert "check that the App is installed" not in cure_of_refusal(detail)


def test_a_default_group_is_no_full_one_unless_that_is_said() -> None:
    asked = asked_for(scope="orgs/acme", repository="acme/app", account_id=7, installation_id=5, group=1)
    assert asked == ("account", "7")


@pytest.mark.parametrize(
    ("mints", "attempt", "limit"),
    [
        (True, "refused", QUOTA_REACHED),
        (True, None, PACE_REACHED),
        (True, "open", LIMIT_REACHED),
        (False, "minted", LIMIT_REACHED),
        (False, None, LIMIT_REACHED),
    ],
)
def test_limit_that_postponed_a_step_is_told_as_far_as_the_rows_show_it(
    mints: bool, attempt: str | None, limit: str
) -> None:
    assert why_postponed(mints=mints, attempt=attempt) == limit
