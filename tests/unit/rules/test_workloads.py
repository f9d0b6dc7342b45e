"""Names of Pods, and the workload that a name shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.workloads import Workload, pod_name, stateful_set_of, workload_of

POOLS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True)
SUFFIXES = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)


@given(POOLS, SUFFIXES, st.sampled_from(Workload))
def test_the_name_of_a_pod_shows_its_workload(pool: str, suffix: str, workload: Workload) -> None:
    name = pod_name(workload, pool=pool, suffix=suffix)
    assert workload_of(name) is workload
    assert stateful_set_of(name) == (f"{pool}-{suffix}" if workload is Workload.STATEFUL_SET else None)


@pytest.mark.parametrize(
    "name", ["small-0000000a", "a-0000000a-00000000", "small-0", "small-0000000a-1", "small-0000000A-0"]
)
def test_other_names_are_no_pods_of_stateful_sets(name: str) -> None:
    assert workload_of(name) is Workload.POD
