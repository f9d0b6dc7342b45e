"""The value of the claim annotation: every written value is parsed, and any other value is ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.stamps import INITIAL, MAX_NUMBER, StampValue, format_stamp, owned_by, parse

NUMBERS = st.integers(0, MAX_NUMBER)
VALUES = st.builds(StampValue, claim_id=NUMBERS, n=NUMBERS)


@given(value=VALUES)
def test_what_is_written_is_read_back(value: StampValue) -> None:
    assert parse(format_stamp(value)) == value


@given(text=st.text(alphabet="0123456789.-+_ \n\u0661") | st.text())
def test_what_parses_is_exactly_what_we_would_have_written(text: str) -> None:
    value = parse(text)

    assert value is None or format_stamp(value) == text


@pytest.mark.parametrize(
    "text",
    [
        *[None, "", ".", "1", "1.", ".1", "1.2.3", "01.2", "1.02", "-1.2", "+1.2", " 1.2", "1.2\n", "1_0.2"],
        *["\u0661.2", "9223372036854775808.0", "9" * 5000 + ".1"],
    ],
)
def test_anything_else_is_no_stamp_and_nobodys(text: str | None) -> None:
    assert parse(text) is None
    assert not owned_by(text, 1)


def test_the_initial_value_is_nobodys() -> None:
    assert parse(INITIAL) == StampValue(claim_id=0, n=0)
    assert not owned_by(INITIAL, 0)


@given(value=VALUES, claim_id=st.integers(1, MAX_NUMBER))
def test_a_stamp_is_owned_by_the_claim_that_wrote_it_and_by_no_other(value: StampValue, claim_id: int) -> None:
    assert owned_by(format_stamp(StampValue(claim_id=claim_id, n=value.n)), claim_id)
    assert owned_by(format_stamp(value), claim_id) == (value.claim_id == claim_id)


@pytest.mark.parametrize(("claim_id", "n"), [(-1, 0), (0, -1), (MAX_NUMBER + 1, 0), (0, MAX_NUMBER + 1)])
def test_numbers_that_no_column_holds_are_refused(claim_id: int, n: int) -> None:
    with pytest.raises(ValueError, match="two numbers"):
        StampValue(claim_id=claim_id, n=n)
