"""Deploys of the project's own chart, rendered by the real Helm, change nothing for busy Pods."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploys.addresses import blocks
from deploys.deploy_network import ANY_OTHER, Question, judge_network
from deploys.deploy_plan import Deploy, Live, judge
from deploys.deploys import Danger
from deploys.manifests import POOL_KIND, POOL_LABEL, Manifests, read_manifests
from lab.helm import CHART, render

RUNNERS = frozenset({"ostler-runners"})


def deployed(
    values: dict[str, Any] | None = None, *, chart: Path = CHART, pools: tuple[str, ...] = ("linux", "arm")
) -> Manifests:
    """Return the manifests that the chart renders to, with these pools."""
    specs = {name: {"image": "runner:1", "runnerLabels": [name]} for name in pools}
    many = {"postgres": {"maxConnections": 500}, "pools": specs, **(values or {})}
    return read_manifests(render(chart, many), namespace="ostler")


def newer_chart(folder: Path) -> Path:
    """Return the chart with the versions of a later release."""
    made = folder / "chart"
    shutil.copytree(CHART, made)
    file = made / "Chart.yaml"
    said = re.sub(r"(?m)^version:.*$", "version: 9.9.9", file.read_text())
    file.write_text(re.sub(r"(?m)^appVersion:.*$", 'appVersion: "9.9.9"', said))
    return made


def test_a_deploy_changes_nothing_for_busy_pods(tmp_path: Path) -> None:
    old = deployed({"image": {"tag": "1"}})
    deploys = {
        "image": deployed({"image": {"tag": "2"}}),
        "digest": deployed({"image": {"digest": f"sha256:{'0' * 64}"}}),
        "scale": deployed({"image": {"tag": "1"}, "web": {"replicas": 4}, "worker": {"replicas": 1}}),
        "groups of workers": deployed(
            {
                "workers": {
                    "default": {"queues": ["dispatch", "sweeps"]},
                    "far": {"queues": ["github", "pools", "retire"]},
                }
            }
        ),
        "renamed pools": deployed({"image": {"tag": "1"}}, pools=("linux-x64", "arm64")),
        "another template of Pods": deployed(
            {
                "pools": {
                    "linux": {
                        "image": "runner:2",
                        "runnerLabels": ["linux"],
                        "podTemplate": {"metadata": {"labels": {"team": "ci"}}},
                    }
                }
            }
        ),
        "no pools": deployed({"image": {"tag": "1"}}, pools=()),
        "version of the chart": deployed(chart=newer_chart(tmp_path)),
        "labels of Pods": deployed({"podLabels": {"team": "ci"}}),
        "who reads metrics": deployed({"networkPolicies": {"controlPlane": {"metricsFrom": []}}}),
    }
    assert "9.9.9" in str(deploys["version of the chart"].objects)
    for name, new in deploys.items():
        for before, after in ((old, new), (new, old)):  # a rollback is a deploy
            verdict = judge(Deploy(before, after))
            assert verdict.refusals == (), name
            assert verdict.namespaces == RUNNERS
            stamped = [row for row in verdict.rows if row.state == "stamped" and row.same is not None]
            assert all(row.same and row.policies == ("runners-base",) for row in stamped), name
            assert {row.reaches_web for row in verdict.rows if row.state == "stamped"} == {False}, name
            assert {row.reaches_web for row in verdict.rows if row.state == "idle"} == {True}, name
            assert {row.pool.partition("/")[2] for row in stamped} >= {ANY_OTHER}, name


CONTAINERS: dict[str, Any] = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": ["10.96.0.1/32"]}},
}


def with_containers(manifests: Manifests) -> Manifests:
    """Return the manifests with container jobs in each pool. The schema of the chart might not have the field yet."""
    bodies: list[dict[str, Any]] = [dict(each.body) for each in manifests.objects.values()]
    for each in bodies:
        if each["kind"] == "RunnerPool":
            each["spec"] = {**each["spec"], "containers": {"mode": "kubernetes"}}
    return read_manifests(bodies, namespace="ostler")


def test_container_jobs_are_switched_on_and_off_without_a_change_for_busy_pods() -> None:
    off, policies, on = deployed(), deployed(CONTAINERS), with_containers(deployed(CONTAINERS))
    for before, after in ((off, policies), (policies, on), (off, on), (on, on), (on, policies), (on, off)):
        assert judge(Deploy(before, after)).refusals == ()


def test_a_change_of_the_api_servers_address_is_told_for_pods_with_container_jobs() -> None:
    on = with_containers(deployed(CONTAINERS))
    moved = {**CONTAINERS, "networkPolicies": {"apiServer": {"addresses": ["10.96.0.2/32"]}}}
    (found,) = judge(Deploy(on, with_containers(deployed(moved)))).refusals
    assert found.danger is Danger.PEERS_CHANGE
    assert not {name for name in found.subjects if "hook Pods" in name or ANY_OTHER in name}


@pytest.mark.parametrize(
    "values",
    [
        {"runners": {"except": ["198.51.100.0/24"]}},
        {"runners": {"allow": [{"cidr": "10.1.2.3/32"}]}},
        {"runners": {"publicPorts": [{"port": 443}]}},
        {"dns": {"namespace": "openshift-dns", "ports": [5353]}},
        {"webAddresses": ["198.51.100.7/32"]},
    ],
)
def test_a_change_of_what_jobs_may_reach_is_told(values: dict[str, Any]) -> None:
    old, new = deployed(), deployed({"networkPolicies": values})
    assert Danger.PEERS_CHANGE in {each.danger for each in judge_network(Question(old, new, RUNNERS)).refusals}


def test_web_at_a_public_address_is_unreachable_for_busy_pods_when_its_block_is_set() -> None:
    balancer = {"service": {"type": "LoadBalancer"}}
    bodies = [each.body for each in deployed({"web": balancer}).objects.values()]
    answered = {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}

    def live(objects: list[Any]) -> Manifests:
        found = [{**each, **answered} if each["metadata"]["name"] == "ostler-web" else each for each in objects]
        return read_manifests(found, namespace="ostler")

    seen = judge_network(Question(None, live(bodies), RUNNERS))
    assert {each.danger for each in seen.refusals} == {Danger.BUSY_REACHES_WEB}
    said = deployed({"web": balancer, "networkPolicies": {"webAddresses": ["198.51.100.7/32"]}})
    assert judge_network(Question(None, live([e.body for e in said.objects.values()]), RUNNERS)).refusals == ()


def test_proxy_for_jobs_is_refused_only_without_its_argument_or_while_busy_pods_run() -> None:
    proxy = {"cidr": "10.1.2.3/32", "ports": [{"protocol": "TCP", "port": 3128}]}
    old = deployed({"image": {"tag": "1"}, "networkPolicies": {"runners": {"allow": [proxy]}}})
    new = deployed({"image": {"tag": "2"}, "networkPolicies": {"runners": {"allow": [proxy]}}})

    def refusals(before: Manifests | None, *allowed: str) -> set[Danger]:
        found = Question(before=before, after=new, namespaces=RUNNERS, allowed=blocks(allowed))
        return {each.danger for each in judge_network(found).refusals}

    assert refusals(None) == refusals(old) == {Danger.PRIVATE_EGRESS}
    assert refusals(None, "10.1.2.3/32") == refusals(old, "10.1.2.3/32") == set()
    assert refusals(deployed({"image": {"tag": "1"}}), "10.1.2.3/32") != set()


def test_second_namespace_for_higher_levels_is_part_of_each_deploy() -> None:
    runners = {"allowedPodSecurity": "baseline", "elevatedPools": {"sudo": "baseline"}}
    spec = {"image": "runner:1", "runnerLabels": ["sudo"], "security": {"podSecurity": "baseline"}}
    none, both = deployed(), deployed({"runners": runners, "pools": {"sudo": spec}})
    newer = deployed({"runners": runners, "pools": {"sudo": spec}, "image": {"tag": "2"}})
    for before, after in ((none, both), (both, newer)):
        verdict = judge(Deploy(before, after))
        assert verdict.refusals == ()
        assert verdict.namespaces == RUNNERS | {"ostler-runners-elevated"}


ELEVATED = "ostler-runners-elevated"
"""Second namespace of runner Pods, with the name that the chart gives."""


def without_pools(manifests: Manifests, *, namespace: str) -> Manifests:
    """Return the manifests without the pools of a namespace, as in a cluster after the drain of these pools."""
    bodies = [each.body for key, each in manifests.objects.items() if key[:2] != (POOL_KIND, namespace)]
    return read_manifests(bodies, namespace="ostler")


@pytest.mark.parametrize(
    "lower", [{}, {"allowedPodSecurity": "baseline", "elevatedNamespace": "other"}], ids=["restricted", "renamed"]
)
def test_second_namespace_can_be_left_after_its_pools_are_drained(lower: dict[str, Any]) -> None:
    spec = {"image": "runner:1", "runnerLabels": ["sudo"], "security": {"podSecurity": "baseline"}}
    runners = {"allowedPodSecurity": "baseline", "elevatedPools": {"sudo": "baseline"}}
    old = deployed({"runners": runners, "pools": {"sudo": spec}})
    new = deployed({"runners": lower})
    drained = without_pools(old, namespace=ELEVATED)
    listed = RUNNERS | {ELEVATED}

    def left(live: Live, before: Manifests | None) -> set[Danger]:
        return {each.danger for each in judge(Deploy(before, new, live=live)).refusals}

    for before in (None, old, drained):
        assert left(Live(old, (), listed), before) >= {Danger.NAMESPACE_LEFT}
        assert left(Live(drained, ((ELEVATED, {POOL_LABEL: "sudo"}),), listed), before) >= {Danger.NAMESPACE_LEFT}
        assert left(Live(drained, (), listed), before) == set()
