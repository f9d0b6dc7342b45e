"""Strategies of pools and their Pods, with only those facts that a reconcile can observe together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from rules.pools.pod_security import PodSecurity, refusal
from rules.pools.pod_states import PodState
from rules.pools.pool_plan import ObservedPod, PlanFacts
from tests.rows import pool_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SPEC = pool_spec()
REFUSED = refusal(PodSecurity.PRIVILEGED, allowed=PodSecurity.BASELINE, namespace="a", elevated_namespace="a")
"""Problem of a pool that the cluster does not allow."""


def pool(
    replicas: int, *, leaving: bool = False, forbidden: bool = False, suspended: bool = False, **what: Any
) -> PlanFacts:
    """Return a pool for a plan. `what` has fields of its specification, and facts beside it."""
    facts = {each.name: what.pop(each.name) for each in fields(PlanFacts) if each.name in what}
    problem, deleted_at = REFUSED if forbidden else None, NOW if leaving else None
    spec = replace(SPEC, replicas=replicas, paused=suspended, problem=problem, deleted_at=deleted_at, **what)
    return PlanFacts(pool=spec, **{"web_beats": True, **facts})


PLACES: tuple[Mapping[str, bool], ...] = (
    *[{}] * 6,
    {"cordoned": True},
    {"seen": False},
    {"terminating": True},
    {"terminating": True, "cordoned": True},
    {"terminating": True, "overdue": True},
    {"node_gone": True},
    {"node_gone": True, "seen": False},
    {"node_gone": True, "terminating": True, "overdue": True},
)
"""Facts about the node and the deletion of a Pod that has a UID. Half of the Pods run undisturbed."""

REGISTERED: tuple[Mapping[str, Any], ...] = (
    *[{"state": PodState.WARM}] * 2,
    *[{"state": PodState.BUSY}] * 2,
    {"state": PodState.BUSY, "marked": True},
)
REGISTERING: tuple[Mapping[str, Any], ...] = (
    {"state": PodState.RESERVED},
    {"state": PodState.BUSY},
    {"state": PodState.BUSY, "marked": True},
)
"""States of Pods with a registration claim, after and before GitHub showed the runner as online."""


def _observed(*given: Mapping[str, Any], **facts: Any) -> ObservedPod:
    return ObservedPod(**{key: value for each in (*given, facts) for key, value in each.items()})


places = st.sampled_from(PLACES)
moments = st.integers(0, 2000).map(lambda seconds: NOW - timedelta(seconds=seconds))
always = {"id": st.integers(0, 10**6), "created_at": moments, "generation": moments}

unborn = st.builds(
    _observed, state=st.just(PodState.STARTING), unborn=st.just(value=True), seen=st.just(value=False), **always
)
starting = st.builds(
    _observed,
    places,
    st.sampled_from([{}, {}, {"poller_exit_code": 1}, {"runner_exit_code": 22}, {"unschedulable": True}]),
    state=st.just(PodState.STARTING),
    stale=st.booleans(),
    waiting=st.sampled_from([None, "ErrImagePull", "ErrImageNeverPull", "ContainerCreating"]),
    **always,
)
unregistered = st.builds(
    _observed,
    places,
    state=st.sampled_from([state for state in PodState if state is not PodState.STARTING]),
    stale=st.booleans(),
    **always,
)
registering = st.builds(
    _observed, places, st.sampled_from(REGISTERING), registering=st.just(value=True), stale=st.booleans(), **always
)


def registered_in(places: st.SearchStrategy[Mapping[str, bool]]) -> st.SearchStrategy[ObservedPod]:
    """Return a strategy of Pods whose persistent runner GitHub showed as online in the last two hours."""
    return st.builds(
        _observed,
        places,
        st.sampled_from(REGISTERED),
        registered_at=st.sampled_from([NOW - timedelta(minutes=minutes) for minutes in (1, 59, 61, 120)]),
        stale=st.booleans(),
        **always,
    )


registered = registered_in(places)


def pods_of(*kinds: st.SearchStrategy[ObservedPod], max_size: int = 60) -> st.SearchStrategy[list[ObservedPod]]:
    """Return a strategy of the Pods of one pool. Without `kinds`, the Pods are of all kinds.

    Hypothesis prefers short lists. Half of the lists therefore have a third of `max_size` Pods at least.
    """
    pods = st.one_of(*(kinds or (unborn, starting, starting, unregistered, unregistered, registering, registered)))
    return st.lists(pods, max_size=max_size, unique_by=id_of) | st.lists(
        pods, min_size=max_size // 3, max_size=max_size, unique_by=id_of
    )


def id_of(pod: ObservedPod) -> int:
    """Return the id of a Pod, which no other Pod of the pool has."""
    return pod.id


seldom = st.sampled_from([False, False, False, False, True])
pools_of = st.builds(
    pool,
    replicas=st.integers(0, 60),
    leaving=seldom,
    forbidden=seldom,
    suspended=seldom,
    max_unavailable_percent=st.integers(1, 100),
    max_surge=st.none() | st.integers(0, 5),
    max_concurrent=st.integers(1, 50),
    web_beats=st.booleans(),
    gate_open=seldom.map(lambda closed: not closed),
    max_runner_age=st.none() | st.just(3600.0),
)
