"""Who a polling Pod is: its projected ServiceAccount token, verified offline with the cluster's keys.

Verifying costs no API call, except for the keys, which are fetched when a token names an unknown one and
at most once per `refetch_every` seconds. A deleted Pod's token stays good here until it expires; the
TokenReview right before a JIT is delivered is what notices that (the API server itself does so only
10 s after the deletion).
No message holds a token or a part of one (law L13).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jwt
from jwt import PyJWK

from k8s_adapters.client import Json, KubeClient
from k8s_adapters.retry import RetryPolicy
from ostler.clock import utcnow
from ostler.errors import OstlerError, UpstreamError

TOKEN_BYTES = 16 * 1024
# The algorithm follows from the key, never from the token's header.
_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}
_KEYS_POLICY = RetryPolicy(attempts=2, base=0.1, deadline=5.0)
_JWKS = "application/jwk-set+json"
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_POD_UID = "authentication.kubernetes.io/pod-uid"


class TokenRejected(OstlerError):
    """The token is bad; the reason is for our log only."""


class Unjudged(OstlerError):
    """It cannot be told now whether the token is good: the cluster's keys are out of reach."""


@dataclass(frozen=True, kw_only=True)
class PodIdentity:
    """The Pod that a token was made for."""

    namespace: str
    service_account: str
    pod_name: str
    pod_uid: str
    expires_at: datetime


class TokenVerifier:
    """Verifies tokens of one audience; safe to share between threads."""

    def __init__(
        self,
        *,
        client: KubeClient,
        audience: str,
        refetch_every: float = 10.0,
        remembered: int = 20_000,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._client = client
        self._audience = audience
        self._refetch_every = refetch_every
        self._remembered = remembered
        self._now = now
        self._issuer: str | None = None
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at: float | None = None
        self._fetching = threading.Lock()
        self._known: OrderedDict[bytes, PodIdentity] = OrderedDict()
        self._knowing = threading.Lock()

    def verify_cached(self, token: str) -> PodIdentity | None:
        """Return the identity of a token that was verified before and has not expired; no I/O."""
        identity = self._known.get(_digest(token))
        return identity if identity is not None and identity.expires_at > self._now() else None

    def verify(self, token: str) -> PodIdentity:
        """Return the identity behind a token; blocks while keys are fetched.

        Raises `TokenRejected` for a bad one, `Unjudged` when its key is unknown and the keys cannot be had.
        """
        cached = self.verify_cached(token)
        if cached is not None:
            return cached
        if len(token) > TOKEN_BYTES:
            raise TokenRejected("the token is too long")
        key_id = _key_id(token)
        claims = self._claims(token, self._key(key_id))
        identity = _identity(claims)
        self._remember(_digest(token), identity)
        return identity

    def _claims(self, token: str, key: PyJWK) -> Json:
        try:
            claims: Json = jwt.decode(
                token,
                key=key.key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # The names of PyJWT's errors say what is wrong; its texts may quote the token.
            raise TokenRejected(type(error).__name__) from None
        # Against our own clock, so that tests and the cache share it with this check.
        now = self._now().timestamp()
        if not _is_number(claims["exp"]) or claims["exp"] <= now:
            raise TokenRejected("ExpiredSignatureError")
        not_before = claims.get("nbf", 0)
        if not _is_number(not_before) or not_before > now + 1:  # whole seconds, and clocks differ a little
            raise TokenRejected("ImmatureSignatureError")
        return claims

    def _key(self, key_id: str) -> PyJWK:
        """Return a key of the cluster, fetched if it is not known."""
        key = self._keys.get(key_id)
        if key is not None:
            return key
        with self._fetching:
            key = self._keys.get(key_id)
            if key is not None:
                return key
            clock = self._client.timing.clock()
            if self._fetched_at is not None and clock - self._fetched_at < self._refetch_every:
                if self._issuer is None:
                    raise Unjudged("the cluster's keys were out of reach a moment ago")
                raise Unjudged("the key is unknown, and the keys were fetched a moment ago")
            self._fetched_at = clock
            self._fetch()
        key = self._keys.get(key_id)
        if key is None:
            raise TokenRejected("the cluster has no such key")
        return key

    def _fetch(self) -> None:
        try:
            discovery = self._client.request("GET", "/.well-known/openid-configuration", policy=_KEYS_POLICY)
            published = self._client.request("GET", "/openid/v1/jwks", accept=_JWKS, policy=_KEYS_POLICY)
            keys = _usable(published)
            issuer = str(discovery["issuer"])
        except (UpstreamError, KeyError, jwt.PyJWTError) as error:
            raise Unjudged(f"the cluster's keys cannot be had: {type(error).__name__}") from error
        self._issuer, self._keys = issuer, keys

    def _remember(self, digest: bytes, identity: PodIdentity) -> None:
        with self._knowing:
            self._known[digest] = identity
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)


def review_token(
    client: KubeClient, *, token: str, audience: str, timeout: float, pod_uid: str | None = None
) -> bool | None:
    """Ask the API server about a token.

    True: authenticated, for this audience and (where given) this Pod. False: a definite no. None: it could
    not be had within `timeout` seconds, or the API server does not let us ask.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    policy = RetryPolicy(attempts=1, deadline=timeout)
    try:
        status: Json = client.request("POST", _REVIEWS, body=body, policy=policy).get("status") or {}
    except UpstreamError:
        return None
    if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
        return False
    extra = (status.get("user") or {}).get("extra") or {}
    return pod_uid is None or extra.get(_POD_UID) == [pod_uid]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _key_id(token: str) -> str:
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRejected("the token is no JWT") from None
    if not isinstance(key_id, str):
        raise TokenRejected("the token names no key")
    return key_id


def _usable(published: Json) -> dict[str, PyJWK]:
    """Return the published keys by id; those of a type we do not trust are left out."""
    keys: dict[str, PyJWK] = {}
    for each in published["keys"]:
        algorithm = _ALGORITHMS.get((each.get("kty"), each.get("crv")))
        if algorithm is not None and isinstance(each.get("kid"), str):
            keys[each["kid"]] = PyJWK(each, algorithm=algorithm)
    return keys


def _identity(claims: Json) -> PodIdentity:
    """Return the identity from verified claims; a token that is not bound to a Pod is refused."""
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
        raise TokenRejected("the token is bound to no Pod") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("no text")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
