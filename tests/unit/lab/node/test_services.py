from __future__ import annotations

import struct
from typing import Any

from lab.node.services import addresses, answer, rules

API = {
    "metadata": {"namespace": "default", "name": "kubernetes"},
    "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]},
}
WEB = {
    "metadata": {"namespace": "ostler", "name": "web"},
    "spec": {"clusterIP": "10.0.0.7", "ports": [{"name": "http", "port": 80}]},
}
HEADLESS = {
    "metadata": {"namespace": "ostler", "name": "none"},
    "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
}
NAMES = {"web.ostler.svc.cluster.local": "10.0.0.7"}


def endpoints(*found: tuple[str, bool]) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ostler", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address, ready in found],
    }


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    return struct.pack("!HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def test_service_leads_to_its_ready_endpoints_with_equal_chances() -> None:
    said = rules(
        [WEB], [endpoints(("10.200.1.4", True), ("10.200.1.5", True), ("10.200.1.6", False))], api_server="a:1"
    )

    match = "-A LAB-SERVICES -d 10.0.0.7/32 -p tcp --dport 80"
    assert [line for line in said.splitlines() if "DNAT" in line] == [
        f"{match} -m statistic --mode random --probability 0.500000 -j DNAT --to-destination 10.200.1.4:8080",
        f"{match} -j DNAT --to-destination 10.200.1.5:8080",
    ]


def test_service_without_ready_endpoint_is_refused() -> None:
    said = rules([WEB], [endpoints(("10.200.1.4", False))], api_server="a:1")

    assert "DNAT" not in said
    assert "-A LAB-SERVICES -d 10.0.0.0/24 -j REJECT" in said.splitlines()


def test_service_of_the_api_server_leads_to_the_given_address() -> None:
    said = rules([API, HEADLESS], [], api_server="10.199.0.1:6443")

    assert "-d 10.0.0.1/32 -p tcp --dport 443 -j DNAT --to-destination 10.199.0.1:6443" in said
    assert "None" not in said


def test_only_services_with_an_address_have_a_name() -> None:
    assert addresses([WEB, HEADLESS]) == NAMES


def test_dns_answers_a_known_name_with_its_address() -> None:
    asked = query("Web.ostler.svc.cluster.local", 1)

    said = answer(asked, NAMES)

    number, flags, questions, answers = struct.unpack("!HHHH", said[:8])
    assert (number, flags & 0xF, questions, answers) == (77, 0, 1, 1)
    assert said[12 : len(asked)] == asked[12:]
    assert said[-4:] == bytes([10, 0, 0, 7])


def test_dns_has_no_ipv6_address_and_no_unknown_name() -> None:
    status = {
        (name, kind): struct.unpack("!HHHH", answer(query(name, kind), NAMES)[:8])
        for name, kind in (("web.ostler.svc.cluster.local", 28), ("web.ostler.svc.svc.cluster.local", 1))
    }

    assert [(flags & 0xF, answers) for _, flags, _, answers in status.values()] == [(0, 0), (3, 0)]
