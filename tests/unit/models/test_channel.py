"""Notices of the channel: an unknown notice is ignored and is never an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.db.channel import Beat, Minted, Superseded, parse


@pytest.mark.parametrize(
    ("payload", "notice"),
    [
        ("minted 7 uid", Minted(7, "uid")),
        ("superseded uid web poll", Superseded("uid", "web", "poll")),
        ("beat web 3", Beat("web", 3)),
        ("minted x uid", None),
        ("minted 7", None),
        ("of a later version 1", None),
        ("", None),
    ],
)
def test_a_notice_is_read(payload: str, notice: Minted | Superseded | Beat | None) -> None:
    assert parse(payload) == notice


@given(st.text())
def test_no_payload_fails(payload: str) -> None:
    parse(payload)


@given(st.sampled_from(["minted", "beat web", "minted ²"]), st.text())
def test_no_number_fails(start: str, rest: str) -> None:
    parse(f"{start} {rest}")
