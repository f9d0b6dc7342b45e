"""Protocol of the owners of runner Pods.

`k8s_adapters.runners.runners` creates and ends every runner through this protocol. Everything else about runners is the
same for all workloads: names, ServiceAccounts, stamps, and the rows and claims in Postgres. An owner therefore stores
no progress in annotations. The retire claim records that a runner must end, and each step is decided from the observed
state (`rules.pools.owner_sync`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.runners.resources import Created
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class OwnerFound:
    """The owner of a Pod.

    `ending` is True if its deletion was requested. It then creates no Pod any more. `orphaning` is True if the garbage
    collector still has to take it off its Pod.
    """

    uid: str
    ending: bool
    orphaning: bool


class Owner(Protocol):
    """An adapter for one workload. All methods can be repeated after any failure."""

    def create(self, client: KubeClient, *, pool: PoolSpec, pod: Json, policy: RetryPolicy | None) -> Created:
        """Create the Pod with this JSON, or the owner whose controller creates it.

        The result has the UID of the Pod, or an empty UID if a controller creates the Pod later. Raises what
        `k8s_adapters.runners.resources.create_pod` raises.
        """

    def find(
        self, client: KubeClient, *, namespace: str, name: str, attempt: str | None, policy: RetryPolicy | None
    ) -> OwnerFound | None:
        """Return the owner of the Pod, or None if there is no such object.

        `name` is the name of the Pod. `attempt` is the attempt that created the runner. An object of another attempt
        belongs to a successor and is ignored. If `attempt` is None, the object may have any attempt.
        """

    def end(self, client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None) -> None:
        """Request the removal of the object with this UID, so that its Pod stays and gets no successor.

        It is no error if the object is gone or has another UID. The garbage collector still has to take the object off
        the Pod.
        """

    def release(self, client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None) -> None:
        """Remove Ostler's finalizer from the Pod with this UID. It is no error if the Pod or the finalizer is gone."""
