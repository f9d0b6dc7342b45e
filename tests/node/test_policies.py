"""NetworkPolicies by packets: real Pods open connections while the lab's enforcer applies policies.

The client is on the first node, `near` on the same bridge, and `far` on the second node.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.node.policies.enforcer import PolicyEnforcer
from lab.node.policies.ruleset import Mode
from tests.fleet import Fleet
from tests.node.pod_agent import TICKER_PORT
from tests.node.policed import (
    DNS_PORT,
    METADATA,
    OTHER_PORT,
    OUTSIDE_PORT,
    PUBLIC,
    TCP_PORT,
    Policed,
    answering_outside,
    enforcer_of,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

BOTH = ("near", "far")
EVERYONE: dict[str, object] = {}
SERVERS = {"matchExpressions": [{"key": "name", "operator": "In", "values": list(BOTH)}]}
FRIENDS = {"podSelector": {"matchLabels": {"friend": "yes"}}}


@pytest.fixture(scope="module")
def pods(fleet: Fleet) -> Policed:
    """Return three Pods on two nodes."""
    first, second = (node.name for node in fleet.system.real_nodes)
    policed = Policed(fleet.kube, "policed")
    for name, node in (("client", first), ("near", first), ("far", second)):
        policed.start(name, node=node)
    policed.wait_for("client", *BOTH)
    return policed


@pytest.fixture(params=Mode)
def enforcer(request: pytest.FixtureRequest, fleet: Fleet, pods: Policed) -> Iterator[PolicyEnforcer]:
    """Yield a running enforcer in each mode. The policies are removed at the end."""
    pods.label("client", {"friend": None})
    with enforcer_of(fleet, request.param) as running:
        yield running
        pods.remove_policies()


def in_mode(mode: Mode) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("enforcer", [mode], indirect=True)


either = in_mode(Mode.CUT)  # for tests whose outcome does not depend on the mode


@either
def test_pods_without_policies_reach_each_other_and_the_node(pods: Policed, enforcer: PolicyEnforcer) -> None:
    enforcer.wait_for_pass()
    with answering_outside():
        assert [pods.tcp("client", each) for each in BOTH] == ["open", "open"]
        assert [pods.tcp("client", each, OUTSIDE_PORT) for each in (METADATA, PUBLIC)] == ["open", "open"]
        assert pods.ask("client", "udp", "far", DNS_PORT) == "open"


@either
def test_default_deny_drops_connections_but_not_those_of_the_node(pods: Policed, enforcer: PolicyEnforcer) -> None:
    pods.put("deny", podSelector=SERVERS)
    enforcer.wait_for_pass()

    assert [pods.tcp("client", each) for each in BOTH] == ["silent", "silent"]
    assert pods.ask("client", "udp", "near", DNS_PORT) == "silent"
    assert pods.tcp("near", "client") == "open"  # replies to a server's own connection


@either
def test_label_of_the_client_permits_one_port(pods: Policed, enforcer: PolicyEnforcer) -> None:
    pods.put("friends", podSelector=SERVERS, ingress=[{"from": [FRIENDS], "ports": [{"port": "http"}]}])
    enforcer.wait_for_pass()
    assert [pods.tcp("client", each) for each in BOTH] == ["silent", "silent"]

    pods.label("client", {"friend": "yes"})
    enforcer.wait_for_pass()

    assert [pods.tcp("client", each) for each in BOTH] == ["open", "open"]
    assert [pods.tcp("client", each, OTHER_PORT) for each in BOTH] == ["silent", "silent"]


def test_removed_label_cuts_open_connections_only_in_mode_cut(pods: Policed, enforcer: PolicyEnforcer) -> None:
    lives_on = "open" if enforcer.mode is Mode.KEEP else "silent"
    pods.put("friends", podSelector=SERVERS, ingress=[{"from": [FRIENDS]}])
    pods.label("client", {"friend": "yes"})
    enforcer.wait_for_pass()
    for each in BOTH:
        assert pods.ask("client", "hold", each, TCP_PORT) == "open"
        assert pods.ask("client", "use", each, TCP_PORT) == "open"
        assert pods.ask("client", "hold", each, TICKER_PORT) == "open"

    pods.label("client", {"friend": None})
    enforcer.wait_for_pass()

    for each in BOTH:
        assert pods.tcp("client", each) == "silent"
        assert pods.ask("client", "use", each, TCP_PORT) == lives_on
        assert pods.ask("client", "listen", each, TICKER_PORT) == lives_on  # packets of the server alone


@in_mode(Mode.CUT)
def test_cut_connection_works_again_when_the_label_returns(pods: Policed, enforcer: PolicyEnforcer) -> None:
    pods.put("friends", podSelector=SERVERS, ingress=[{"from": [FRIENDS]}])
    pods.label("client", {"friend": "yes"})
    enforcer.wait_for_pass()
    assert pods.ask("client", "hold", "near", TCP_PORT) == "open"
    pods.label("client", {"friend": None})
    enforcer.wait_for_pass()
    assert pods.ask("client", "use", "near", TCP_PORT) == "silent"

    pods.label("client", {"friend": "yes"})
    enforcer.wait_for_pass()

    assert pods.ask("client", "use", "near", TCP_PORT) == "open"


@either
def test_egress_to_dns_permits_nothing_else(pods: Policed, enforcer: PolicyEnforcer) -> None:
    dns = {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pods.namespace}}}],
        "ports": [{"protocol": "UDP", "port": DNS_PORT}],
    }
    pods.put("dns", podSelector={"matchLabels": {"name": "client"}}, policyTypes=["Egress"], egress=[dns])
    enforcer.wait_for_pass()

    assert [pods.ask("client", "udp", each, DNS_PORT) for each in BOTH] == ["open", "open"]
    assert [pods.tcp("client", each) for each in BOTH] == ["silent", "silent"]


@either
def test_exception_of_a_block_hides_the_metadata_service(pods: Policed, enforcer: PolicyEnforcer) -> None:
    block = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}
    pods.put("internet", podSelector=EVERYONE, policyTypes=["Egress"], egress=[{"to": [block]}])
    enforcer.wait_for_pass()

    with answering_outside():
        assert pods.tcp("client", PUBLIC, OUTSIDE_PORT) == "open"
        assert pods.tcp("client", METADATA, OUTSIDE_PORT) == "silent"


@pytest.mark.parametrize(("label", "expected"), [("isolated", "silent"), ("free", "open")])
@either
def test_new_pod_is_isolated_before_it_can_connect(
    fleet: Fleet, pods: Policed, enforcer: PolicyEnforcer, label: str, expected: str
) -> None:
    pods.put("deny", podSelector={"matchLabels": {"kind": "isolated"}}, policyTypes=["Egress"])
    enforcer.wait_for_pass()
    early = f"{pods.address('near')}:{TCP_PORT}"
    pods.start(f"new-{label}", node=fleet.system.real_nodes[0].name, labels={"kind": label}, early=early)
    pods.wait_for(f"new-{label}")

    def answer() -> str:
        return pods.ask(f"new-{label}", "early", "near", TCP_PORT).removeprefix("not over")

    assert eventually(answer, within=20) == expected
