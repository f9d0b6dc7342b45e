"""The chart without a cluster, as Argo CD renders it: few values, one message, a Job for the certificate."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cli.output import MISTAKE
from k8s_adapters.calls.client import KubeClient, make_client
from lab import helm, kubectl
from lab.control_plane import ClusterAccess
from lab.control_plane_access import write_kubeconfig
from ostler.errors import Forbidden
from tests.contract.chart.values import MATRIX
from tests.integration.cli.test_operator import Done, run_command

FEWEST: dict[str, Any] = {"image": {"repository": "registry.example/ostler"}}
ALONE = {**FEWEST, "web": {"tls": {}}}
"""The same values for `helm.render`, which then adds no certificate."""
EVERYTHING: dict[str, Any] = {
    **MATRIX["everything"],
    "web": {**MATRIX["everything"]["web"], "tls": {}},
    "networkPolicies": {
        **MATRIX["everything"]["networkPolicies"],
        "webAddresses": ["10.0.0.9/32"],
        "controlPlane": {"webFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "runners": {
        **MATRIX["everything"]["runners"],
        "allowedPodSecurity": "privileged",
        "elevatedPools": {"images": "privileged"},
    },
}
"""Values that turn every object of the chart on."""


def rendered(values: helm.Values | None = None, **more: Any) -> list[helm.Manifest]:
    return helm.render(values={**ALONE, **(values or {})}, **more)


def test_one_value_is_enough_and_two_renderings_are_equal() -> None:
    first = rendered()
    assert first == rendered()
    assert {each["kind"] for each in first} >= {"Deployment", "Job", "NetworkPolicy", "ValidatingAdmissionPolicy"}
    assert [each for each in first if each["kind"] == "Secret"] == []


def test_one_message_names_every_value_that_is_missing() -> None:
    values = {
        "image": {"repository": ""},
        "ingress": {"enabled": True},
        "runners": {"containers": {"enabled": True}},
        "web": {"tls": {"existingSecret": "mine"}},
        "workers": {"small": {"keda": {"enabled": True}}},
    }
    with pytest.raises(helm.HelmRefused, match="5 values are missing: ") as told:
        helm.render(values=values)
    for each in (
        "image.repository: it is not set: build the image with `docker build --file compose/Dockerfile",
        "ingress.host: it is not set",
        "networkPolicies.apiServer.addresses: it is not set",
        "web.tls.caBundle or web.tls.caConfigMap: neither is set",
        "keda.redis.address: it is not set, and workers.small",
    ):
        assert each in str(told.value)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"createdBy": "helm"}, "Helm must read the CA back from the cluster.*set ..?job"),
        ({"signer": "1", "trusted": ["1", "2"]}, "only Helm with access to the cluster can replace a CA"),
        ({"createdBy": "me"}, "createdBy"),
    ],
)
def test_an_own_ca_that_a_rendering_cannot_have_is_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmRefused, match=said):
        rendered({"web": {"tls": {"ownCA": own}}})


def test_another_image_or_another_namespace_makes_another_job() -> None:
    def job(values: dict[str, Any]) -> str:
        names = [str(each["metadata"]["name"]) for each in rendered(values) if each["kind"] == "Job"]
        (found,) = [name for name in names if "-certificates-" in name]
        return found

    changes: tuple[dict[str, Any], ...] = (
        {},
        {"image": {"repository": "a"}},
        {"runners": {"namespace": "others"}},
        {"priorityClassName": "high"},
    )
    names = {job(each) for each in changes}
    assert len(names) == 4
    assert all(name.startswith("ostler-certificates-") for name in names)


@dataclass(frozen=True)
class Release:
    """A release that was rendered without the cluster and applied to it."""

    admin: KubeClient
    access: ClusterAccess
    namespace: str
    runners: str
    folder: Path
    values: dict[str, Any]
    manifests: list[helm.Manifest]

    def replaced(self, values: dict[str, Any]) -> Release:
        """Return this release with other values, in the same namespaces. It is not applied yet."""
        values = {**values, "runners": {**values["runners"], **self.values["runners"]}}
        manifests = rendered(values, namespace=self.namespace, hooks=False)
        (self.folder / "rendered.yaml").write_text(yaml.safe_dump_all(manifests))
        return replace(self, values=values, manifests=manifests)

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(kubectl.build()), f"--kubeconfig={self.access.kubeconfig}", *filter(None, arguments)]
        file = f"--filename={self.folder / 'rendered.yaml'}"
        return subprocess.run([*command, file], capture_output=True, text=True, check=False, timeout=120)

    def apply(self, way: str = "") -> str:
        done = self.kubectl("apply", way)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def generations(self) -> dict[str, int | str]:
        """Return the generation of each object, which counts the changes of its spec, or else its version.

        Controllers write the status of objects that have a generation, which changes their version.
        """
        found = json.loads(self.kubectl("get", "--output=json").stdout)["items"]
        return {each["metadata"]["uid"]: _generation(each["metadata"]) for each in found}

    def kubeconfig(self) -> Path:
        """Return a kubeconfig with the rights of the Job."""
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/ostler-certificates/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = self.admin.request("POST", account, body=body)["status"]["token"]
        path = self.folder / "kubeconfig"
        write_kubeconfig(path, url=self.access.url, ca_file=self.access.ca_file, token=token)
        return path

    def run_job(self) -> Done:
        (job,) = [
            each for each in self.manifests if each["kind"] == "Job" and "-certificates-" in str(each["metadata"])
        ]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return run_command({}, *container["args"], "--kubeconfig", str(self.kubeconfig()))

    def data(self, kind: str, name: str, namespace: str | None = None) -> dict[str, str]:
        found = self.admin.request("GET", f"/api/v1/namespaces/{namespace or self.namespace}/{kind}/{name}")
        data: dict[str, str] = found["data"]
        return data

    def everything(self) -> list[dict[str, str]]:
        return [
            self.data("secrets", "ostler-polls-ca"),
            self.data("secrets", "ostler-polls-tls"),
            self.data("configmaps", "ostler-polls-ca", self.runners),
        ]


def _generation(metadata: dict[str, Any]) -> int | str:
    found: int | str = metadata.get("generation") or metadata["resourceVersion"]
    return found


@pytest.fixture
def release(
    admin: KubeClient, control_plane: ClusterAccess, namespace: str, runners: str, tmp_path: Path
) -> Iterator[Release]:
    """A release that is rendered and not applied yet, with the namespaces of its runners."""
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": f"{runners}-elevated"}})
    given = {"runners": {"namespace": runners, "create": False}, "admissionPolicy": {"enabled": False}}
    release = Release(admin, control_plane, namespace, runners, tmp_path, given, []).replaced(given)
    yield release
    release.kubectl("delete", "--ignore-not-found", "--wait=false")
    admin.request("DELETE", f"/api/v1/namespaces/{runners}-elevated")


@pytest.fixture
def applied(release: Release) -> Release:
    """A release that was applied once."""
    release.apply()
    return release


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("values", ["fewest", "everything"])
@pytest.mark.parametrize("way", ["", "--server-side"], ids=["client", "server"])
def test_a_second_apply_changes_no_object(release: Release, way: str, values: str) -> None:
    if values == "everything":
        release = release.replaced(EVERYTHING)
    release.apply(way)
    assert release.run_job().returncode == 0
    before = release.generations(), release.everything()

    told = release.apply(way).splitlines()

    configured = {line.partition("/")[0] for line in told if line.endswith((" configured", " created"))}
    # kubectl sends the selector of each PodDisruptionBudget again, because a patch replaces it. The server then writes
    # nothing, and a server-side apply does not report it.
    assert configured == (set() if way else {"poddisruptionbudget.policy"})
    assert (release.generations(), release.everything()) == before
    diff = release.kubectl("diff", way)
    assert (diff.returncode, diff.stdout) == (0, "")


def test_an_apply_brings_no_hook_and_the_migration_is_rendered_alone(release: Release) -> None:
    assert [each for each in release.manifests if "helm.sh/hook" in each["metadata"].get("annotations", {})] == []
    migration = rendered(only="templates/migrate.yaml")
    assert [each["metadata"]["name"] for each in migration if each["kind"] == "Job"] == ["ostler-migrate"]


def test_the_job_makes_a_trusted_certificate_and_a_second_run_keeps_it(applied: Release) -> None:
    first = applied.run_job()
    assert first.stdout == "created: Secret ostler-polls-ca, Secret ostler-polls-tls, ConfigMap ostler-polls-ca\n"
    ca, tls, bundle = before = applied.everything()
    certificate = x509.load_pem_x509_certificate(base64.b64decode(tls["tls.crt"]))
    trusted = x509.load_pem_x509_certificates(bundle["ca.crt"].encode())
    host = x509.DNSName(f"ostler-web-polls.{applied.namespace}.svc")
    PolicyBuilder().store(Store(trusted)).build_server_verifier(host).verify(certificate, [])
    assert set(ca) == {"1.crt", "1.key", "1.ends"}
    assert "PRIVATE" not in first.stdout + first.stderr

    assert applied.run_job().stdout == "nothing is missing, and nothing was changed\n"
    assert applied.everything() == before
    path = f"/api/v1/namespaces/{applied.namespace}/secrets/ostler-polls-tls"
    applied.admin.request("DELETE", path)
    assert applied.run_job().stdout == "created: Secret ostler-polls-tls\n"
    assert applied.everything()[0] == ca


def test_helm_takes_over_a_release_that_was_rendered_and_keeps_its_certificate(applied: Release) -> None:
    assert applied.run_job().returncode == 0
    before = applied.everything()
    values = {**applied.values, **FEWEST}
    kubeconfig, namespace = applied.access.kubeconfig, applied.namespace
    helm.upgrade_install(values=values, take_ownership=True, kubeconfig=kubeconfig, namespace=namespace)
    ca, tls, bundle = applied.everything()
    assert [ca, tls] == before[:2]
    assert bundle["ca.crt"].strip() == before[2]["ca.crt"].strip()
    helm.uninstall(kubeconfig=kubeconfig, namespace=namespace)


def test_objects_that_do_not_fit_each_other_are_named_with_a_cure(applied: Release) -> None:
    assert applied.run_job().returncode == 0
    path = f"/api/v1/namespaces/{applied.namespace}/secrets/ostler-polls-ca"
    applied.admin.request("DELETE", path)
    told = applied.run_job()
    assert told.returncode == MISTAKE
    assert "does not contain the CA of Secret ostler-polls-ca: add the CA to the ConfigMap" in told.stderr


@pytest.mark.parametrize(
    ("method", "name", "kind"),
    [
        ("PATCH", "ostler", "secrets"),
        ("GET", "ostler", "secrets"),
        ("POST", "", "secrets"),
        ("DELETE", "ostler-polls-ca", "secrets"),
        ("PATCH", "other", "configmaps"),
    ],
)
def test_the_job_has_no_right_to_any_other_object(applied: Release, method: str, name: str, kind: str) -> None:
    client = make_client(kubeconfig=str(applied.kubeconfig()))
    body = {"apiVersion": "v1", "kind": "Secret" if kind == "secrets" else "ConfigMap", "metadata": {"name": "ostler"}}
    content: dict[str, Any] = {"body": body} if method in {"PATCH", "POST"} else {}
    if method == "PATCH":
        content |= {"content_type": "application/apply-patch+yaml", "query": {"fieldManager": "a"}}
    try:
        with pytest.raises(Forbidden):
            client.request(method, f"/api/v1/namespaces/{applied.namespace}/{kind}/{name}".rstrip("/"), **content)
    finally:
        client.close()
