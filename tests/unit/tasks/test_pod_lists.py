"""The share of a pool in the list of a tick equals the listed Pods, for every content of a Pod."""

from __future__ import annotations

import zlib
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.claims.pod_view import PodView
from tasks.pools.observe import is_younger
from tasks.pools.pod_lists import Listed, pack, unpack

NUMBERS = st.integers(0, 2**53)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
OF_TYPE = {"str": st.text(), "int": NUMBERS, "bool": st.booleans(), "datetime": TIMES}


def values_of(annotation: str) -> st.SearchStrategy[object]:
    """Return the values of a field by its annotation, such as `datetime | None`."""
    known, _, nothing = annotation.partition(" | ")
    return OF_TYPE[known] | st.none() if nothing else OF_TYPE[known]


PODS = st.lists(st.builds(PodView, **{each.name: values_of(str(each.type)) for each in fields(PodView)}), max_size=5)


@given(PODS)
def test_unpack_returns_the_pods_that_were_packed(pods: list[PodView]) -> None:
    assert unpack(pack(pods)) == pods


def test_a_list_of_a_release_with_other_fields_is_refused() -> None:
    content = orjson.loads(zlib.decompress(pack([])))
    content["fields"].append("colour")
    with pytest.raises(ValueError, match="another version"):
        unpack(zlib.compress(orjson.dumps(content)))


@pytest.mark.parametrize(("made", "younger"), [(-1, False), (5, True), (3600, False)])
def test_row_is_younger_than_a_list_only_if_it_was_made_between_the_list_and_now(made: int, younger: bool) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    row = cast("Any", SimpleNamespace(uid="u", terminal_at=None, created_at=began + timedelta(seconds=made)))

    found = is_younger(row, {}, than=Listed((), began, shared=True), now=began + timedelta(seconds=10))

    assert found is younger
