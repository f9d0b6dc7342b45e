"""The specification of a pool in its row: as JSON, and in the columns that an older release writes alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from models.pools import pool_mirror
from models.pools.pool_mirror import spec_of
from models.state.pools import Pool
from rules.pools.pool_spec import PoolSpec
from tests.rows import pool_spec
from tests.unit.k8s_adapters.test_template_hashes import RECORDED

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POOL = pool_spec(start_timeout=300.0, generation=7)


def row(pool: PoolSpec, **changed: Any) -> Pool:
    """Return the row that the mirror writes for a pool, with these changes of its columns."""
    values = {"problem": None, "deleted_at": None, "created_at": NOW, "uid": pool.uid, "namespace": pool.namespace}
    written = pool_mirror._written(pool_mirror._values(pool))
    return cast("Pool", SimpleNamespace(**values | written | {"spec": json.loads(written["spec"])} | changed))


def read(name: str) -> PoolSpec:
    """Return one of the recorded pools as the mirror gets it."""
    metadata = {"name": "small", "namespace": "runners", "uid": "u-1"}
    spec = {"image": "runner:1", "runnerLabels": ["linux"], **RECORDED[name][0]}
    return replace(read_pool({"metadata": metadata, "spec": spec}), start_timeout=300.0, problem=None)


@pytest.mark.parametrize("name", RECORDED)
def test_row_of_a_pool_contains_its_whole_specification(name: str) -> None:
    assert spec_of(row(read(name))) == read(name)


@pytest.mark.parametrize("name", RECORDED)
def test_row_of_an_older_release_has_what_its_columns_contain(name: str) -> None:
    pool = read(name)
    old = spec_of(row(pool, spec=None))
    found, expected = pool_mirror._values(old), pool_mirror._values(pool)
    assert {column for column in found if found[column] != expected[column]} <= {"spec", "volume_shape"}
    assert (old.charged_millicores, old.charged_mib) == (pool.charged_millicores, pool.charged_mib)
    assert (old.runner_group, old.registers_in, old.private_only) == (
        pool.runner_group,
        pool.registers_in,
        pool.private_only,
    )


@pytest.mark.parametrize("unreadable", [{"workload": "LaterKind"}, {"volumes": 3}, {"name": None}])
def test_columns_replace_the_json_that_a_later_release_wrote(unreadable: dict[str, Any]) -> None:
    written = row(POOL)
    assert written.spec is not None
    found = spec_of(row(POOL, spec=written.spec | unreadable))
    assert (found.name, found.replicas, found.workload) == (POOL.name, POOL.replicas, POOL.workload)


def test_columns_that_an_older_release_wrote_later_replace_the_json() -> None:
    newer = replace(POOL, generation=8, replicas=9, max_surge=2, paused=True)
    found = spec_of(row(newer, spec=row(POOL).spec))
    assert (found.generation, found.replicas, found.max_surge, found.paused) == (8, 9, 2, True)


def test_fields_of_a_newer_release_are_ignored() -> None:
    assert spec_of(row(POOL, spec={**cast("dict[str, Any]", row(POOL).spec), "later": [1]})) == POOL


def test_problem_generation_and_template_are_those_of_the_row() -> None:
    found = spec_of(row(POOL, problem="no image", generation=9, template_hash="other"))
    assert found == replace(POOL, problem="no image", generation=9, template_hash="other")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"draining": True, "draining_since": NOW}, NOW),
        ({"draining": True, "draining_since": NOW, "deleted_at": NOW + timedelta(hours=1)}, NOW),
        ({"deleted_at": NOW + timedelta(hours=1)}, NOW + timedelta(hours=1)),
        ({"draining": True}, NOW),
        ({}, None),
    ],
)
def test_pool_that_drains_or_is_gone_is_terminating(columns: dict[str, Any], expected: datetime | None) -> None:
    assert spec_of(row(POOL, **columns)) == replace(POOL, deleted_at=expected)
