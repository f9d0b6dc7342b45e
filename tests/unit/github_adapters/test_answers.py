"""Meaning of GitHub's answers: limits in contrast to refusals, and plausible quotas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
import urllib3

from github_adapters.calls.answers import EVERYTHING, Quota, limit_of, quota_of, refusal, refused_token
from github_adapters.calls.http import Answer
from ostler.errors import Forbidden, Gone, NotInstalled, RateLimited, Suspended

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
RESET = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW.timestamp()) + 30)}
SECONDARY = b'{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}'
ABUSE = (
    b'{"message": "You have triggered an abuse detection mechanism. Please wait a few minutes before you try again."}'
)
SUSPENDED = b'{"message": "This installation has been suspended"}'
REGISTRATION = "actions_runner_registration"
NO_PERMISSION = b'{"message": "Resource not accessible by integration"}'


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status=status, headers=urllib3.HTTPHeaderDict(headers or {}), body=body)


@pytest.mark.parametrize(
    ("given", "after", "quota"),
    [
        (answer(403, headers={"Retry-After": "17"}), 17, EVERYTHING),
        (answer(429, headers={"Retry-After": "17"}), 17, EVERYTHING),
        (answer(403, headers={"Retry-After": "17", **RESET}), 17, EVERYTHING),
        (answer(403, headers={"Retry-After": "soon"}), 60, EVERYTHING),
        (answer(429), 60, EVERYTHING),
        (answer(403, SECONDARY), 60, EVERYTHING),
        (answer(403, ABUSE), 60, EVERYTHING),
        (answer(403, SECONDARY, {"X-RateLimit-Remaining": "12"}), 60, EVERYTHING),
        (answer(403, headers=RESET), 31, "core"),
        (answer(429, headers={"X-RateLimit-Resource": REGISTRATION, **RESET}), 31, REGISTRATION),
        (answer(403, headers={"X-RateLimit-Remaining": "0"}), 60, "core"),
    ],
)
def test_a_limit_says_how_long_and_for_which_calls(given: Answer, after: float, quota: str) -> None:
    limit = limit_of(given, NOW)

    assert limit is not None
    assert (limit.after, limit.quota) == (after, quota)
    error = refusal(given, what="mint", now=NOW)
    assert isinstance(error, RateLimited)
    assert (error.after, error.paced) == (after, False)


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (answer(401), Forbidden),
        (answer(403, NO_PERMISSION), Forbidden),
        (answer(403, NO_PERMISSION, {"X-RateLimit-Remaining": "12"}), Forbidden),
        (answer(403, SUSPENDED), Suspended),
        (answer(404), Gone),
        (answer(404, headers={"X-RateLimit-Remaining": "0"}), Gone),
        (answer(301), Gone),
    ],
)
def test_a_refusal_that_is_no_limit_is_told_apart(given: Answer, meaning: type[Exception]) -> None:
    assert limit_of(given, NOW) is None
    assert type(refusal(given, what="mint", now=NOW)) is meaning


@pytest.mark.parametrize(
    ("given", "meaning"),
    [(answer(404), NotInstalled), (answer(403, SUSPENDED), Suspended), (answer(403), Forbidden)],
)
def test_a_refused_token_says_what_became_of_the_installation(given: Answer, meaning: type[Exception]) -> None:
    assert type(refused_token(given, now=NOW)) is meaning


@pytest.mark.parametrize(
    ("headers", "quota"),
    [
        (
            {"Limit": "5000", "Remaining": "7", "Reset": "1772359230", "Resource": "actions_runner_registration"},
            Quota(resource="actions_runner_registration", limit=5000, remaining=7, reset=1772359230),
        ),
        (
            {"Limit": "60", "Remaining": "0", "Reset": "9"},
            Quota(resource="core", limit=60, remaining=0, reset=9),
        ),
        ({"Limit": "5000", "Remaining": "7"}, None),
        ({"Limit": "many", "Remaining": "-1", "Reset": "1e9"}, None),
        ({}, None),
        (
            {"Limit": "1", "Remaining": "1", "Reset": "9", "Resource": "x" * 500},
            Quota(resource="core", limit=1, remaining=1, reset=9),
        ),
    ],
)
def test_a_quota_is_believed_when_it_makes_sense(headers: dict[str, str], quota: Quota | None) -> None:
    given = answer(200, headers={f"X-RateLimit-{name}": value for name, value in headers.items()})

    assert quota_of(given) == quota
