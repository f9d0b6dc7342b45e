"""The Kubernetes client: its identity, its timeouts and the errors it raises."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config
from kubernetes.config import incluster_config

from k8s_adapters.calls.client import KubeClient, make_client, object_path
from lab.control_plane import ClusterAccess, write_kubeconfig
from ostler.clock import Timing
from ostler.errors import ConfigurationError, Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable, UpstreamError
from rules.upstream.retry import ONCE
from tests.contract.k8s.transport import FaultyTransport

Faulty = tuple[KubeClient, FaultyTransport]


def who_am_i(client: KubeClient) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
    return str(answer["status"]["userInfo"]["username"])


def service_account_token(admin: KubeClient, namespace: str, name: str) -> str:
    accounts = object_path("serviceaccounts", namespace=namespace)
    admin.request("POST", accounts, body={"metadata": {"name": name}})
    answer = admin.request("POST", f"{accounts}/{name}/token", body={"spec": {"expirationSeconds": 3600}})
    return str(answer["status"]["token"])


class _Recorder(BaseHTTPRequestHandler):
    headers_seen: list[dict[str, str]]
    answers: list[tuple[int, bytes]]

    def do_GET(self) -> None:
        self.headers_seen.append(dict(self.headers))
        status, body = self.answers.pop(0) if self.answers else (200, b"{}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        pass


@contextmanager
def recorder(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Run an HTTP server that records headers and sends the planned answers, then `{}`."""
    handler = type("Handler", (_Recorder,), {"headers_seen": [], "answers": list(answers)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.headers_seen  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client_of(folder: Path, url: str, read_timeout: float = 10.0, token: str = "one") -> KubeClient:  # noqa: S107
    path = folder / "kubeconfig"
    write_kubeconfig(path, url=url, ca_file=Path("/nowhere"), token=token)
    return make_client(kubeconfig=str(path), read_timeout=read_timeout, timing=Timing(sleep=lambda _seconds: None))


def test_the_token_leaves_the_process_as_an_authorization_header(tmp_path: Path) -> None:
    with recorder() as (url, headers):
        client = client_of(tmp_path, url, token="abc")
        client.request("GET", "/version")
        client.close()
    assert headers[0]["Authorization"] == "Bearer abc"


def test_a_client_is_who_its_kubeconfig_says(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    token = service_account_token(admin, namespace, "someone")
    write_kubeconfig(path, url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    other = make_client(kubeconfig=str(path))

    assert who_am_i(admin) == "admin"
    assert who_am_i(other) == f"system:serviceaccount:{namespace}:someone"
    assert who_am_i(admin) == "admin"
    with pytest.raises(Forbidden):
        other.request("GET", "/api/v1/nodes")
    other.close()


def test_a_client_does_not_take_over_the_default_configuration(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    # A copy of the default keeps its refresh hook and goes out as the old identity whatever token it is given.
    config.load_kube_config(config_file=str(control_plane.kubeconfig))  # type: ignore[no-untyped-call]
    path = tmp_path / "kubeconfig"
    token = service_account_token(admin, namespace, "someone")
    write_kubeconfig(path, url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    other = make_client(kubeconfig=str(path))
    assert who_am_i(other) == f"system:serviceaccount:{namespace}:someone"
    other.close()


@pytest.fixture
def in_cluster(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The token file of a process that runs in the cluster."""
    token_file = tmp_path / "token"
    token_file.write_text(service_account_token(admin, namespace, "inside"))
    host, port = control_plane.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token_file))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(control_plane.ca_file))
    return token_file


@pytest.mark.parametrize("unset", [None, ""])
def test_in_the_cluster_a_client_is_its_service_account(in_cluster: Path, namespace: str, unset: str | None) -> None:
    assert in_cluster.exists()
    client = make_client(kubeconfig=unset)
    assert who_am_i(client) == f"system:serviceaccount:{namespace}:inside"
    client.close()


def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(in_cluster: Path, namespace: str) -> None:
    good = in_cluster.read_text()
    in_cluster.write_text("revoked")
    client = make_client(kubeconfig=None)
    with pytest.raises(Forbidden):
        who_am_i(client)

    in_cluster.write_text(good)

    assert who_am_i(client) == f"system:serviceaccount:{namespace}:inside"
    client.close()


def test_a_token_file_that_is_gone_for_a_moment_leaves_the_401_standing(in_cluster: Path) -> None:
    in_cluster.write_text("revoked")
    client = make_client(kubeconfig=None)
    in_cluster.unlink()
    with pytest.raises(Forbidden):
        who_am_i(client)
    client.close()


@pytest.mark.parametrize("content", [None, "", "a: [", "kind: Config"])
def test_a_kubeconfig_that_makes_no_sense_is_named_in_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match="OSTLER_KUBECONFIG") as caught:
        make_client(kubeconfig=str(path))
    assert "\n" not in str(caught.value)


def test_outside_a_cluster_a_client_without_a_kubeconfig_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="no kubeconfig is set, and this process has no ServiceAccount token"):
        make_client(kubeconfig=None)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (400, Invalid),
        (401, Forbidden),
        (403, Forbidden),
        (404, Gone),
        (405, Invalid),
        (408, Retryable),
        (409, Conflict),
        (410, Retryable),
        (422, Invalid),
        (429, Retryable),
        (500, Retryable),
        (501, Retryable),
        (503, Retryable),
        (504, Retryable),
    ],
)
def test_a_status_is_raised_by_its_meaning_without_the_servers_words(
    tmp_path: Path, status: int, meaning: type[UpstreamError]
) -> None:
    body = json.dumps({"kind": "Status", "message": "the secret thing", "reason": "SomeReason"}).encode()
    with recorder((status, body)) as (url, _):
        client = client_of(tmp_path, url)
        with pytest.raises(meaning) as caught:
            client.request("GET", "/x", policy=ONCE)
        client.close()
    assert type(caught.value) is meaning
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"


def test_a_call_is_repeated_by_one_layer_only(tmp_path: Path) -> None:
    with recorder(*[(503, b"no")] * 10) as (url, headers):
        client = client_of(tmp_path, url)
        with pytest.raises(Retryable) as caught:
            client.request("GET", "/x")
        client.close()
    assert len(headers) == 4
    assert caught.value.status == 503


@pytest.mark.parametrize("body", [b"", b'{"items": [', b"[]", b"<html>"])
def test_a_success_that_is_no_json_object_is_tried_again(tmp_path: Path, body: bytes) -> None:
    with recorder((200, body), (200, b'{"kind": "x"}')) as (url, headers):
        client = client_of(tmp_path, url)
        assert client.request("GET", "/x") == {"kind": "x"}
        client.close()
    assert len(headers) == 2


def test_a_redirect_is_not_followed_with_our_token(tmp_path: Path) -> None:
    with recorder((302, b"")) as (url, headers):
        client = client_of(tmp_path, url)
        with pytest.raises(UpstreamError):
            client.request("GET", "/x")
        client.close()
    assert len(headers) == 1


@pytest.mark.parametrize(("read_timeout", "timeout"), [(0.1, None), (10.0, 0.1)])
def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, read_timeout: float, timeout: float | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = client_of(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", read_timeout=read_timeout)
        with pytest.raises(Retryable, match="timed out"):
            client.request("GET", "/x", policy=ONCE, timeout=timeout)
        client.close()


def test_nobody_listening_is_retryable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    client = client_of(tmp_path, f"http://127.0.0.1:{port}")
    with pytest.raises(Retryable, match="refused"):
        client.request("GET", "/x")
    client.close()


def test_a_certificate_of_somebody_else_is_not_trusted(control_plane: ClusterAccess, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    written = yaml.safe_load(control_plane.kubeconfig.read_text())
    del written["clusters"][0]["cluster"]["certificate-authority"]
    path.write_text(yaml.safe_dump(written))
    client = make_client(kubeconfig=str(path))
    with pytest.raises(Retryable, match="TLS"):
        client.request("GET", "/version", policy=ONCE)
    client.close()


def test_a_rate_limit_says_how_long(faulty: Faulty) -> None:
    client, faults = faulty
    faults.answer("GET", 429, Retry_After="9")
    with pytest.raises(RateLimited) as caught:
        client.request("GET", "/version", policy=ONCE)
    assert caught.value.after == 9.0
