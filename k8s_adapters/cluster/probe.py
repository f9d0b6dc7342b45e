"""Probe of the API server: one cheap call that shows whether the API server answers."""

from __future__ import annotations

from k8s_adapters.calls.client import KubeClient, object_path
from rules.upstream.retry import ONCE

_WITHIN = 5.0


def probe(client: KubeClient, *, namespace: str) -> None:
    """List at most one Pod, so that the API server also has to read its store.

    Raises `UpstreamError` if the call fails.
    """
    client.request(
        "GET",
        object_path("pods", namespace=namespace),
        query={"limit": 1},
        timeout=_WITHIN,
        policy=ONCE,
    )
