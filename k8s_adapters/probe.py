"""One cheap question to the API server, asked only to see whether it answers."""

from __future__ import annotations

from k8s_adapters.client import KubeClient, object_path
from rules.upstream.retry import ONCE

_WITHIN = 5.0


def probe(client: KubeClient, *, namespace: str) -> None:
    """Ask for one Pod at most, so that the server needs its store too. Raises `UpstreamError` when it fails."""
    client.request(
        "GET",
        object_path("pods", namespace=namespace),
        query={"limit": 1},
        timeout=_WITHIN,
        policy=ONCE,
    )
