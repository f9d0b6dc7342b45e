"""Failures of an upstream: calls that it could not serve, without refusals and without our own timeouts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from kubernetes.client import ApiClient, Configuration

from github_adapters.calls.http import Deadline, Http
from k8s_adapters.calls.client import KubeClient
from ostler.errors import OstlerError, Retryable
from ostler.upstreams import TALLY, Counts, Upstream
from rules.upstream.retry import ONCE
from tests.unit.github_adapters.upstream import Reply
from tests.unit.github_adapters.upstream import Upstream as Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_counted() -> None:
    TALLY.take()


@contextmanager
def kube(url: str) -> Iterator[KubeClient]:
    configuration = Configuration()
    configuration.host = url
    client = KubeClient(load=lambda: ApiClient(configuration), connect_timeout=2, read_timeout=2)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("status", "failed"),
    [(200, 0), (404, 0), (409, 0), (422, 0), (403, 0), (429, 1), (500, 1), (503, 1), (504, 1)],
)
def test_an_answer_of_kubernetes(server: Server, status: int, failed: int) -> None:
    server.answer = lambda _: Reply(status=status, body={})
    with kube(server.url) as client:
        try:
            client.request("GET", "/api", policy=ONCE)
        except OstlerError:
            assert status != HTTPStatus.OK
    assert TALLY.take() == {Upstream.KUBERNETES: Counts(1, failed)}


def test_failing_webhook_of_the_cluster_is_no_failure_of_kubernetes(server: Server) -> None:
    message = 'Internal error occurred: failed calling webhook "policy.example": no endpoints available'
    server.answer = lambda _: Reply(status=500, body={"kind": "Status", "message": message})
    with kube(server.url) as client, pytest.raises(Retryable):
        client.request("POST", "/api/v1/namespaces/n/pods", body={}, policy=ONCE)
    assert TALLY.take() == {Upstream.KUBERNETES: Counts(1, 0)}


@pytest.mark.parametrize(("status", "failed"), [(200, 0), (404, 0), (403, 0), (429, 0), (500, 1), (502, 1)])
def test_an_answer_of_github(server: Server, status: int, failed: int) -> None:
    server.answer = lambda _: Reply(status=status, body={})
    http = Http(api_url=server.url, timeout=5)
    http.request(method="GET", path="/x", authorization="none", deadline=Deadline(None))
    http.close()
    assert TALLY.take() == {Upstream.GITHUB: Counts(1, failed)}


@pytest.mark.parametrize(("seconds", "counted"), [(1.1, 1), (0.2, 0)])
def test_silence_counts_when_it_was_waited_for(seconds: float, counted: int) -> None:
    expected = Counts(1, 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with kube(url) as client, pytest.raises(OstlerError):
            client.request("GET", "/api", timeout=seconds, policy=ONCE)
        http = Http(api_url=url, timeout=5)
        with pytest.raises(OstlerError):
            http.request(method="GET", path="/x", authorization="none", deadline=Deadline(seconds))
        http.close()
    assert TALLY.take() == (dict.fromkeys(Upstream, expected) if counted else {})


def test_nobody_listening_and_half_an_answer_are_failures(server: Server) -> None:
    server.answer = lambda _: Reply(body={"a": "long answer"}, cut=True)
    with kube(server.url) as client, pytest.raises(OstlerError):
        client.request("GET", "/api", policy=ONCE)
    with kube("http://127.0.0.1:1") as client, pytest.raises(OstlerError):
        client.request("GET", "/api", policy=ONCE)
    assert TALLY.take() == {Upstream.KUBERNETES: Counts(2, 2)}
