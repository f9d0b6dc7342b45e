"""Tokens of every bad kind against the real verifier, with keys made here."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from k8s_adapters.identity import TokenVerifier
from k8s_adapters.retry import Timing
from ostler.clock import utcnow
from ostler.errors import Retryable
from tests.integration.web.polls.stage import NAMESPACE, Pod, Stage, StubCluster, WebProcess, eventually
from web.cluster import KubernetesCluster

ISSUER = "https://cluster.example"
AUDIENCE = "ostler-dispatch"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class StubClient:
    """Publishes the key, reviews every token as good, and knows no Pod."""

    def __init__(self) -> None:
        self.timing = Timing()
        self.away = False
        self.calls: list[str] = []

    def request(self, method: str, path: str, **_rest: Any) -> dict[str, Any]:
        self.calls.append(f"{method} {path}")
        if self.away:
            raise Retryable("away")
        if path == "/.well-known/openid-configuration":
            return {"issuer": ISSUER}
        assert path == "/openid/v1/jwks"
        return {"keys": [RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "k1"}]}


def token(
    pod: Pod,
    *,
    key: Any = KEY,
    algorithm: str = "RS256",
    without: str | None = None,
    bound_to: Any = None,
    **changes: Any,
) -> str:
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "exp": utcnow() + timedelta(hours=1),
        "kubernetes.io": bound_to
        or {
            "namespace": NAMESPACE,
            "serviceaccount": {"name": pod.name, "uid": "s"},
            "pod": {"name": pod.name, "uid": pod.uid},
        },
    }
    claims |= changes
    if without is not None:
        del claims["kubernetes.io"][without]
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "k1"})


def unsigned(pod: Pod) -> str:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "k1"}).encode()).rstrip(b"=").decode()
    return f"{header}.{token(pod).split('.')[1]}."


def start(stage: Stage, client: StubClient) -> WebProcess:
    verifier = TokenVerifier(client=client, audience=AUDIENCE, refetch_every=0)  # type: ignore[arg-type]
    cluster = KubernetesCluster(client=client, verifier=verifier, settings=stage.settings)  # type: ignore[arg-type]
    return stage.start_web(cluster=cluster)


BAD: dict[str, Callable[[Pod], str]] = {
    "expired": lambda pod: token(pod, exp=utcnow() - timedelta(seconds=1)),
    "foreign audience": lambda pod: token(pod, aud=["https://kubernetes.default.svc"]),
    "foreign issuer": lambda pod: token(pod, iss="https://elsewhere.example"),
    "no expiry": lambda pod: token(pod, exp=None),
    "alg none": unsigned,
    "wrong key": lambda pod: token(pod, key=OTHER_KEY),
    "truncated": lambda pod: token(pod)[:-20],
    "signed with the public key's text": lambda pod: token(pod, key="x" * 64, algorithm="HS256"),
    "no Pod": lambda pod: token(pod, without="pod"),
    "no token": lambda _pod: "hello",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_401_and_offers_nothing(stage: Stage, kind: str) -> None:
    pod = stage.pod(stage.pool())
    web = start(stage, StubClient())
    response = web.poll(BAD[kind](pod))
    assert response.status_code == 401
    assert response.content == b""
    assert not stage.is_offered(pod)


def test_a_good_token_is_held_and_its_polls_cost_two_calls_in_all(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    client = StubClient()
    web = start(stage, client)
    good = token(pod)
    web.begin_poll(good)
    eventually(lambda: stage.is_offered(pod))
    web.begin_poll(good)
    eventually(lambda: web.web.counts["poll.204"] == 1)
    assert client.calls == ["GET /.well-known/openid-configuration", "GET /openid/v1/jwks"]


def test_a_token_whose_key_cannot_be_had_is_503_and_good_later(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    client = StubClient()
    client.away = True
    web = start(stage, client)
    good = token(pod)
    assert web.poll(good).status_code == 503
    client.away = False
    web.begin_poll(good)
    eventually(lambda: stage.is_offered(pod))


def test_a_token_of_another_namespace_is_403(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    elsewhere = {
        "namespace": "elsewhere",
        "serviceaccount": {"name": pod.name, "uid": "s"},
        "pod": {"name": pod.name, "uid": pod.uid},
    }
    assert start(stage, StubClient()).poll(token(pod, bound_to=elsewhere)).status_code == 403


def test_the_stub_answers_like_the_real_cluster_does() -> None:
    assert set(dir(KubernetesCluster)) <= set(dir(StubCluster()))
