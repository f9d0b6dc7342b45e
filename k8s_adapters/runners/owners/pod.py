"""The workload `Pod`: a runner is one Pod, and no controller replaces it."""

from __future__ import annotations

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.runners.owners.owner import OwnerFound
from k8s_adapters.runners.resources import Created, create_pod
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import RetryPolicy


class PodOwner:
    """Owner of Pods that belong to their pool directly. See `k8s_adapters.runners.owners.owner.Owner`."""

    def create(
        self,
        client: KubeClient,
        *,
        pool: PoolSpec,
        pod: Json,
        policy: RetryPolicy | None,
    ) -> Created:
        """Create the Pod."""
        return create_pod(client, body=pod, policy=policy)

    def find(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        attempt: str | None,
        policy: RetryPolicy | None,
    ) -> OwnerFound | None:
        """Return None without a call."""
        return None

    def end(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        uid: str,
        policy: RetryPolicy | None,
    ) -> None:
        """Do nothing, because there is no object to remove."""

    def release(self, client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None) -> None:
        """Do nothing, because the Pod has no finalizer of Ostler."""
