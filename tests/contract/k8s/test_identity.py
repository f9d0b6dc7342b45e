"""Tokens of real Pods from a real API server, and forgeries of every kind."""

from __future__ import annotations

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from k8s_adapters.calls.client import KubeClient, make_client, object_path
from k8s_adapters.runners.identity import KeyUnknown, PodIdentity, TokenRejected, TokenVerifier, Unjudged, review_token
from k8s_adapters.runners.runners import delete_runner
from lab.control_plane import ClusterAccess
from ostler.clock import Timing, utcnow
from tests.contract.k8s.transport import FaultyTransport, MakeRunner

Faulty = tuple[KubeClient, FaultyTransport]
AUDIENCE = "ostler-dispatch"
NAME = "pool-0000000a"


def token_of(client: KubeClient, namespace: str, uid: str | None, *, audience: str = AUDIENCE, name: str = NAME) -> str:
    """Return a token as the kubelet projects it. It is bound to the Pod unless `uid` is None."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 3600}
    if uid is not None:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
    path = f"{object_path('serviceaccounts', namespace=namespace, name=name)}/token"
    return str(client.request("POST", path, body={"spec": spec})["status"]["token"])


@pytest.fixture
def verifier(admin: KubeClient) -> TokenVerifier:
    return TokenVerifier(client=admin, audience=AUDIENCE)


def who(verifier: TokenVerifier, token: str) -> PodIdentity:
    """Return the identity in a token. The keys are fetched when they are needed, as in the web process."""
    try:
        return verifier.verify(token)
    except KeyUnknown:
        verifier.fetch_keys()
    try:
        return verifier.verify(token)
    except KeyUnknown:
        raise TokenRejected("the cluster does not publish the key of this token") from None


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return jwt.get_unverified_header(token), jwt.decode(token, options={"verify_signature": False})


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def test_a_pods_token_says_which_pod_it_is(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    uid = make_runner().uid
    token = token_of(admin, namespace, uid)

    identity = who(verifier, token)

    assert (identity.namespace, identity.service_account) == (namespace, NAME)
    assert (identity.pod_name, identity.pod_uid) == (NAME, uid)
    assert identity.expires_at > utcnow() + timedelta(minutes=50)
    assert who(verifier, token) == identity


def test_a_token_that_was_verified_once_costs_no_call(
    namespace: str, faulty: Faulty, admin: KubeClient, make_runner: MakeRunner
) -> None:
    token = token_of(admin, namespace, make_runner().uid)
    client, faults = faulty
    verifier = TokenVerifier(client=client, audience=AUDIENCE)
    who(verifier, token)
    who(verifier, token)
    who(verifier, token_of(admin, namespace, make_runner().uid))
    assert faults.calls == ["GET", "GET"]


def test_an_expired_token_is_rejected_also_from_the_cache(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    now = utcnow()
    verifier = TokenVerifier(client=admin, audience=AUDIENCE, now=lambda: now)
    token = token_of(admin, namespace, make_runner().uid)
    who(verifier, token)

    now += timedelta(hours=2)

    with pytest.raises(TokenRejected, match="has expired"):
        who(verifier, token)


def test_a_token_from_the_future_is_rejected(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    verifier = TokenVerifier(client=admin, audience=AUDIENCE, now=lambda: utcnow() - timedelta(minutes=5))
    with pytest.raises(TokenRejected, match="not valid yet"):
        who(verifier, token_of(admin, namespace, make_runner().uid))


def test_a_token_for_another_audience_is_rejected(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    token = token_of(admin, namespace, make_runner().uid, audience="https://kubernetes.default.svc")
    with pytest.raises(TokenRejected, match="another audience"):
        who(verifier, token)


def test_a_token_bound_to_no_pod_is_rejected(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    make_runner()
    with pytest.raises(TokenRejected, match="not bound to a Pod"):
        who(verifier, token_of(admin, namespace, None))


def test_a_token_without_a_signature_is_rejected(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    header, claims = parts(token_of(admin, namespace, make_runner().uid))
    for algorithm in ("none", "None", "NONE"):
        with pytest.raises(TokenRejected):
            who(verifier, f"{encoded({**header, 'alg': algorithm})}.{encoded(claims)}.")


def test_a_token_signed_with_the_public_key_as_a_secret_is_rejected(
    admin: KubeClient,
    namespace: str,
    control_plane: ClusterAccess,
    make_runner: MakeRunner,
    verifier: TokenVerifier,
) -> None:
    header, claims = parts(token_of(admin, namespace, make_runner().uid))
    public = control_plane.kubeconfig.with_name("service-accounts.pub").read_bytes()
    content = f"{encoded({**header, 'alg': 'HS256'})}.{encoded(claims)}"
    signature = base64.urlsafe_b64encode(hmac.digest(public, content.encode(), "sha256")).rstrip(b"=").decode()
    with pytest.raises(TokenRejected):
        who(verifier, f"{content}.{signature}")


def test_a_token_of_another_key_under_a_known_name_is_rejected(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    header, claims = parts(token_of(admin, namespace, make_runner().uid))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    curve = ec.generate_private_key(ec.SECP256R1())
    for forged in (
        jwt.encode(claims, key, algorithm="RS256", headers={"kid": header["kid"]}),
        jwt.encode(claims, key, algorithm="PS256", headers={"kid": header["kid"]}),
        jwt.encode(claims, curve, algorithm="ES256", headers={"kid": header["kid"]}),
    ):
        with pytest.raises(TokenRejected):
            who(verifier, forged)


def test_a_truncated_or_changed_token_is_rejected(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    token = token_of(admin, namespace, make_runner().uid)
    header, claims = parts(token)
    signature = token.rsplit(".", 1)[1]
    claims["kubernetes.io"]["pod"]["uid"] = "another"
    for bad in (token[:-10], token.rsplit(".", 1)[0], f"{encoded(header)}.{encoded(claims)}.{signature}"):
        with pytest.raises(TokenRejected):
            who(verifier, bad)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "\ud800",
        "é" * 100,
        "x" * 20_000,
        f"{encoded(['kid'])}.e30.x",
        f"{encoded({'kid': 7})}.e30.x",
    ],
)
def test_garbage_is_rejected_without_asking_anyone(faulty: Faulty, garbage: str) -> None:
    client, faults = faulty
    with pytest.raises(TokenRejected):
        who(TokenVerifier(client=client, audience=AUDIENCE), garbage)
    assert faults.calls == []


def test_a_deeply_nested_header_is_rejected(faulty: Faulty) -> None:
    header = base64.urlsafe_b64encode(b"[" * 9_000).decode()
    with pytest.raises(TokenRejected):
        who(TokenVerifier(client=faulty[0], audience=AUDIENCE), f"{header}.e30.AAAA")


def test_an_unknown_key_refetches_at_most_once_in_a_while(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess, make_runner: MakeRunner
) -> None:
    clock = [0.0]
    client = make_client(kubeconfig=str(control_plane.kubeconfig), timing=Timing(clock=lambda: clock[0]))
    faults = FaultyTransport(client)
    verifier = TokenVerifier(client=client, audience=AUDIENCE)
    good = token_of(admin, namespace, make_runner().uid)
    _, claims = parts(good)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    stranger = jwt.encode(claims, key, algorithm="RS256", headers={"kid": "stranger"})

    with pytest.raises(TokenRejected):
        who(verifier, stranger)
    for _ in range(5):
        with pytest.raises(Unjudged):
            who(verifier, stranger)
    who(verifier, good)
    assert len(faults.calls) == 2
    clock[0] = 11.0
    with pytest.raises(TokenRejected):
        who(verifier, stranger)
    assert len(faults.calls) == 4
    client.close()


def test_what_cannot_be_judged_is_not_rejected(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    token = token_of(admin, namespace, make_runner().uid)
    client, faults = faulty
    verifier = TokenVerifier(client=client, audience=AUDIENCE, refetch_every=0.0)
    for status in (503, 503, 403, 404):
        faults.answer("GET", status)
    for _ in range(3):
        with pytest.raises(Unjudged):
            who(verifier, token)
    assert who(verifier, token).pod_name == NAME


def test_the_cache_is_bounded(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    verifier = TokenVerifier(client=admin, audience=AUDIENCE, remembered=2)
    uid = make_runner().uid
    tokens = [token_of(admin, namespace, uid) for _ in range(3)]
    for token in tokens:
        who(verifier, token)
    assert len(verifier._known) == 2


def test_a_review_says_yes_to_a_living_pod_and_no_to_everything_else(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    uid = make_runner().uid
    token = token_of(admin, namespace, uid)

    def review(text: str, audience: str = AUDIENCE, pod_uid: str | None = None) -> bool | None:
        return review_token(admin, token=text, audience=audience, timeout=5.0, pod_uid=pod_uid)

    assert review(token) is True
    assert review(token, pod_uid=uid) is True
    assert review(token, pod_uid="another") is False
    assert review(token, audience="elsewhere") is False
    assert review("garbage") is False


def test_a_review_notices_a_pod_that_is_gone_before_its_first_review(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    uid = make_runner().uid
    token = token_of(admin, namespace, uid)
    delete_runner(admin, namespace=namespace, name=NAME, uid=uid)
    assert review_token(admin, token=token, audience=AUDIENCE, timeout=5.0) is False


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_review_that_cannot_be_had_is_neither_yes_nor_no(faulty: Faulty, status: int) -> None:
    client, faults = faulty
    faults.answer("POST", status)
    assert review_token(client, token="t", audience=AUDIENCE, timeout=0.3) is None
    assert faults.calls == ["POST"]


def test_identity_times_are_aware(
    admin: KubeClient, namespace: str, make_runner: MakeRunner, verifier: TokenVerifier
) -> None:
    identity = who(verifier, token_of(admin, namespace, make_runner().uid))
    assert identity.expires_at.tzinfo is UTC
    assert identity.expires_at > datetime.now(UTC)
