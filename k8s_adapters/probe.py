"""Probe of the API server: one cheap call that shows whether it answers."""

from __future__ import annotations

from k8s_adapters.client import KubeClient, object_path
from rules.upstream.retry import ONCE

_WITHIN = 5.0


def probe(client: KubeClient, *, namespace: str) -> None:
    """List at most one Pod, which also needs the API server's store. Raises `UpstreamError` if it fails."""
    client.request(
        "GET",
        object_path("pods", namespace=namespace),
        query={"limit": 1},
        timeout=_WITHIN,
        policy=ONCE,
    )
