"""Owner of a token, with generated keys: rotation, outages, the cache, and a hundred thousand forgeries."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from k8s_adapters.runners.identity import (
    KEYS_FOR,
    LARGEST_TOKEN,
    REFETCH_EVERY,
    RETRY_EVERY,
    KeyUnknown,
    TokenRejected,
    TokenVerifier,
    Unjudged,
    review_token,
)
from ostler.clock import Timing
from ostler.errors import Retryable
from tests.unit.k8s_adapters.forgeries import AUDIENCE, ISSUER, NOW, RSA_KID, ClusterKeys, Forger, claims


class StubClient:
    """An API server that publishes the given keys, and answers every POST with `answer`."""

    def __init__(self, published: Any, *, issuer: Any = ISSUER) -> None:
        self.time = 0.0
        self.timing = Timing(clock=lambda: self.time)
        self.published = published
        self.issuer = issuer
        self.away = False
        self.fetches = 0
        self.answer: Any = {}

    def request(self, method: str, path: str, **_rest: Any) -> Any:
        if method == "POST":
            return self.answer
        if path == "/openid/v1/jwks":
            return self.published
        self.fetches += 1
        if self.away:
            raise Retryable("away")
        return {} if self.issuer is None else {"issuer": self.issuer}


@pytest.fixture(scope="module")
def keys() -> ClusterKeys:
    return ClusterKeys.make()


@pytest.fixture
def client(keys: ClusterKeys) -> StubClient:
    return StubClient(keys.published())


def verifier_of(client: StubClient, **options: Any) -> TokenVerifier:
    options = {"now": lambda: datetime.fromtimestamp(NOW + 1, UTC)} | options
    return TokenVerifier(client=client, audience=AUDIENCE, **options)  # type: ignore[arg-type]


def ready(client: StubClient, **options: Any) -> TokenVerifier:
    verifier = verifier_of(client, **options)
    verifier.fetch_keys()
    return verifier


def rotated(keys: ClusterKeys, *, kid: str = "rsa-2") -> tuple[ClusterKeys, dict[str, Any]]:
    """Return a cluster with a new first key, and the key set that contains only this key."""
    fresh = ClusterKeys(rsa.generate_private_key(public_exponent=65537, key_size=2048), keys.second, keys.stranger)
    jwk = RSAAlgorithm.to_jwk(fresh.first.public_key(), as_dict=True) | {"kid": kid}
    return fresh, jwk


def test_both_kinds_of_keys_that_clusters_use_are_understood(keys: ClusterKeys, client: StubClient) -> None:
    verifier = ready(client)
    for token in (keys.sign(claims()), keys.sign_quickly(claims())):
        assert verifier.verify(token).pod_uid == "uid-of-small-0000000a"


@pytest.mark.parametrize(("seed", "count"), [(1, 20_000), pytest.param(2, 100_000, marks=pytest.mark.slow)])
def test_no_forgery_is_accepted_and_each_is_refused_in_order(
    keys: ClusterKeys, client: StubClient, seed: int, count: int
) -> None:
    forger = Forger(keys, seed=seed)
    verifier = ready(client)
    for token in forger.good:
        verifier.verify(token)
    refused: Counter[tuple[str, str]] = Counter()
    for kind, token in forger.tokens(count):
        with pytest.raises((TokenRejected, KeyUnknown)) as caught:
            verifier.verify(token)
        assert all(len(part) < 20 or part not in str(caught.value) for part in token.split("."))
        refused[kind, type(caught.value).__name__] += 1
    assert len(verifier._known) == len(forger.good)
    kinds = {kind.__name__ for kind in forger.kinds}
    assert {kind for kind, _ in refused} == kinds
    assert {kind for kind, how in refused if how == "TokenRejected"} == kinds
    assert client.fetches == 1


def test_a_new_key_is_fetched_when_a_token_names_it_and_the_old_one_serves_on(
    keys: ClusterKeys, client: StubClient
) -> None:
    verifier = ready(client)
    old = keys.sign(claims())
    fresh, jwk = rotated(keys)
    new = fresh.sign(claims("small-0000000b"), headers={"kid": "rsa-2"})
    client.published = {"keys": [*keys.published()["keys"], jwk]}
    with pytest.raises(KeyUnknown):
        verifier.verify(new)

    client.time += REFETCH_EVERY
    verifier.fetch_keys()

    assert verifier.verify(new).pod_name == "small-0000000b"
    assert verifier.verify(old).pod_name == "small-0000000a"


def test_a_withdrawn_key_is_trusted_no_more_also_for_tokens_that_are_remembered(
    keys: ClusterKeys, client: StubClient
) -> None:
    verifier = ready(client)
    old = keys.sign(claims())
    verifier.verify(old)
    _, jwk = rotated(keys)
    client.published = {"keys": [jwk]}
    client.time += KEYS_FOR + 1
    before = verifier.keys_are_old

    verifier.fetch_keys()

    assert (before, verifier.keys_are_old) == (True, False)
    with pytest.raises(KeyUnknown):
        verifier.verify(old)


def test_another_key_under_the_old_name_forgets_what_the_old_one_signed(keys: ClusterKeys, client: StubClient) -> None:
    verifier = ready(client)
    old = keys.sign(claims())
    verifier.verify(old)
    fresh, jwk = rotated(keys, kid=RSA_KID)
    client.published = {"keys": [jwk]}
    client.time += REFETCH_EVERY

    verifier.fetch_keys()

    with pytest.raises(TokenRejected, match="the signature"):
        verifier.verify(old)
    assert verifier.verify(fresh.sign(claims())).pod_name == "small-0000000a"


def test_the_same_keys_fetched_again_keep_what_is_remembered(keys: ClusterKeys, client: StubClient) -> None:
    verifier = ready(client)
    identity = verifier.verify(keys.sign(claims()))
    client.published = keys.published()
    client.time += KEYS_FOR + 1
    verifier.fetch_keys()
    (known,) = verifier._known.values()
    assert known[0] is identity
    assert verifier._published.keys[RSA_KID] == known[1]


@pytest.mark.parametrize(
    ("published", "issuer"),
    [
        ({"keys": []}, ISSUER),
        ({}, ISSUER),
        ({"keys": "none"}, ISSUER),
        (
            {"keys": [None, 7, {}, {"kid": "k"}, {"kty": "RSA", "kid": "k"}, {"kty": "oct", "k": "AA", "kid": "k"}]},
            ISSUER,
        ),
        ({"keys": [{"kty": "RSA", "kid": "k", "n": "!", "e": "AQAB"}]}, ISSUER),
        ({"keys": [{"kty": {}, "crv": [], "kid": "k"}]}, ISSUER),
        (None, ""),
        (None, None),
        (None, 7),
    ],
)
def test_keys_that_read_like_nothing_change_nothing(
    keys: ClusterKeys, client: StubClient, published: Any, issuer: Any
) -> None:
    verifier = ready(client)
    token = keys.sign(claims())
    client.published = keys.published() if published is None else published
    client.issuer = issuer
    client.time += REFETCH_EVERY
    with pytest.raises(Unjudged):
        verifier.fetch_keys()
    assert verifier.verify(token).pod_name == "small-0000000a"


def test_a_key_that_cannot_be_read_does_not_take_the_others_along(keys: ClusterKeys, client: StubClient) -> None:
    client.published = {"keys": [{"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"}, *keys.published()["keys"]]}
    assert ready(client).verify(keys.sign(claims())).pod_name == "small-0000000a"


def test_keys_of_other_kinds_are_not_accepted(keys: ClusterKeys, client: StubClient) -> None:
    curve = ec.generate_private_key(ec.SECP384R1())
    ed25519 = Ed25519PrivateKey.generate()
    shared = bytes(range(64))
    others = [
        ECAlgorithm.to_jwk(curve.public_key(), as_dict=True) | {"kid": "P-384"},
        OKPAlgorithm.to_jwk(ed25519.public_key(), as_dict=True) | {"kid": "Ed25519"},
        HMACAlgorithm.to_jwk(shared, as_dict=True) | {"kid": "shared"},
    ]
    client.published = {"keys": [*others, *keys.published()["keys"]]}
    verifier = ready(client)
    for key, algorithm, kid in ((curve, "ES384", "P-384"), (ed25519, "EdDSA", "Ed25519"), (shared, "HS256", "shared")):
        token = jwt.encode(claims(), key, algorithm=algorithm, headers={"kid": kid})
        with pytest.raises(KeyUnknown):
            verifier.verify(token)


def test_keys_that_are_away_at_the_start_are_asked_for_again_after_a_second(
    keys: ClusterKeys, client: StubClient
) -> None:
    client.away = True
    verifier = verifier_of(client)
    for _ in range(3):
        with pytest.raises(Unjudged):
            verifier.fetch_keys()
        assert client.fetches == 1
    client.away = False
    client.time += RETRY_EVERY

    verifier.fetch_keys()

    assert verifier.verify(keys.sign(claims())).pod_name == "small-0000000a"


def test_keys_that_are_away_later_leave_the_old_ones_and_are_asked_for_again(
    keys: ClusterKeys, client: StubClient
) -> None:
    verifier = ready(client)
    token = keys.sign(claims())
    client.away = True
    client.time += KEYS_FOR + 1
    with pytest.raises(Unjudged):
        verifier.fetch_keys()
    assert verifier.verify(token).pod_name == "small-0000000a"
    assert not verifier.keys_are_old
    client.time += RETRY_EVERY
    assert verifier.keys_are_old


def test_a_remembered_token_ends_with_its_expiry(keys: ClusterKeys, client: StubClient) -> None:
    now = [NOW + 1]
    verifier = ready(client, now=lambda: datetime.fromtimestamp(now[0], UTC))
    token = keys.sign(claims())
    verifier.verify(token)
    now[0] = NOW + 3600
    with pytest.raises(TokenRejected, match="has expired"):
        verifier.verify(token)
    assert len(verifier._known) == 0


def test_no_more_tokens_are_remembered_than_allowed_and_the_oldest_goes(keys: ClusterKeys, client: StubClient) -> None:
    verifier = ready(client, remembered=3)
    for number in range(5):
        verifier.verify(keys.sign_quickly(claims(f"small-{number}")))
    assert [identity.pod_name for identity, _ in verifier._known.values()] == ["small-2", "small-3", "small-4"]


def test_a_token_beyond_the_limit_is_refused_before_it_is_read(client: StubClient) -> None:
    with pytest.raises(TokenRejected, match="too long"):
        ready(client).verify("x" * (LARGEST_TOKEN + 1))


YES = {
    "authenticated": True,
    "audiences": [AUDIENCE],
    "user": {"extra": {"authentication.kubernetes.io/pod-uid": ["uid"]}},
}


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (YES, True),
        ({"authenticated": False}, False),
        ({"error": "service account token has been invalidated"}, False),
        (YES | {"authenticated": "true"}, False),
        (YES | {"audiences": None}, False),
        (YES | {"audiences": ["elsewhere"]}, False),
        (YES | {"user": {"extra": {"authentication.kubernetes.io/pod-uid": ["another"]}}}, False),
        (YES | {"user": {}}, False),
        (YES | {"user": None}, False),
        ({}, None),
        (None, None),
        ([], None),
        ("no", None),
    ],
)
def test_a_review_is_a_no_only_when_it_says_so(client: StubClient, status: Any, verdict: bool | None) -> None:
    client.answer = {"kind": "TokenReview", "status": status}
    found = review_token(client, token="t", audience=AUDIENCE, timeout=0.3, pod_uid="uid")  # type: ignore[arg-type]
    assert found is verdict
