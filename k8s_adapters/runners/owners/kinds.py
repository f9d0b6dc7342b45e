"""The owners by workload."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from k8s_adapters.runners.owners.owner import Owner
from k8s_adapters.runners.owners.pod import PodOwner
from k8s_adapters.runners.owners.stateful_set import StatefulSetOwner
from rules.pools.workloads import Workload, workload_of

_OWNERS: Mapping[Workload, Owner] = MappingProxyType(
    {Workload.POD: PodOwner(), Workload.STATEFUL_SET: StatefulSetOwner()}
)


def owner_of(pod_name: str) -> Owner:
    """Return the owner of the runner Pod with this name."""
    return _OWNERS[workload_of(pod_name)]
