"""The certificate of the polls is created once, and an object that exists is never changed."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from k8s_adapters.cluster.polls_certificates import Wanted, ensure
from ostler.errors import ConfigurationError, Conflict, Gone

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = "ostler-web-polls.ostler.svc"
WANTED = Wanted("ostler", "ca", "tls", (HOST, f"{HOST}.cluster.local"), ("runners", "elevated"))
CREATED = ["Secret ca", "Secret tls", "ConfigMap ostler-polls-ca", "ConfigMap ostler-polls-ca"]


class Cluster:
    """A cluster that knows GET, and an apply of an object that does not exist."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.meanwhile: dict[str, dict[str, Any]] = {}
        """Objects that another client creates just before an apply."""

    def request(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None, **_: Any
    ) -> Any:
        if method == "GET":
            if path not in self.objects:
                raise Gone(path)
            return self.objects[path]
        assert (method, list(query or ())) == ("PATCH", ["fieldManager"])
        if path in self.meanwhile:
            self.objects[path] = self.meanwhile[path]
        if path in self.objects:
            raise Conflict(path)
        self.objects[path] = body
        return body


def run(cluster: Any, wanted: Wanted = WANTED) -> list[str]:
    return ensure(cluster, wanted, now=NOW)


def path(name: str) -> str:
    return f"/api/v1/namespaces/ostler/secrets/{name}"


def test_a_second_run_changes_nothing() -> None:
    cluster = Cluster()
    assert run(cluster) == CREATED
    before = dict(cluster.objects)
    assert run(cluster) == []
    assert cluster.objects == before


def test_runner_pods_verify_the_certificate_until_its_ca_ends() -> None:
    cluster = Cluster()
    run(cluster)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(cluster.objects[path("tls")]["data"]["tls.crt"]))
    bundle = cluster.objects["/api/v1/namespaces/elevated/configmaps/ostler-polls-ca"]["data"]["ca.crt"]
    trusted = Store(x509.load_pem_x509_certificates(bundle.encode()))
    for host in WANTED.hosts:
        for days in (0, 3649):
            policy = PolicyBuilder().store(trusted).time(NOW + timedelta(days=days))
            policy.build_server_verifier(x509.DNSName(host)).verify(certificate, [])
    assert certificate.not_valid_after_utc == NOW + timedelta(days=3650)


def test_a_certificate_that_was_deleted_is_signed_by_the_same_ca() -> None:
    cluster = Cluster()
    run(cluster)
    ca = cluster.objects[path("ca")]
    del cluster.objects[path("tls")]
    assert run(cluster) == ["Secret tls"]
    assert cluster.objects[path("ca")] is ca


def test_objects_that_another_run_creates_first_are_kept() -> None:
    first, second = Cluster(), Cluster()
    run(first)
    second.meanwhile = dict(first.objects)
    assert run(second) == []
    assert second.objects == first.objects


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({path("ca"): {"data": {}}}, r"Secret ca has no 1\.crt: delete the Secret"),
        ({path("tls"): {}}, "has a certificate for None, and web needs one for ostler-web-polls"),
        ({"/api/v1/namespaces/runners/configmaps/ostler-polls-ca": {"data": {"ca.crt": "other"}}}, "add the CA"),
    ],
)
def test_an_object_that_does_not_fit_is_named_and_not_changed(change: dict[str, Any], said: str) -> None:
    cluster = Cluster()
    run(cluster)
    cluster.objects |= change
    before = dict(cluster.objects)
    with pytest.raises(ConfigurationError, match=said):
        run(cluster)
    assert cluster.objects == before
