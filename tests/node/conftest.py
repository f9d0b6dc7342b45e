"""A system on two real nodes, for the tests of `make test-node`. They run in namespaces of their own, as root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lab.bootstrap import LabPool
from lab.chaos.waits import REAL_STARTS, scaled
from lab.control_plane import NodeGrace
from lab.faults import FaultPlan
from lab.node.namespace import is_isolated
from lab.system import NODE, Options, System
from lab.timings import merged
from tests.fleet import LABELS, Fleet

LOST_AFTER = 60
"""Seconds without a kubelet after which Ostler counts a node as gone: the smallest value that the setting accepts."""

SILENCE = 20
"""Seconds without a kubelet after which Kubernetes taints a node."""

SMALL = LabPool("small", LABELS, 4, cpu="50m", memory="128Mi")


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yield a system with one pool of four Pods on two nodes."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    options = Options(
        pools=(SMALL,),
        beats=1,
        real_nodes=2,
        kubernetes_faults=FaultPlan(),
        node_grace=NodeGrace(silence=SILENCE, checked_every=2),
        settings=merged(scaled(), REAL_STARTS, {"OSTLER_NODE_LOST_AFTER": str(LOST_AFTER)}),
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, cluster=NODE) as system:
        fleet = Fleet(system)
        with contextlib.closing(fleet.kube):
            system.wait_for_warm_pods(SMALL.replicas, timeout=120)
            yield fleet
