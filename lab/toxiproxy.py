"""Toxiproxy: a TCP proxy whose connections to Redis and Postgres can stop passing bytes.

It is built from a Go module once per machine, which takes about half a minute. `lab/toxiproxy/go.mod` pins it.
`lab.faults` covers the faults of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from lab.go_build import GoPrograms, Say, quiet
from lab.processes import Child, free_port

_PROGRAM = GoPrograms(
    name="toxiproxy",
    what="toxiproxy",
    module=Path(__file__).with_name("toxiproxy"),
    packages={"toxiproxy-server": "github.com/Shopify/toxiproxy/v2/cmd/server"},
    takes="about half a minute",
)


def build(say: Say = quiet) -> Path:
    """Return the path of the server. Build it first if it is not cached. Raises `StartError`."""
    return _PROGRAM.had(say) / "toxiproxy-server"


class Toxiproxy:
    """One Toxiproxy server with a proxy for each upstream; a context manager."""

    def __init__(self, folder: Path, upstreams: Mapping[str, int]) -> None:
        """Prepare the server. `upstreams` maps the name of each upstream to its port on the loopback interface."""
        folder.mkdir(parents=True, exist_ok=True)
        self._api = f"http://127.0.0.1:{(port := free_port())}"
        self._upstreams = upstreams
        self.ports: dict[str, int] = {}
        self._child = Child(
            "toxiproxy",
            [str(build()), "-host", "127.0.0.1", "-port", str(port)],
            log=folder / "toxiproxy.log",
        )

    def __enter__(self) -> Self:
        self._child.start()
        self._child.wait_until(self._answers, timeout=20)
        for name, port in self._upstreams.items():
            body = {"name": name, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{port}", "enabled": True}
            made = self._call("POST", "/proxies", body)
            self.ports[name] = int(made["listen"].rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop(timeout=5)

    def silence(self, name: str) -> None:
        """Pass no more bytes in either direction, without closing a connection.

        New connections are accepted and pass no bytes either.
        """
        known = {toxic["name"] for toxic in self._call("GET", f"/proxies/{name}/toxics")}
        for stream in ("upstream", "downstream"):
            toxic = {"name": stream, "type": "timeout", "stream": stream, "attributes": {"timeout": 0}, "toxicity": 1}
            self._call("POST", f"/proxies/{name}/toxics" + (f"/{stream}" if stream in known else ""), toxic)

    def refuse(self, name: str) -> None:
        """Close every connection and refuse new ones."""
        self._call("POST", f"/proxies/{name}", {"enabled": False})

    def restore(self, name: str) -> None:
        """Pass bytes again, also on the connections that were silent.

        Bytes that were sent during the silence are lost.
        """
        self._call("POST", f"/proxies/{name}", {"enabled": True})
        for toxic in self._call("GET", f"/proxies/{name}/toxics"):
            # Deleting the toxic would close its connections, and a network that recovers closes none.
            self._call("POST", f"/proxies/{name}/toxics/{toxic['name']}", {"toxicity": 0})

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._api}/version", timeout=2).is_success
        except httpx.TransportError:
            return False

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, self._api + path, json=body, timeout=10)
        answer.raise_for_status()
        return answer.json() if answer.content else None
