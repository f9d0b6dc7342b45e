"""A real Pod's token, a real API server behind a fault proxy, the real poller, and a real web process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from k8s_adapters.calls.client import KubeClient, make_client, object_path
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners import identity
from k8s_adapters.runners.identity import TokenVerifier
from k8s_adapters.runners.runners import create_runner, delete_runner
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy, Kind
from tests.integration.web.polls.stage import Pod, Stage, WebProcess
from tests.integration.web.polls.test_answer_table import left_by, prepared, run_poller
from tests.timed import changed
from tests.waiting import eventually
from web.runners.cluster import KubernetesCluster

AUDIENCE = "ostler-dispatch"
NAME = "small-0000000a"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
KEYS = "/openid/v1/jwks"


@dataclass(frozen=True, slots=True)
class RealPod(Pod):
    """A Pod in the cluster, with a token like the one that its kubelet would project."""

    projected: str

    @property
    def token(self) -> str:
        return self.projected


@pytest.fixture
def pod(stage: Stage, admin: KubeClient, namespace: str) -> RealPod:
    pool = create_pool(admin, namespace=namespace, name="small", spec={"image": "i", "runnerLabels": ["linux"]})
    uid = create_runner(admin, pool=pool, name=NAME, attempt="a", dispatch_url="http://web/", audience=AUDIENCE).uid
    answer = admin.request(
        "POST",
        f"{object_path('serviceaccounts', namespace=namespace, name=NAME)}/token",
        body={
            "spec": {
                "audiences": [AUDIENCE],
                "expirationSeconds": 3600,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": NAME, "uid": uid},
            }
        },
    )
    pool_id = stage.pool()
    stage.execute("UPDATE pools SET namespace = :namespace", namespace=namespace)
    pod_id = stage.scalar(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        VALUES (:pool_id, :namespace, :name, :uid, 'a', 'h', now()) RETURNING id
        """,
        pool_id=pool_id,
        namespace=namespace,
        name=NAME,
        uid=uid,
    )
    return RealPod(pod_id, uid, NAME, pool_id, answer["status"]["token"])


@pytest.fixture
def proxy(control_plane: ClusterAccess) -> Iterator[FaultProxy]:
    with FaultProxy(control_plane.url, ca_file=control_plane.ca_file) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy, control_plane: ClusterAccess) -> Iterator[KubeClient]:
    """Web's own client, which reaches the API server through the proxy."""
    client = make_client(kubeconfig=str(proxy.kubeconfig(control_plane.kubeconfig)))
    yield client
    client.close()


def start(stage: Stage, client: KubeClient, namespace: str, **settings: float) -> WebProcess:
    """Return a web process that fetches the keys again for each token."""
    verifier = TokenVerifier(client=client, audience=AUDIENCE, refetch_every=0.0)
    own = changed(stage.settings, **settings)
    cluster = KubernetesCluster(client=client, verifier=verifier, settings=own)
    return stage.start_web(cluster=cluster, namespace=namespace, **settings)


@pytest.fixture
def web(stage: Stage, client: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch) -> WebProcess:
    # A review that a busy machine delays would be a missed one (law L10), and these tests are about its answer.
    monkeypatch.setattr("web.runners.handover.REVIEW_WITHIN", 20)
    return start(stage, client, namespace, token_review_timeout=10.0, poll_hold_min=0.2, poll_hold_max=0.3)


def test_a_living_pods_token_is_confirmed_and_gets_its_jit(
    stage: Stage, pod: RealPod, web: WebProcess, tmp_path: Path
) -> None:
    claim_id = stage.claim(pod)
    ended = run_poller(tmp_path, pod, web)
    assert (ended.code, ended.message) == (0, str(claim_id))
    assert web.web.counts["token_review.missed"] == 0


def test_the_stolen_token_of_a_deleted_pod_gets_nothing(
    stage: Stage, pod: RealPod, web: WebProcess, admin: KubeClient, namespace: str, tmp_path: Path
) -> None:
    # The token is remembered as good. This poll must end before the claim: a review for it would count for 10 s more
    # in the cache of the API server.
    assert web.poll(pod.token).status_code == 204
    claim_id = stage.claim(pod)
    delete_runner(admin, namespace=namespace, name=NAME, uid=pod.uid)

    ended = run_poller(tmp_path, pod, web)

    assert (ended.code, ended.message) == (1, "refused: status 401")
    assert left_by(tmp_path) == ["no-work"]
    assert stage.state(claim_id) == "minted"
    assert web.web.counts["token_review.refused"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=Kind.STATUS, path_regex=REVIEWS, status=503),
        Fault(kind=Kind.STATUS, path_regex=REVIEWS, status=403),
        Fault(kind=Kind.STATUS, path_regex=REVIEWS, status=201, body='{"kind":"TokenReview"}'),
        Fault(kind=Kind.RESET_BEFORE, path_regex=REVIEWS),
        Fault(kind=Kind.RESET_AFTER, path_regex=REVIEWS),
    ],
    ids=["503", "403", "no verdict", "reset before", "reset after"],
)
def test_a_review_that_cannot_be_had_is_counted_and_refuses_nobody(
    stage: Stage, pod: RealPod, web: WebProcess, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    claim_id = stage.claim(pod)
    proxy.add(fault)
    ended = run_poller(tmp_path, pod, web)
    assert (ended.code, ended.message) == (0, str(claim_id))
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["token_review.missed"] == 1


def test_keys_that_are_away_at_the_start_make_pods_wait_and_end_none(
    stage: Stage, pod: RealPod, web: WebProcess, proxy: FaultProxy, tmp_path: Path
) -> None:
    claim_id = stage.claim(pod)
    fault = proxy.add(Fault(kind=Kind.STATUS, path_regex=KEYS, status=503, times=2))
    ended = run_poller(tmp_path, pod, web, give_up_after=1000)
    assert (ended.code, ended.message) == (0, str(claim_id))
    assert ended.slept
    assert all(1 <= slept <= 1.5 for slept in ended.slept)
    assert fault.times == 2
    assert web.web.counts["keys.missed"] >= 1


def test_a_review_that_takes_longer_than_its_limit_is_counted_and_the_jit_delivered(
    stage: Stage, pod: RealPod, client: KubeClient, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The limits are the defaults: 0.3 s for the call. The review still runs when the poller has its JIT."""
    web = start(stage, client, namespace)
    claim_id = stage.claim(pod)
    proxy.add(Fault(kind=Kind.DELAY, path_regex=REVIEWS, delay_seconds=3600))

    ended = run_poller(tmp_path, pod, web)

    assert (ended.code, ended.message) == (0, str(claim_id))
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["token_review.missed"] == 1
    assert proxy.counts["delay"] == 1


def test_a_pod_whose_pool_has_no_row_yet_waits_and_is_then_adopted_and_served(
    stage: Stage, pod: RealPod, web: WebProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.runners.identity.STRANGER_CACHED", 0.0)
    stage.execute("DELETE FROM runner_pods")
    stage.execute("UPDATE pools SET name = 'not yet'")
    script = prepared(tmp_path, pod, give_up_after=100_000)
    process = script.start("poll.sh", url=f"{web.url}/runners/v1/dispatch")
    eventually(lambda: web.web.counts["poll.503"] >= 2)

    stage.execute("UPDATE pools SET name = 'small'")
    eventually(lambda: stage.is_offered(pod))
    adopted = replace(pod, id=stage.scalar("SELECT id FROM runner_pods WHERE uid = :uid", uid=pod.uid))
    claim_id = stage.claim(adopted, state="claimed")
    stage.mint(claim_id)

    ended = script.end(process)
    assert (ended.code, ended.message) == (0, str(claim_id))
    refused = ended.slept[: web.web.counts["poll.503"]]  # a poll that ended before the claim waits for less
    assert all(1 <= slept <= 1.5 for slept in refused), ended.slept


def keys_of(*keys: rsa.RSAPrivateKey) -> Fault:
    """Publish these keys instead of the API server's own."""
    published = [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "before"} for key in keys]
    kind = {"Content-Type": "application/jwk-set+json"}
    return Fault(kind=Kind.STATUS, path_regex=KEYS, status=200, headers=kind, body=json.dumps({"keys": published}))


@pytest.mark.parametrize("published", [True, False], ids=["published meanwhile", "never published"])
def test_token_of_an_unknown_key_is_accepted_only_when_the_cluster_publishes_the_key(
    stage: Stage, pod: RealPod, web: WebProcess, proxy: FaultProxy, tmp_path: Path, *, published: bool
) -> None:
    """A rotation as web sees it: the first fetched keys do not contain the key that the real API server signs with.

    The proxy provides the old keys. The new key, its publication, the token and its review are the API server's own.
    There, a rotation is a restart with other key files.
    """
    proxy.add(keys_of(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    client_of_old = web.poll(jwt.encode({}, "x" * 32, headers={"kid": "stranger"}))
    assert client_of_old.status_code == 401
    assert web.web.counts["keys.fetched"] == 1
    claim_id = stage.claim(pod)
    if published:
        proxy.clear()

    ended = run_poller(tmp_path, pod, web)

    assert (ended.code, ended.message) == ((0, str(claim_id)) if published else (1, "refused: status 401"))
    assert stage.state(claim_id) == ("delivered" if published else "minted")
    assert web.web.counts["keys.fetched"] == 2


def test_a_key_that_the_cluster_withdrew_ends_the_poller_though_its_token_was_good(
    stage: Stage, pod: RealPod, web: WebProcess, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "KEYS_FOR", -1.0)  # old at once: each poll has them fetched beside it
    web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    proxy.add(keys_of(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    fetched = web.web.counts["keys.fetched"]
    web.begin_poll(pod.token)
    eventually(lambda: web.web.counts["keys.fetched"] > fetched)

    ended = run_poller(tmp_path, pod, web)

    assert (ended.code, ended.message) == (1, "refused: status 401")
    assert left_by(tmp_path) == ["no-work"]
