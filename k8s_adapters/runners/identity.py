"""Identity of a polling Pod. The Pod's projected ServiceAccount token is verified offline with the cluster's keys.

A verification needs no API call. The caller fetches the keys when a token names an unknown key, but not within
`REFETCH_EVERY` seconds after a successful fetch or `RETRY_EVERY` seconds after a failed fetch. The caller also fetches
the keys when they are older than `KEYS_FOR` seconds, so that a withdrawn key is not trusted any longer. If a fetch
fails, or returns no issuer or no usable key, the old keys stay in use (law L8).

The deletion of a Pod does not change its token, so this module accepts the token until it expires. Directly before a
delivery, Ostler therefore sends a TokenReview to the API server. The API server rejects the token of a deleted Pod. If
the API server accepted the token shortly before the deletion, it might accept the token from its cache for up to 10 s
more. No message contains a token or a part of one (law L13).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import jwt
from jwt import PyJWK

from k8s_adapters.calls.client import Json, KubeClient
from ostler.clock import utcnow
from ostler.errors import OstlerError, UpstreamError
from rules.upstream.retry import RetryPolicy

LARGEST_TOKEN = 8 * 1024
"""Maximum number of characters in a token. A longer token is rejected. A projected token has about 1,200 characters."""

REFETCH_EVERY = 10.0
"""Minimum number of seconds between a successful fetch of the keys and the next fetch."""

RETRY_EVERY = 1.0
"""Minimum number of seconds between a failed fetch of the keys and the next fetch."""

KEYS_FOR = 300.0
"""Age in seconds after which the keys are fetched again, even if all tokens name known keys."""

# The algorithm depends on the key only. The header of the token is not trusted.
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}
_KEYS_POLICY = RetryPolicy(attempts=2, base=0.1, deadline=5.0)
_JWKS = "application/jwk-set+json"
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_WHY: Mapping[type[Exception], str] = {
    jwt.InvalidAudienceError: "the token was made for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidSignatureError: "the signature of the token is wrong",
    jwt.MissingRequiredClaimError: "the token lacks its audience, its issuer or its time of expiry",
}
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class TokenRejected(OstlerError):
    """The token is not valid. The reason is written only to Ostler's log."""


class KeyUnknown(OstlerError):
    """The token names a key that the last fetch did not return. A new call of `fetch_keys` might return the key."""


class Unjudged(OstlerError):
    """The token cannot be verified now, because the cluster's keys cannot be fetched, or must not be fetched yet."""


@dataclass(frozen=True, kw_only=True)
class PodIdentity:
    """The Pod that a token was made for."""

    namespace: str
    service_account: str
    pod_name: str
    pod_uid: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Key:
    """A published key. Two keys with the same content are equal, even if two fetches returned them."""

    id: str
    content: str
    jwk: PyJWK = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Published:
    issuer: str
    keys: Mapping[str, _Key]


class TokenVerifier:
    """Verifies tokens of one audience.

    Only one thread may call `verify`. Another thread may call `fetch_keys` at the same time, but at most one call of
    `fetch_keys` may run at a time.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        audience: str,
        refetch_every: float = REFETCH_EVERY,
        remembered: int = 20_000,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._client = client
        self._audience = audience
        self._refetch_every = refetch_every
        self._remembered = remembered
        self._now = now
        self._published = _Published("", {})
        self._fetched_at: float | None = None
        self._not_before: float | None = None
        self._known: OrderedDict[bytes, tuple[PodIdentity, _Key]] = OrderedDict()

    @property
    def keys_are_old(self) -> bool:
        """Return whether the keys are older than `KEYS_FOR` seconds and may be fetched again now.

        Tokens can still be verified with the old keys.
        """
        now = self._client.timing.clock()
        return self._fetched_at is not None and now - self._fetched_at > KEYS_FOR and self._may_fetch(now)

    def verify(self, token: str) -> PodIdentity:
        """Return the identity of the Pod that a token was made for. This method does no I/O.

        The identity is cached until the token expires, its key is withdrawn, or the cache has too many newer entries.
        Raises `TokenRejected` if the token is not valid. Raises `KeyUnknown` if the last successful fetch did not
        return the key of the token, or if there was no fetch yet.
        """
        if len(token) > LARGEST_TOKEN:
            raise TokenRejected("the token is too long")
        digest = _digest(token)
        known = self._known.get(digest)
        if known is not None:
            identity, key = known
            if identity.expires_at > self._now() and self._published.keys.get(key.id) == key:
                return identity
            del self._known[digest]
        key_id = _key_id(token)
        published = self._published
        found = published.keys.get(key_id)
        if found is None:
            raise KeyUnknown("the key that signed the token is not among the known keys of the cluster")
        identity = _identity(self._claims(token, found.jwk, published.issuer))
        self._known[digest] = identity, found
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
        return identity

    def fetch_keys(self) -> None:
        """Fetch the cluster's issuer and keys. The call blocks for about 10 s at most.

        Raises `Unjudged` if the keys cannot be fetched, or if the minimum time since the previous fetch has not passed.
        The old keys then stay in use.
        """
        now = self._client.timing.clock()
        if not self._may_fetch(now):
            raise Unjudged(
                "the signing keys of ServiceAccount tokens were requested from the API server a moment ago, so they "
                "are not fetched again yet; send the token again later"
            )
        self._not_before = now + min(RETRY_EVERY, self._refetch_every)
        try:
            discovery = self._client.request("GET", "/.well-known/openid-configuration", policy=_KEYS_POLICY)
            published = self._client.request("GET", "/openid/v1/jwks", accept=_JWKS, policy=_KEYS_POLICY)
        except UpstreamError as error:
            raise Unjudged(
                f"the signing keys of ServiceAccount tokens cannot be fetched from the API server: {error}"
            ) from error
        issuer, keys = discovery.get("issuer"), _usable(published)
        if not isinstance(issuer, str) or not issuer or not keys:
            raise Unjudged(
                "the API server publishes no issuer of ServiceAccount tokens, or no signing key of a trusted type"
            )
        self._published = _Published(issuer, keys)
        self._fetched_at = now
        self._not_before = now + self._refetch_every

    def _may_fetch(self, now: float) -> bool:
        return self._not_before is None or now >= self._not_before

    def _claims(self, token: str, key: PyJWK, issuer: str) -> Json:
        try:
            claims: Json = jwt.decode(
                token,
                key=key.key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # Only the types of PyJWT's errors are used, because their texts might quote the token.
            raise TokenRejected(_WHY.get(type(error), "the token is not a valid JWT")) from None
        # The expiry is compared with this verifier's clock, which the cache and the tests use too.
        now = self._now().timestamp()
        if not _is_number(claims["exp"]) or claims["exp"] <= now:
            raise TokenRejected("the token has expired, or its time of expiry is not a number")
        not_before = claims.get("nbf", 0)
        # Token times are whole seconds, and clocks differ a little. One second of tolerance is therefore added.
        if not _is_number(not_before) or not_before > now + 1:
            raise TokenRejected("the token is not valid yet, or the start of its validity is not a number")
        return claims


def review_token(
    client: KubeClient, *, token: str, audience: str, timeout: float, pod_uid: str | None = None
) -> bool | None:
    """Ask the API server for a TokenReview of a token.

    Return True if the API server accepts the token for `audience` and the token belongs to the Pod with the UID
    `pod_uid`. If `pod_uid` is None, the token of any Pod is accepted. Return False if the API server rejects the token
    or the token belongs to another Pod. Return None if the API server gives no verdict. For example, it does not answer
    within `timeout` seconds, or this process has no right to create a TokenReview.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    policy = RetryPolicy(attempts=1, deadline=timeout)
    try:
        status: Any = client.request("POST", _REVIEWS, body=body, policy=policy).get("status")
    except UpstreamError:
        return None
    # An answer without a status contains no verdict. It must not count as a rejection (law L8).
    if not isinstance(status, dict) or not status:
        return None
    if status.get("authenticated") is not True or audience not in (status.get("audiences") or ()):
        return False
    extra = (status.get("user") or {}).get("extra") or {}
    return pod_uid is None or extra.get(_POD_UID) == [pod_uid]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _key_id(token: str) -> str:
    # PyJWT also accepts a token with padding. Such variants of one token would be cached under several digests.
    if _FORM.fullmatch(token) is None:
        raise TokenRejected("the token is not a JWT")
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRejected("the token is not a JWT") from None
    if not isinstance(key_id, str):
        raise TokenRejected("the token has no key id (`kid`)")
    return key_id


def _usable(published: Json) -> dict[str, _Key]:
    """Return the published keys by id. Keys of an untrusted type and keys that cannot be parsed are left out."""
    keys: dict[str, _Key] = {}
    listed = published.get("keys")
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("kid"), str):
            continue
        kind, curve = each.get("kty"), each.get("crv")
        algorithm = _ALGORITHMS.get((str(kind), None if curve is None else str(curve)))
        if algorithm is None:
            continue
        try:
            jwk = PyJWK(each, algorithm=algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        keys[each["kid"]] = _Key(each["kid"], json.dumps(each, sort_keys=True), jwk)
    return keys


def _identity(claims: Json) -> PodIdentity:
    """Return the identity that verified token claims describe.

    Raises `TokenRejected` if the token is not bound to a Pod.
    """
    bound: Any = claims.get("kubernetes.io")
    try:
        return PodIdentity(
            namespace=_text(bound["namespace"]),
            service_account=_text(bound["serviceaccount"]["name"]),
            pod_name=_text(bound["pod"]["name"]),
            pod_uid=_text(bound["pod"]["uid"]),
            expires_at=datetime.fromtimestamp(claims["exp"], UTC),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise TokenRejected("the token is not bound to a Pod") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("no text")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
