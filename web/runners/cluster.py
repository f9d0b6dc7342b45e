"""Queries to the cluster that polls need. The queries verify the token of a poll, and read the Pod and its pool."""

from __future__ import annotations

from typing import Protocol

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import get_pool
from k8s_adapters.runners.identity import PodIdentity, TokenVerifier, review_token
from k8s_adapters.runners.pods import get_pod
from ostler.settings import Settings
from rules.claims.pod_view import PodView
from rules.upstream.retry import RetryPolicy

_ONCE = RetryPolicy(attempts=1, deadline=3.0)
"""Policy without a retry.

If a query fails, Ostler answers the poll with 503, and the Pod polls again.
"""


class Cluster(Protocol):
    """Queries to the cluster.

    `verify` and `keys_are_old` do not use the network. All other queries use the network and must run in a thread.
    """

    @property
    def keys_are_old(self) -> bool:
        """Return True if the keys of the cluster should be fetched again. The old keys can still verify tokens."""

    def verify(self, token: str) -> PodIdentity:
        """Return the Pod that a token belongs to. This method may run in the event loop.

        Raises TokenRejected if the token is not valid, and KeyUnknown if the key of the token is unknown.
        """

    def fetch_keys(self) -> None:
        """Fetch the cluster's keys. Only one fetch may run at a time. Raises Unjudged if the fetch fails."""

    def review(self, token: str, *, pod_uid: str) -> bool | None:
        """Return True if the API server still accepts the token for this Pod; False if it refuses the token.

        Return None if the API server gives no verdict, for example because it does not answer in time.
        """

    def pod(self, *, namespace: str, name: str) -> PodView | None:
        """Return a Pod, or None if it does not exist. Raises UpstreamError if the query fails."""

    def has_pool(self, *, namespace: str, name: str) -> bool:
        """Return whether a pool exists. Raises UpstreamError if the query fails."""


class KubernetesCluster:
    """The queries to the real cluster."""

    def __init__(self, *, client: KubeClient, verifier: TokenVerifier, settings: Settings) -> None:
        self._client = client
        self._verifier = verifier
        self._settings = settings

    @property
    def keys_are_old(self) -> bool:
        """Return True if the keys of the cluster should be fetched again. The old keys can still verify tokens."""
        return self._verifier.keys_are_old

    def verify(self, token: str) -> PodIdentity:
        """Return the Pod that a token belongs to.

        The token is verified offline with the keys that the cluster publishes.
        """
        return self._verifier.verify(token)

    def fetch_keys(self) -> None:
        """Fetch the cluster's keys with two GETs."""
        self._verifier.fetch_keys()

    def review(self, token: str, *, pod_uid: str) -> bool | None:
        """Return the verdict of a TokenReview. Return None if the API server gives no verdict (law L10)."""
        return review_token(
            self._client,
            token=token,
            audience=self._settings.token_audience,
            timeout=self._settings.timings.token_review_timeout,
            pod_uid=pod_uid,
        )

    def pod(self, *, namespace: str, name: str) -> PodView | None:
        """Read a Pod with one GET. Return None if the Pod does not exist."""
        return get_pod(self._client, namespace=namespace, name=name, policy=_ONCE)

    def has_pool(self, *, namespace: str, name: str) -> bool:
        """Read a pool with one GET. Return whether the pool exists."""
        return get_pool(self._client, namespace=namespace, name=name, policy=_ONCE) is not None
