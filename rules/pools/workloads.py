"""Workloads and lifecycles of pools: what owns runner Pods, the names that follow from it, and how long runners live.

The name of a Pod shows its workload. Code that has only the name of a Pod, such as a sweep, therefore needs no row of
the pool.
"""

from __future__ import annotations

import re
from enum import StrEnum

_ORDINAL = "-0"
"""Suffix of the only Pod of a StatefulSet. The name of any other runner Pod ends with 8 hex digits."""

_OF_STATEFUL_SET = re.compile(r"(.+-[0-9a-f]{8})-0")

LONGEST_STATEFUL_POOL = 43
"""Maximum number of characters in the name of a pool with `workload: StatefulSet`.

The controller of StatefulSets writes the label `controller-revision-hash`: the name of the StatefulSet, `-` and up to
10 characters. A label value has at most 63 characters, and the name of the StatefulSet adds 9 to the name of its pool.
"""


class Workload(StrEnum):
    """Value of `spec.workload`: the kind of object that a runner is.

    - `POD`: a runner is one Pod, which the pool owns.
    - `STATEFUL_SET`: a runner is a StatefulSet with one replica, so its Pod can have volumes that outlive the Pod.
    """

    POD = "Pod"
    STATEFUL_SET = "StatefulSet"


class Lifecycle(StrEnum):
    """Value of `spec.lifecycle`: how long a runner lives.

    - `EPHEMERAL`: a runner runs one job, which Ostler chooses. Its Pod is replaced afterwards.
    - `PERSISTENT`: a runner runs one job after the other, which GitHub chooses, until Ostler removes the runner.
    """

    EPHEMERAL = "ephemeral"
    PERSISTENT = "persistent"


def pod_name(workload: Workload, *, pool: str, suffix: str) -> str:
    """Return the name of a new runner Pod. `suffix` is 8 hex digits."""
    name = f"{pool}-{suffix}"
    return pod_name_of(name) if workload is Workload.STATEFUL_SET else name


def pod_name_of(stateful_set: str) -> str:
    """Return the name of the Pod of a runner's StatefulSet."""
    return stateful_set + _ORDINAL


def workload_of(name: str) -> Workload:
    """Return the workload of the runner Pod with this name."""
    return Workload.POD if stateful_set_of(name) is None else Workload.STATEFUL_SET


def stateful_set_of(name: str) -> str | None:
    """Return the name of the StatefulSet of a runner Pod, or None if its pool has another workload."""
    found = _OF_STATEFUL_SET.fullmatch(name)
    return None if found is None else found[1]
