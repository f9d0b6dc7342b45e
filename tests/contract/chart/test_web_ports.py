"""The ports of web in the chart: the port that each client uses, and the peers that may connect."""

from __future__ import annotations

from typing import Any

import pytest

from lab import helm
from ostler.settings import Settings

RELEASE = {"app.kubernetes.io/name": "ostler", "app.kubernetes.io/instance": "ostler"}


def rendered(values: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in helm.render(values=values) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def ports_of(policy: dict[str, Any], direction: str) -> list[set[int]]:
    return [{port["port"] for port in rule.get("ports", ())} for rule in policy["spec"][direction]]


@pytest.mark.parametrize(
    ("values", "address", "setting"),
    [
        ({}, "https://ostler-web-polls.ostler.svc/runners/v1/dispatch", "OSTLER_WEB_POLLS_TLS_PORT"),
        ({"web": {"tls": {"enabled": False}}}, Settings.model_fields["dispatch_url"].default, "OSTLER_WEB_POLLS_PORT"),
    ],
    ids=["by TLS", "plain"],
)
def test_pods_poll_a_service_that_leads_to_the_port_for_polls_alone(
    values: dict[str, Any], address: str, setting: str
) -> None:
    (container,) = rendered(values, "Deployment", "ostler-web")["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    listens = {each["name"]: each["containerPort"] for each in container["ports"]}
    service = rendered(values, "Service", "ostler-web-polls")
    ports = {each["port"]: each["targetPort"] for each in service["spec"]["ports"]}
    assert environment["OSTLER_DISPATCH_URL"] == address
    assert str(listens[ports[443 if address.startswith("https") else 80]]) == environment[setting]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert str(listens[container[probe]["httpGet"]["port"]]) == environment["OSTLER_WEB_PRIVATE_PORT"]


@pytest.mark.parametrize("kind", ["ClusterIP", "LoadBalancer"])
def test_only_the_public_port_leaves_the_cluster(kind: str) -> None:
    values = {"web": {"service": {"type": kind}}}
    assert [each["targetPort"] for each in rendered(values, "Service", "ostler-web")["spec"]["ports"]] == ["http"]
    assert rendered(values, "Service", "ostler-web-polls")["spec"]["type"] == "ClusterIP"


@pytest.mark.parametrize(("public_polls", "ports"), [(True, {8080, 8081, 8443}), (False, {8081, 8443})])
def test_idle_pods_reach_the_public_port_only_while_polls_are_served_there(public_polls: bool, ports: set[int]) -> None:
    values = {"web": {"publicPolls": public_polls}}
    assert ports_of(rendered(values, "NetworkPolicy", "runners-dispatch"), "egress") == [ports]
    assert ports_of(rendered(values, "NetworkPolicy", "ostler-web"), "ingress") == [{8080}, ports, {8443}]
    (container,) = rendered(values, "Deployment", "ostler-web")["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["OSTLER_WEB_PUBLIC_POLLS"] == str(public_polls).lower()


def test_metrics_of_web_are_for_those_who_may_read_metrics() -> None:
    policy = rendered({}, "NetworkPolicy", "ostler-metrics")
    assert "web" in policy["spec"]["podSelector"]["matchExpressions"][0]["values"]
    assert ports_of(policy, "ingress") == [{9090}]
    assert all(9090 not in ports for ports in ports_of(rendered({}, "NetworkPolicy", "ostler-web"), "ingress"))


def open_to(port: int, control_plane: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the peers that may connect to a port, by network policy."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in helm.render(values={"networkPolicies": {"controlPlane": control_plane}}):
        for rule in each["spec"].get("ingress", ()) if each["kind"] == "NetworkPolicy" else ():
            if any(allowed["port"] == port for allowed in rule["ports"]):
                found.setdefault(each["metadata"]["name"], []).extend(rule["from"])
    return found


def test_no_service_contains_the_port_of_metrics() -> None:
    objects = helm.render(values={"flower": {"enabled": True}})
    private = {
        port["name"]
        for each in objects
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", ())
        if port["containerPort"] == 9090
    }
    led_to = [port["targetPort"] for each in objects if each["kind"] == "Service" for port in each["spec"]["ports"]]
    assert private
    assert led_to
    assert not {*private, 9090} & set(led_to)


def test_metrics_are_open_to_metrics_from_alone() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    assert open_to(9090, {"metricsFrom": [peer]}) == {"ostler-metrics": [peer]}
    assert open_to(9090, {"metricsFrom": []}) == {}


@pytest.mark.parametrize("port", [8081, 8443])
def test_ports_for_polls_are_open_to_these_peers_alone(port: int) -> None:
    own = {"ipBlock": {"cidr": "10.9.0.0/16"}}
    found = open_to(port, {"pollsFrom": [own]})
    runners = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ostler-runners"}},
        "podSelector": {"matchExpressions": [{"key": "ostler.dev/pool", "operator": "Exists"}]},
    }
    worker = {"podSelector": {"matchLabels": {**RELEASE, "app.kubernetes.io/component": "worker"}}}
    assert found == {"ostler-web": [runners, own, *([worker] if port == 8443 else [])]}


def test_ingress_exposes_the_webhook_alone() -> None:
    ingress = rendered({"ingress": {"enabled": True, "host": "ci.example"}}, "Ingress", "ostler-web")
    (rule,) = ingress["spec"]["rules"]
    assert [each["path"] for each in rule["http"]["paths"]] == ["/webhooks/github"]


@pytest.mark.parametrize("port", [8080, 8081])
def test_port_of_metrics_that_web_serves_others_at_is_refused(port: int) -> None:
    with pytest.raises(helm.HelmRefused, match=r"metrics\.port"):
        helm.render(values={"metrics": {"port": port}})
