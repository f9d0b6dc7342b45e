"""The chart's own policies by packets, for Pods with the labels of idle and of stamped runner Pods, and for jobs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from deploys.manifests import OWNER_LABEL, POOL_LABEL
from k8s_adapters.calls.client import KubeClient
from lab.faults import Fault, Kind
from lab.helm import render
from lab.node.namespace import NODE_ADDRESS
from lab.node.policies.enforcer import PolicyEnforcer
from lab.node.policies.ruleset import Mode
from tests.fleet import Fleet
from tests.node.policed import (
    DNS_PORT,
    METADATA,
    OUTSIDE_PORT,
    PUBLIC,
    TCP_PORT,
    Policed,
    answering_outside,
    enforcer_of,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

PRIVATE = "10.77.0.5"
WEB = "10.77.0.6"
"""An address like that of a load balancer in front of web."""


def put_chart_policies(kube: KubeClient, namespace: str, *, web: str, web_port: int, allow: list[object]) -> None:
    """Create the chart's policies of runner Pods in a namespace."""
    values = {
        "networkPolicies": {
            "dns": {"namespace": namespace},
            "webAddresses": [f"{web}/32"],
            "webAddressPorts": [web_port],
            "runners": {"allow": allow},
        }
    }
    for each in render(values=values):
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].startswith("runners-"):
            each["metadata"]["namespace"] = namespace
            kube.request("POST", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", body=each)


@pytest.fixture(scope="module")
def runners(fleet: Fleet) -> Policed:
    """Return a Pod with a pool's label, and one that stands for the resolver, under the chart's policies."""
    first, second = (node.name for node in fleet.system.real_nodes)
    policed = Policed(fleet.kube, "chart-runners")
    policed.start("runner", node=first, labels={POOL_LABEL: "linux"})
    policed.start("resolver", node=second)
    policed.wait_for("runner", "resolver")
    put_chart_policies(fleet.kube, policed.namespace, web=WEB, web_port=OUTSIDE_PORT, allow=[])
    return policed


@pytest.fixture(params=Mode)
def enforcer(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[PolicyEnforcer]:
    """Yield a running enforcer in each mode."""
    with enforcer_of(fleet, request.param) as running:
        yield running


def stamp(runners: Policed, enforcer: PolicyEnforcer, owner: str | None) -> None:
    runners.label("runner", {OWNER_LABEL: owner})
    enforcer.wait_for_pass()


def test_stamp_ends_the_way_to_web_and_changes_nothing_else(runners: Policed, enforcer: PolicyEnforcer) -> None:
    def reached() -> dict[str, str]:
        outside = {each: runners.tcp("runner", each, OUTSIDE_PORT) for each in (WEB, PUBLIC, METADATA, PRIVATE)}
        dns = runners.ask("runner", "udp", "resolver", DNS_PORT)
        return {**outside, "dns": dns, "to a Pod": runners.tcp("runner", "resolver")}

    idle = {WEB: "open", PUBLIC: "open", METADATA: "silent", PRIVATE: "silent", "dns": "open", "to a Pod": "silent"}
    with answering_outside((WEB, PUBLIC, METADATA, PRIVATE)):
        stamp(runners, enforcer, None)
        assert reached() == idle
        assert runners.tcp("resolver", "runner") == "silent"  # a runner Pod accepts no connection

        stamp(runners, enforcer, "42")
        assert reached() == {**idle, WEB: "silent"}

        stamp(runners, enforcer, None)
        assert reached() == idle


def test_stamp_cuts_an_open_poll_only_in_mode_cut(runners: Policed, enforcer: PolicyEnforcer) -> None:
    lives_on = "open" if enforcer.mode is Mode.KEEP else "silent"
    with answering_outside((WEB, PUBLIC)):
        stamp(runners, enforcer, None)
        for each in (WEB, PUBLIC):
            assert runners.ask("runner", "hold", each, OUTSIDE_PORT) == "open"

        stamp(runners, enforcer, "42")

        assert runners.ask("runner", "use", WEB, OUTSIDE_PORT) == lives_on
        assert runners.ask("runner", "use", PUBLIC, OUTSIDE_PORT) == "open"


@pytest.fixture
def policed_fleet(fleet: Fleet, enforcer: PolicyEnforcer) -> Iterator[Fleet]:
    """Yield the fleet with the chart's policies of runner Pods, which allow web and the lab's GitHub."""
    fleet.wait_until_whole()
    web, github = urlsplit(fleet.system.polls_url), urlsplit(fleet.system.github_url)
    assert (web.hostname, github.hostname) == (NODE_ADDRESS, NODE_ADDRESS)
    allow: list[object] = [{"cidr": f"{NODE_ADDRESS}/32", "ports": [{"port": github.port}]}]
    namespace = fleet.system.namespace
    put_chart_policies(fleet.kube, namespace, web=NODE_ADDRESS, web_port=web.port or TCP_PORT, allow=allow)
    try:
        enforcer.wait_for_pass()
        yield fleet
        fleet.wait_until_whole()
    finally:
        fleet.kube.request("DELETE", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")


def test_jobs_run_exactly_once_although_the_stamp_ends_the_way_to_web(policed_fleet: Fleet) -> None:
    for job in policed_fleet.send(12, duration_seconds=2):
        over = policed_fleet.wait_for(job, "completed", within=240)
        assert (over["conclusion"], over["executions"]) == ("success", 1)


def test_stamp_that_comes_during_a_job_leaves_the_job_alone(policed_fleet: Fleet, enforcer: PolicyEnforcer) -> None:
    system = policed_fleet.system
    try:
        system.faults("kubernetes", Fault(kind=Kind.STATUS, status=503, method_regex="PATCH", path_regex=".*/pods/.*"))
        [job] = policed_fleet.send(duration_seconds=90)
        pod = policed_fleet.pod_of(job)
        assert OWNER_LABEL not in policed_fleet.pods()[pod]["metadata"]["labels"]
    finally:
        system.no_faults("kubernetes")

    eventually(lambda: OWNER_LABEL in policed_fleet.pods()[pod]["metadata"]["labels"], "no late stamp", within=80)
    enforcer.wait_for_pass()
    assert policed_fleet.job(job)["status"] == "in_progress"

    over = policed_fleet.wait_for(job, "completed", within=120)
    assert (over["conclusion"], over["executions"]) == ("success", 1)
    assert policed_fleet.pod_of(job) == pod
