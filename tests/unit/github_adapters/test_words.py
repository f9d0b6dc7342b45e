"""GitHub's message of a refusal: stored in one line, never obeyed, never with a credential."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from github_adapters.calls.answers import refusal, refused_token
from github_adapters.calls.http import Answer
from github_adapters.calls.words import LONGEST, words_of
from ostler.errors import Forbidden, Invalid, UpstreamError
from ostler.server_words import HIDDEN

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
NO_PERMISSION = "Resource not accessible by integration"
IP_LIST = "the `acme` organization has an IP allow list enabled, and your IP address is not permitted"
FULL = "Runner group 1 has reached max limit of 10000 runners"


def answer(status: int, message: object, **headers: str) -> Answer:
    body = json.dumps({"message": message, "documentation_url": "https://docs.github.com/rest"}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, headers=urllib3.HTTPHeaderDict(named), body=body)


@pytest.mark.parametrize(
    ("status", "message", "meaning"),
    [(403, IP_LIST, Forbidden), (403, NO_PERMISSION, Forbidden), (422, FULL, Invalid), (451, "Blocked", Forbidden)],
)
def test_refusal_carries_github_words_beside_its_text(status: int, message: str, meaning: type[UpstreamError]) -> None:
    error = refusal(answer(status, message), what="mint", now=NOW)

    assert type(error) is meaning
    assert (error.status, error.words) == (status, message)
    assert message not in f"{error} {error!r} {error.args}"


def test_refused_token_carries_github_words() -> None:
    assert refused_token(answer(403, IP_LIST), now=NOW).words == IP_LIST


def test_missing_permission_is_named() -> None:
    given_answer = answer(403, NO_PERMISSION, x_accepted_github_permissions="organization_self_hosted_runners=write")

    assert words_of(given_answer) == f"{NO_PERMISSION} (needs organization_self_hosted_runners=write)"


@pytest.mark.parametrize("header", ["<b>x</b>", "a=write\x1b[31m", "a=write" + ",a=write" * 100, ""])
def test_permissions_that_are_none_are_left_out(header: str) -> None:
    assert words_of(answer(403, NO_PERMISSION, x_accepted_github_permissions=header)) == NO_PERMISSION


@pytest.mark.parametrize("body", [b"", b"<html>Proxy says no</html>", b"[1]", b'{"message": 5}', b'{"message": " "}'])
def test_answer_without_words_has_none(body: bytes) -> None:
    assert words_of(Answer(status=403, headers=urllib3.HTTPHeaderDict(), body=body)) is None


def test_words_are_one_line_without_characters_that_a_terminal_obeys() -> None:
    found = words_of(answer(403, "no\r\nentry\x1b]0;pwned\x07 \u202egnp.exe\ud800"))

    assert found == "no entry\ufffd]0;pwned\ufffd \ufffdgnp.exe?"


def test_long_words_are_cut() -> None:
    found = words_of(answer(403, "word " * 10_000))

    assert found is not None
    assert len(found) == LONGEST
    assert found.endswith("…")


def _credentials() -> list[str]:
    drawn = secrets.token_hex(20)
    return [f"ghs_{drawn}", f"github_pat_{drawn}", f"eyJ{drawn[:9]}.eyJ{drawn[9:20]}.{drawn}", drawn]


@pytest.mark.parametrize("kind", range(4), ids=["installation token", "personal token", "JWT", "long run"])
def test_words_never_echo_a_credential(kind: int) -> None:
    secret = _credentials()[kind]

    found = words_of(answer(403, f"Bad credentials {secret}, sorry"))

    assert found == f"Bad credentials {HIDDEN}, sorry"


def test_credential_at_the_cut_is_hidden_whole() -> None:
    secret = _credentials()[0]

    found = words_of(answer(403, "x " * (LONGEST // 2 - 5) + secret))

    assert found is not None
    assert secret[:12] not in found


@given(st.text(max_size=400))
def test_any_words_fit_on_a_line(message: str) -> None:
    found = words_of(answer(403, message)) or ""

    assert len(found) <= LONGEST
    assert len(found.splitlines()) <= 1
    assert not any(ord(each) < 32 or 0x7F <= ord(each) < 0xA0 for each in found)
