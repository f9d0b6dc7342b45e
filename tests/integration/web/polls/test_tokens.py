"""Invalid tokens of every kind with the real verifier and generated keys."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from k8s_adapters.runners import identity
from k8s_adapters.runners.identity import TokenVerifier
from ostler.clock import Timing, utcnow
from ostler.errors import Retryable
from tests.integration.web.polls.stage import NAMESPACE, Pod, Stage, StubCluster, WebProcess
from tests.waiting import eventually
from web.runners.cluster import KubernetesCluster

ISSUER = "https://cluster.example"
AUDIENCE = "ostler-dispatch"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class StubClient:
    """A client that publishes the key, reviews every token as valid, and knows no Pod."""

    def __init__(self) -> None:
        self.timing = Timing()
        self.away = False
        self.calls: list[str] = []
        self.keys = {"k1": KEY}
        self.may_answer = threading.Event()
        self.may_answer.set()

    def request(self, method: str, path: str, **_rest: Any) -> dict[str, Any]:
        self.calls.append(f"{method} {path}")
        self.may_answer.wait(120)
        if self.away:
            raise Retryable("away")
        if path == "/.well-known/openid-configuration":
            return {"issuer": ISSUER}
        assert path == "/openid/v1/jwks"
        return {
            "keys": [
                RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": kid} for kid, key in self.keys.items()
            ]
        }


def token(
    pod: Pod,
    *,
    key: Any = KEY,
    algorithm: str = "RS256",
    kid: str = "k1",
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
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid})


def unsigned(pod: Pod) -> str:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "k1"}).encode()).rstrip(b"=").decode()
    return f"{header}.{token(pod).split('.')[1]}."


def start(stage: Stage, client: StubClient, *, refetch_every: float = 0, **changes: Any) -> WebProcess:
    verifier = TokenVerifier(client=client, audience=AUDIENCE, refetch_every=refetch_every)  # type: ignore[arg-type]
    cluster = KubernetesCluster(client=client, verifier=verifier, settings=stage.settings)  # type: ignore[arg-type]
    return stage.start_web(cluster=cluster, **changes)


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


def test_polls_with_an_unknown_key_share_one_fetch_and_block_no_review_thread(stage: Stage) -> None:
    pool_id = stage.pool()
    pods = [stage.pod(pool_id) for _ in range(16)]
    client = StubClient()
    client.may_answer.clear()
    web = start(stage, client)
    polls = [web.begin_poll(token(pod)) for pod in pods]
    eventually(lambda: client.calls != [])
    eventually(lambda: web.web.polls._admission._fetching is not None)

    assert web.web.threads._cluster._work_queue.qsize() == 0
    client.may_answer.set()

    eventually(lambda: all(stage.is_offered(pod) for pod in pods))
    assert client.calls == ["GET /.well-known/openid-configuration", "GET /openid/v1/jwks"]
    assert not any(poll.done() for poll in polls)


def test_a_new_key_of_the_cluster_is_fetched_when_a_token_names_it(stage: Stage) -> None:
    pool_id = stage.pool()
    old, new = stage.pod(pool_id), stage.pod(pool_id)
    client = StubClient()
    web = start(stage, client)
    web.begin_poll(token(old))
    eventually(lambda: stage.is_offered(old))
    client.keys = {"k1": KEY, "k2": OTHER_KEY}

    web.begin_poll(token(new, key=OTHER_KEY, kid="k2"))

    eventually(lambda: stage.is_offered(new))
    assert web.web.counts["keys.fetched"] == 2


def test_a_key_that_the_cluster_withdrew_lets_nobody_in_once_the_keys_are_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "KEYS_FOR", -1.0)  # old at once: each poll has them fetched beside it
    pod = stage.pod(stage.pool())
    client = StubClient()
    web = start(stage, client, poll_hold_min=0.2, poll_hold_max=0.2)
    good = token(pod)
    assert web.poll(good).status_code == 204
    client.keys = {"k2": OTHER_KEY}

    eventually(lambda: web.poll(good).status_code == 401)


@pytest.mark.parametrize("away", [False, True])
def test_an_unknown_key_is_401_when_the_cluster_says_so_and_503_when_it_says_nothing(stage: Stage, away: bool) -> None:
    pod = stage.pod(stage.pool())
    client = StubClient()
    web = start(stage, client)
    web.begin_poll(token(pod))
    eventually(lambda: stage.is_offered(pod))
    client.away = away
    assert web.poll(token(pod, key=OTHER_KEY, kid="stranger")).status_code == (503 if away else 401)
    assert stage.is_offered(pod)


def test_keys_that_are_away_later_leave_known_keys_in_force(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "KEYS_FOR", -1.0)
    pool_id = stage.pool()
    first, second = stage.pod(pool_id), stage.pod(pool_id)
    client = StubClient()
    web = start(stage, client)
    web.begin_poll(token(first))
    eventually(lambda: stage.is_offered(first))
    client.away = True
    web.begin_poll(token(second))
    eventually(lambda: stage.is_offered(second))
    eventually(lambda: web.web.counts["keys.missed"] > 0)


def test_strangers_cannot_have_the_keys_fetched_more_often_than_allowed(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    client = StubClient()
    web = start(stage, client, refetch_every=3600)
    answers = [web.poll(token(pod, key=OTHER_KEY, kid=f"stranger-{number}")).status_code for number in range(20)]
    assert answers == [401] + [503] * 19
    assert len(client.calls) == 2


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
