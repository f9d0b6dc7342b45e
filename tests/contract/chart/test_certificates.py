"""The certificate of the port for polls: created once by the chart, and read from a real API server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from lab import helm
from lab.control_plane import ClusterAccess

NAMES = "ostler-web-polls.{}.svc"


@dataclass(frozen=True)
class Seen:
    """The objects in the cluster after a deploy."""

    secrets: dict[str, str]
    certificate: x509.Certificate
    bundle: list[x509.Certificate]
    host: str

    def verified(self, *, bundle: list[x509.Certificate] | None = None) -> bool:
        """Return whether a Pod with these CAs would accept web's certificate. By default these are the deploy's CAs."""
        trusted = self.bundle if bundle is None else bundle
        verifier = PolicyBuilder().store(Store(trusted)).build_server_verifier(x509.DNSName(self.host))
        try:
            verifier.verify(self.certificate, [])
        except VerificationError:
            return False
        return True


@dataclass(frozen=True)
class Cluster:
    """A release in its own namespace."""

    kube: KubeClient
    access: ClusterAccess
    namespace: str
    runners: str

    def deploy(self, **tls: Any) -> Seen:
        helm.upgrade_install(values=self.values(**tls), kubeconfig=self.access.kubeconfig, namespace=self.namespace)
        return self.seen()

    def values(self, **tls: Any) -> dict[str, Any]:
        return {
            "runners": {"namespace": self.runners, "create": False},
            "web": {"tls": tls},
            "admissionPolicy": {"enabled": False},
        }

    def roll_back(self, revision: int = 0) -> Seen:
        helm.rollback(kubeconfig=self.access.kubeconfig, namespace=self.namespace, revision=revision)
        return self.seen()

    def seen(self) -> Seen:
        ca, tls = self.get("secrets", "ostler-polls-ca")["data"], self.get("secrets", "ostler-polls-tls")["data"]
        bundle = self.get("configmaps", "ostler-polls-ca", namespace=self.runners)["data"]["ca.crt"]
        return Seen(
            {**ca, **tls},
            x509.load_pem_x509_certificate(base64.b64decode(tls["tls.crt"])),
            x509.load_pem_x509_certificates(bundle.encode()),
            NAMES.format(self.namespace),
        )

    def get(self, kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        path = f"/api/v1/namespaces/{namespace or self.namespace}/{kind}/{name}"
        return self.kube.request("GET", path)

    def annotate(self, **annotations: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/ostler-polls-tls"
        body = {"metadata": {"annotations": {f"ostler.dev/{key}": value for key, value in annotations.items()}}}
        self.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@pytest.fixture
def cluster(admin: KubeClient, control_plane: ClusterAccess, namespace: str, runners: str) -> Iterator[Cluster]:
    yield Cluster(admin, control_plane, namespace, runners)
    helm.uninstall(kubeconfig=control_plane.kubeconfig, namespace=namespace)


def test_two_upgrades_give_the_same_ca_and_certificate(cluster: Cluster) -> None:
    first = cluster.deploy()
    assert first.verified()
    days = (first.certificate.not_valid_after_utc - datetime.now(UTC)).days
    assert 728 <= days <= 730
    assert [cluster.deploy().secrets, cluster.deploy().secrets] == [first.secrets, first.secrets]

    # Also what check-deploy checks, rendered with a check of the cluster; and a release that goes and comes again.
    rendered = helm.render(
        values=cluster.values(), namespace=cluster.namespace, kubeconfig=cluster.access.kubeconfig, upgrade=True
    )
    (secret,) = of_kind(rendered, "Secret", "ostler-polls-ca")
    assert secret["data"].items() <= first.secrets.items()
    helm.uninstall(kubeconfig=cluster.access.kubeconfig, namespace=cluster.namespace)
    assert cluster.deploy().secrets == first.secrets


def test_rotation_lets_every_pod_verify_at_each_step_and_on_the_way_back(cluster: Cluster) -> None:
    steps = [
        cluster.deploy(),
        cluster.deploy(ownCA={"signer": "1", "trusted": ["1", "2"]}),
        cluster.deploy(ownCA={"signer": "2", "trusted": ["1", "2"]}),
        cluster.deploy(ownCA={"signer": "2", "trusted": ["2"]}),
    ]
    assert [len(each.bundle) for each in steps] == [1, 2, 2, 1]
    assert steps[0].certificate == steps[1].certificate != steps[2].certificate == steps[3].certificate
    back = [cluster.roll_back(revision) for revision in (3, 2, 1)]
    assert [each.secrets for each in back] == [each.secrets for each in reversed(steps[:3])]
    for before, after in zip([*steps, *back], [*steps[1:], *back], strict=False):
        # The Pods have either bundle for a minute or two, and web either certificate.
        assert before.verified(bundle=after.bundle)
        assert after.verified(bundle=before.bundle)
    assert not steps[3].verified(bundle=steps[0].bundle)
    assert cluster.deploy().secrets == steps[0].secrets


def test_certificate_is_renewed_by_the_same_ca_in_the_second_half_of_its_life(cluster: Cluster) -> None:
    first = cluster.deploy()
    in_300_days = int((datetime.now(UTC) + timedelta(days=300)).timestamp())
    cluster.annotate(ends=str(in_300_days))
    second = cluster.deploy()
    assert second.certificate != first.certificate
    assert second.bundle == first.bundle
    assert second.verified()


def test_certificate_is_renewed_when_the_names_change(cluster: Cluster) -> None:
    first = cluster.deploy()
    cluster.annotate(names="other.svc")
    second = cluster.deploy()
    assert second.certificate != first.certificate
    assert second.verified()


def test_certificate_does_not_outlive_its_ca(cluster: Cluster) -> None:
    cluster.deploy()
    soon = datetime.now(UTC) + timedelta(days=100)
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets/ostler-polls-ca"
    ends = base64.b64encode(str(int(soon.timestamp())).encode()).decode()
    cluster.kube.request("PATCH", path, body={"data": {"1.ends": ends}}, content_type=MERGE_PATCH)
    cluster.annotate(ends="0")
    assert soon - timedelta(days=2) < cluster.deploy().certificate.not_valid_after_utc <= soon + timedelta(hours=1)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"caBundle": "-----BEGIN CERTIFICATE-----"}, "the chart would create its own certificate: name yours"),
        ({"existingSecret": "a"}, "web.tls.caBundle or web.tls.caConfigMap: neither is set.*set the CA"),
        (
            {"certManager": {"issuerRef": {"name": "a"}}},
            "web.tls.caBundle or web.tls.caConfigMap: neither is set.*set the CA",
        ),
        ({"existingSecret": "a", "certManager": {"issuerRef": {"name": "a"}}, "caConfigMap": "b"}, "remove one"),
        ({"existingSecret": "a", "caBundle": "-----BEGIN CERTIFICATE-----", "caConfigMap": "b"}, "remove one"),
        ({"existingSecret": "a", "caBundle": "MIIB"}, "caBundle"),
        ({"ownCA": {"signer": "new CA", "trusted": ["1"]}}, "signer"),
    ],
)
def test_values_that_lead_to_no_certificate_are_refused_with_cause_and_cure(tls: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmRefused, match=said):
        helm.render(values={"web": {"tls": tls}})


def test_signer_that_pods_do_not_trust_is_refused(control_plane: ClusterAccess) -> None:
    values = {"web": {"tls": {"ownCA": {"signer": "2", "trusted": ["1"]}}}}
    with pytest.raises(helm.HelmRefused, match='signer "2" is not in trusted'):
        helm.render(values=values, kubeconfig=control_plane.kubeconfig)


PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"


def of_kind(objects: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]


def environment(objects: list[dict[str, Any]], name: str) -> dict[str, str]:
    (found,) = of_kind(objects, "Deployment", name)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize("source", [{"existingSecret": "mine"}, {"certManager": {"issuerRef": {"name": "ca"}}}])
def test_certificate_of_others_comes_with_its_bundle(source: dict[str, Any]) -> None:
    objects = helm.render(values={"web": {"tls": {**source, "caBundle": PEM}}})
    (bundle,) = of_kind(objects, "ConfigMap", "ostler-polls-ca")
    assert bundle["metadata"]["namespace"] == "ostler-runners"
    assert bundle["data"]["ca.crt"].strip() == PEM
    assert environment(objects, "ostler-worker-default")["OSTLER_DISPATCH_CA"] == "ostler-polls-ca"
    (web,) = of_kind(objects, "Deployment", "ostler-web")
    (volume,) = (each for each in web["spec"]["template"]["spec"]["volumes"] if each["name"] == "polls-tls")
    name = volume["secret"]["secretName"]
    assert not of_kind(objects, "Secret", name)
    for made in of_kind(objects, "Certificate", name):
        assert made["spec"]["secretName"] == name
        assert "ostler-web-polls.ostler.svc" in made["spec"]["dnsNames"]
    assert name == source.get("existingSecret", "ostler-polls-tls")


def test_plain_http_is_there_when_asked_for_and_has_nothing_of_tls() -> None:
    objects = helm.render(values={"web": {"tls": {"enabled": False}}})
    said = environment(objects, "ostler-worker-default")
    assert said["OSTLER_DISPATCH_URL"] == "http://ostler-web-polls.ostler.svc/runners/v1/dispatch"
    assert "OSTLER_DISPATCH_CA" not in said
    assert not any("TLS" in name for name in environment(objects, "ostler-web"))
    assert "8443" not in str(objects)


def test_own_dispatch_url_is_verified_by_the_cas_of_the_image_unless_a_bundle_is_set() -> None:
    url = "https://ci.example.com/runners/v1/dispatch"
    plain = {"dispatchUrl": url, "web": {"tls": {"enabled": False}}}
    assert "OSTLER_DISPATCH_CA" not in environment(helm.render(values=plain), "ostler-worker-default")
    given = {"dispatchUrl": url, "web": {"tls": {"existingSecret": "a", "caBundle": PEM}}}
    assert environment(helm.render(values=given), "ostler-worker-default")["OSTLER_DISPATCH_CA"] == "ostler-polls-ca"


def test_old_address_stays_served_until_plain_polls_are_switched_off() -> None:
    for plain in (True, False):
        tls = {"existingSecret": "a", "caConfigMap": "b", "plainPolls": plain}
        objects = helm.render(values={"web": {"tls": tls}})
        said = environment(objects, "ostler-web")
        assert said["OSTLER_WEB_PLAIN_POLLS"] == str(plain).lower()
        (service,) = of_kind(objects, "Service", "ostler-web-polls")
        assert {each["port"]: each["targetPort"] for each in service["spec"]["ports"]} == (
            {80: "polls", 443: "polls-tls"} if plain else {443: "polls-tls"}
        )
