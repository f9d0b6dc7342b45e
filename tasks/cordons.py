"""Which nodes are cordoned, as this process last heard: asked once in ten seconds at most.

Where the list cannot be had nothing is known, and nobody is retired for it (L8).
"""

from __future__ import annotations

import threading
import time
import weakref

import structlog

from k8s_adapters.client import KubeClient
from k8s_adapters.cordons import list_cordoned
from ostler.errors import UpstreamError
from tasks.base import SWEEP_ROW, calls
from tasks.runtime import Runtime

EVERY = 10.0
"""Seconds between two lists at least."""

log = structlog.get_logger(__name__)
_known: weakref.WeakKeyDictionary[KubeClient, tuple[float, frozenset[str]]] = weakref.WeakKeyDictionary()
_asking = threading.Lock()


def cordoned_nodes(rt: Runtime) -> frozenset[str]:
    """Return the names of the cordoned nodes; none where they cannot be told."""
    kube = rt.kube
    now = time.monotonic()
    with _asking:
        known = _known.get(kube)
        if known is not None and now - known[0] < EVERY:
            return known[1]
        _known[kube] = (now, frozenset())  # of those who come meanwhile none waits
    try:
        names = list_cordoned(kube, policy=calls(SWEEP_ROW))
    except UpstreamError as error:
        log.warning("nodes.not_listed", error=type(error).__name__)
        return frozenset()
    with _asking:
        _known[kube] = (now, names)
    return names


def forget() -> None:
    """Ask again at the next look. For tests, in which ten seconds are long."""
    with _asking:
        _known.clear()
