"""Pods of pools above the Pod Security level restricted: only the containers of jobs get more rights."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.runners import build_pod
from rules.pools.pod_security import PodSecurity
from rules.pools.pool_spec import PoolSpec

RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CALLED = {"dispatch_url": "http://web", "audience": "ostler"}


def pool(security: dict[str, Any] | None = None, **spec: Any) -> PoolSpec:
    body = {"image": "runner:1", "runnerLabels": ["a"], **spec}
    if security is not None:
        body["security"] = security
    return read_pool({"metadata": {"uid": "u", "name": "small", "namespace": "up"}, "spec": body})


def contexts(seen: PoolSpec) -> dict[str, Any]:
    pod = build_pod(pool=seen, name="small-0", attempt="a", **CALLED)
    return {each["name"]: each["securityContext"] for each in pod["spec"]["containers"]}


def test_level_alone_weakens_no_container() -> None:
    assert contexts(pool({"podSecurity": "privileged"})) == {"poller": RESTRICTED, "runner": RESTRICTED}


def test_only_the_runner_may_gain_privileges() -> None:
    found = contexts(pool({"podSecurity": "baseline", "allowPrivilegeEscalation": True}))
    assert found == {"poller": RESTRICTED, "runner": {"allowPrivilegeEscalation": True}}


@pytest.mark.parametrize("escalates", [False, True])
def test_container_of_the_overlay_gets_what_the_pool_says(escalates: bool) -> None:
    docker = {"name": "docker", "image": "d", "securityContext": {"privileged": True}}
    overlay = {"spec": {"containers": [docker, {"name": "plain", "image": "p"}]}}
    security = {"podSecurity": "privileged", "allowPrivilegeEscalation": escalates}
    found = contexts(pool(security, podTemplate=overlay))
    assert found["docker"] == {"allowPrivilegeEscalation": True, "privileged": True}
    assert found["plain"] == ({"allowPrivilegeEscalation": True} if escalates else RESTRICTED)
    assert found["poller"] == RESTRICTED


def test_overlay_of_a_restricted_pool_weakens_nothing() -> None:
    overlay = {"spec": {"containers": [{"name": "plain", "image": "p"}]}}
    assert set(map(str, contexts(pool(podTemplate=overlay)).values())) == {str(RESTRICTED)}


def test_escalation_without_a_level_is_a_problem_of_the_pool() -> None:
    found = pool({"allowPrivilegeEscalation": True})
    assert "needs spec.security.podSecurity" in str(found.problem)
    assert contexts(found)["runner"] == RESTRICTED


@pytest.mark.parametrize("level", ["root", None, 3])
def test_unknown_level_is_a_problem_and_counts_as_the_weakest(level: Any) -> None:
    found = pool({"podSecurity": level})
    assert found.problem is not None
    assert found.pod_security is PodSecurity.PRIVILEGED


def test_defaults_of_security_do_not_change_the_hash_of_older_pools() -> None:
    defaults = {"podSecurity": "restricted", "allowPrivilegeEscalation": False, "allowForks": False}
    assert pod_hash(pool(defaults), **CALLED) == pod_hash(pool(), **CALLED)
    hashes = {pod_hash(pool({"podSecurity": each}), **CALLED) for each in PodSecurity}
    assert len(hashes) == len(PodSecurity)
