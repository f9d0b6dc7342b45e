"""Pod Security levels of pools: what the cluster allows, and jobs of forks."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from rules.pools.pod_security import PodSecurity, admits_forks, is_refusal, refusal
from rules.pools.pod_template import refusals

RESTRICTED, BASELINE, PRIVILEGED = PodSecurity


@pytest.mark.parametrize(("asked", "allowed"), list(itertools.product(PodSecurity, PodSecurity)))
def test_pool_gets_its_level_only_up_to_the_allowed_level(asked: PodSecurity, allowed: PodSecurity) -> None:
    refused = refusal(asked, allowed=allowed, namespace="up", elevated_namespace="up")
    order = [RESTRICTED, BASELINE, PRIVILEGED]
    assert (refused is None) == (order.index(asked) <= order.index(allowed))
    assert refused is None or is_refusal(refused)


@pytest.mark.parametrize("elevated_namespace", ["up", None])
def test_level_above_restricted_is_refused_outside_of_its_namespace(elevated_namespace: str | None) -> None:
    there = partial(refusal, allowed=PRIVILEGED, namespace="runners", elevated_namespace=elevated_namespace)
    assert there(RESTRICTED) is None
    refused = there(BASELINE)
    assert refused is not None
    assert is_refusal(refused)


def test_refusal_names_the_namespace_of_higher_levels() -> None:
    refused = refusal(BASELINE, allowed=BASELINE, namespace="runners", elevated_namespace="up")
    assert "in namespace up only" in str(refused)


@pytest.mark.parametrize("level", list(PodSecurity))
@pytest.mark.parametrize(("once", "twice"), list(itertools.product((False, True), repeat=2)))
def test_forks_need_two_fields_above_restricted(level: PodSecurity, once: bool, twice: bool) -> None:
    admitted = admits_forks(level, allow_forks=once, elevated_forks=twice)
    assert admitted == (once if level is RESTRICTED else once and twice)


FIRST = {
    "capabilities": BASELINE,
    "runAsNonRoot": BASELINE,
    "privileged": PRIVILEGED,
    "procMount": PRIVILEGED,
}
"""The lowest level that allows a field of a container's securityContext."""


@pytest.mark.parametrize("field", list(FIRST))
@pytest.mark.parametrize("level", list(PodSecurity))
def test_overlay_may_set_a_security_field_only_at_its_level(field: str, level: PodSecurity) -> None:
    overlay = {"spec": {"containers": [{"name": "docker", "securityContext": {field: True}}]}}
    assert (refusals(overlay, level=level) == ()) == (level.rank >= FIRST[field].rank)


@pytest.mark.parametrize("level", list(PodSecurity))
def test_root_is_allowed_above_restricted_and_not_in_the_runner(level: PodSecurity) -> None:
    root = {"securityContext": {"runAsUser": 0}}
    assert (refusals({"spec": {"containers": [{"name": "docker", **root}]}}, level=level) == ()) == level.elevated
    assert refusals({"spec": {"containers": [{"name": "runner", **root}]}}, level=level) != ()


@pytest.mark.parametrize("level", list(PodSecurity))
@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"hostPID": True},
        {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]},
        {"containers": [{"name": "poller", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "docker", "securityContext": {"allowPrivilegeEscalation": True}}]},
    ],
)
def test_no_level_allows_access_to_the_node_or_to_the_poller(spec: dict[str, object], level: PodSecurity) -> None:
    assert refusals({"spec": spec}, level=level) != ()
