"""Questions of the poll to the cluster: identity of a token, its validity, and ownership of a Pod."""

from __future__ import annotations

from typing import Protocol

from k8s_adapters.client import KubeClient
from k8s_adapters.identity import PodIdentity, TokenVerifier, review_token
from k8s_adapters.pods import PodSeen, get_pod
from k8s_adapters.pools import get_pool
from ostler.settings import Settings
from rules.upstream.retry import RetryPolicy

_ONCE = RetryPolicy(attempts=1, deadline=3.0)
"""A poll that cannot be judged is answered 503 and comes again: that is the retry."""


class Cluster(Protocol):
    """The questions; all but `verify` and `keys_are_old` call out and belong into a thread."""

    @property
    def keys_are_old(self) -> bool:
        """Return whether the keys should be fetched again though tokens can be verified."""

    def verify(self, token: str) -> PodIdentity:
        """Return who a token is; for the event loop's thread. Raises TokenRejected or KeyUnknown."""

    def fetch_keys(self) -> None:
        """Fetch the cluster's keys, once at a time. Raises Unjudged."""

    def review(self, token: str, *, pod_uid: str) -> bool | None:
        """Return whether the API server still takes the token for this Pod, None when that cannot be had in time."""

    def pod(self, *, namespace: str, name: str) -> PodSeen | None:
        """Return a Pod. Raises UpstreamError."""

    def has_pool(self, *, namespace: str, name: str) -> bool:
        """Return whether a pool exists. Raises UpstreamError."""


class KubernetesCluster:
    """The real one."""

    def __init__(self, *, client: KubeClient, verifier: TokenVerifier, settings: Settings) -> None:
        self._client = client
        self._verifier = verifier
        self._settings = settings

    @property
    def keys_are_old(self) -> bool:
        """Return whether the keys should be fetched again though tokens can be verified."""
        return self._verifier.keys_are_old

    def verify(self, token: str) -> PodIdentity:
        """Return who a token is, checked offline against the cluster's published keys."""
        return self._verifier.verify(token)

    def fetch_keys(self) -> None:
        """Fetch the cluster's keys by two GETs."""
        self._verifier.fetch_keys()

    def review(self, token: str, *, pod_uid: str) -> bool | None:
        """Return the answer of a TokenReview, None when it cannot be had in time (law L10)."""
        return review_token(
            self._client,
            token=token,
            audience=self._settings.token_audience,
            timeout=self._settings.timings.token_review_timeout,
            pod_uid=pod_uid,
        )

    def pod(self, *, namespace: str, name: str) -> PodSeen | None:
        """Return a Pod by one GET."""
        return get_pod(self._client, namespace=namespace, name=name, policy=_ONCE)

    def has_pool(self, *, namespace: str, name: str) -> bool:
        """Return whether a pool exists, by one GET."""
        return get_pool(self._client, namespace=namespace, name=name, policy=_ONCE) is not None
