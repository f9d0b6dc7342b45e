"""Services of a cluster with real nodes: their virtual addresses, and their names.

A cluster has kube-proxy and a DNS server for this. Here, one process lists Services and EndpointSlices, writes iptables
rules, and answers DNS queries for `<service>.<namespace>.svc.cluster.local` over UDP. It supports TCP Services with a
virtual address. Connections are distributed at random, as by kube-proxy.
"""

from __future__ import annotations

import argparse
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from k8s_adapters.calls.client import KubeClient, make_client
from ostler.errors import UpstreamError

DOMAIN = "cluster.local"
EVERY = 0.3
"""Seconds between two lists."""

_CHAIN = "LAB-SERVICES"
_RANGE = "10.0.0.0/24"
_API_SERVER = ("default", "kubernetes")
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_TYPE_A = 1
_NO_SUCH_NAME = 3

Object = Mapping[str, Any]


def addresses(services: Sequence[Object]) -> dict[str, str]:
    """Return the virtual address of each Service by its full DNS name."""
    return {
        f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc.{DOMAIN}": each["spec"]["clusterIP"]
        for each in services
        if _has_address(each)
    }


def rules(services: Sequence[Object], slices: Sequence[Object], *, api_server: str) -> str:
    """Return the input of `iptables-restore` that directs each Service to its ready endpoints.

    The API server has no EndpointSlice here, so its address and port are given. A connection to a Service without ready
    endpoints is refused.
    """
    lines = ["*nat", f":{_CHAIN} - [0:0]"]
    for service in filter(_has_address, services):
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        for port in service["spec"]["ports"]:
            ready = [api_server] if key == _API_SERVER else _ready(key, port.get("name") or "", slices)
            match = f"-A {_CHAIN} -d {service['spec']['clusterIP']}/32 -p tcp --dport {port['port']}"
            for left, endpoint in zip(range(len(ready), 0, -1), ready, strict=True):
                chance = f" -m statistic --mode random --probability {1 / left:.6f}" if left > 1 else ""
                lines.append(f"{match}{chance} -j DNAT --to-destination {endpoint}")
    lines += ["COMMIT", "*filter", f":{_CHAIN} - [0:0]", f"-A {_CHAIN} -d {_RANGE} -j REJECT", "COMMIT"]
    return "\n".join(lines) + "\n"


def _has_address(service: Object) -> bool:
    return bool(service["spec"].get("clusterIP", "None") != "None")


def _ready(key: tuple[str, str], port: str, slices: Sequence[Object]) -> list[str]:
    """Return the ready endpoints of a Service's port, as `address:port`."""
    found = set()
    for each in slices:
        metadata = each["metadata"]
        if (metadata["namespace"], metadata.get("labels", {}).get("kubernetes.io/service-name")) != key:
            continue
        numbers = [known["port"] for known in each.get("ports") or () if (known.get("name") or "") == port]
        for endpoint in each.get("endpoints") or ():
            if endpoint.get("conditions", {}).get("ready", True):
                found |= {f"{address}:{number}" for address in endpoint["addresses"] for number in numbers}
    return sorted(found)


def answer(query: bytes, names: Mapping[str, str]) -> bytes:
    """Return the DNS answer to a query with one question: an address, an empty answer, or NXDOMAIN."""
    number, _, questions = struct.unpack("!HHH", query[:6])
    labels, end = [], 12
    while (length := query[end]) != 0:
        labels.append(query[end + 1 : end + 1 + length].decode(errors="replace").lower())
        end += 1 + length
    question = query[12 : end + 5]
    (kind,) = struct.unpack("!H", query[end + 1 : end + 3])
    address = names.get(".".join(labels))
    status = _NO_SUCH_NAME if address is None else 0
    record = b""
    if address is not None and kind == _TYPE_A:
        record = struct.pack("!HHHIH", 0xC00C, _TYPE_A, 1, 1, 4) + socket.inet_aton(address)
    header = struct.pack("!HHHHHH", number, 0x8580 | status, questions, 1 if record else 0, 0, 0)
    return header + question + record


def main() -> int:
    """Read the arguments, then update rules and names until the process is stopped."""
    parser = argparse.ArgumentParser(prog="python -m lab.node.services", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--address", required=True, help="address of the DNS server, and of the API server for Pods")
    parser.add_argument("--api-port", type=int, required=True)
    arguments = parser.parse_args()
    names: dict[str, str] = {}
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((arguments.address, 53))
    threading.Thread(target=_serve, args=(server, names), daemon=True).start()
    _install()
    written = ""
    with closing(make_client(kubeconfig=arguments.kubeconfig)) as kube:
        while True:
            try:
                services, slices = _list(kube)
            except UpstreamError as error:
                sys.stderr.write(f"Services and EndpointSlices could not be listed, so the rules stay: {error}\n")
            else:
                names |= addresses(services)
                wanted = rules(services, slices, api_server=f"{arguments.address}:{arguments.api_port}")
                if wanted != written:
                    subprocess.run(["iptables-restore", "--noflush"], input=wanted, text=True, check=True)
                    written = wanted
                    sys.stdout.write(wanted)
                    sys.stdout.flush()
            time.sleep(EVERY)


def _list(kube: KubeClient) -> tuple[Sequence[Object], Sequence[Object]]:
    services = kube.request("GET", "/api/v1/services")["items"]
    return services, kube.request("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]


def _install() -> None:
    """Send every connection through the rules, also between two Pods of one bridge."""
    if _BRIDGED.exists():
        _BRIDGED.write_text("1")
    for table, chains in (("nat", ("PREROUTING", "OUTPUT")), ("filter", ("FORWARD", "OUTPUT"))):
        subprocess.run(["iptables", "-t", table, "-N", _CHAIN], check=False, capture_output=True)
        for chain in chains:
            subprocess.run(["iptables", "-t", table, "-A", chain, "-j", _CHAIN], check=True)


def _serve(server: socket.socket, names: Mapping[str, str]) -> None:
    while True:
        query, client = server.recvfrom(4096)
        try:
            server.sendto(answer(query, names), client)
        except (IndexError, struct.error):
            continue  # not a DNS query


if __name__ == "__main__":
    sys.exit(main())
