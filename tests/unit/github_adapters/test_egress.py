"""GitHub behind a proxy, and with a certificate of a private authority."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from github_adapters.calls.http import Answer, Deadline, Http
from lab.processes import free_port
from ostler.errors import Retryable
from tests.private_ca import PrivateCa
from tests.unit.github_adapters.upstream import Reply, Upstream
from tests.unit.lab.test_forward_proxy import forward_proxy

NAME = "api.github.invalid"
"""A name that no resolver knows. Only a proxy with a mapping for it leads there."""


@pytest.fixture
def ca(tmp_path: Path) -> PrivateCa:
    return PrivateCa(tmp_path / "ca")


@pytest.fixture
def github(ca: PrivateCa) -> Iterator[Upstream]:
    """A GitHub over TLS with a certificate for its name and for the loopback address."""
    with Upstream(tls=ca.issue(NAME, "127.0.0.1").context()) as server:
        server.answer = lambda _: Reply(body={"over": "TLS"})
        yield server


def get(url: str, environment: Mapping[str, str], method: str = "GET") -> Answer:
    http = Http(api_url=url, timeout=10, environment=environment)
    try:
        return http.request(method=method, path="/meta", authorization=None, deadline=Deadline(10))
    finally:
        http.close()


def refusal(url: str, environment: Mapping[str, str], method: str = "GET") -> str:
    with pytest.raises(Retryable) as error:
        get(url, environment, method)
    return str(error.value)


def to(github: Upstream, port: int) -> str:
    return f"{NAME}:{port}=127.0.0.1:{github.url.rpartition(':')[2]}"


def test_certificate_of_a_private_authority_is_accepted_with_the_bundle(github: Upstream, ca: PrivateCa) -> None:
    for variable in ("OSTLER_CA_BUNDLE", "SSL_CERT_FILE"):
        assert json.loads(get(github.url, {variable: str(ca.bundle)}).body) == {"over": "TLS"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_certificate_of_an_unknown_authority_is_refused_with_the_cure(github: Upstream, method: str) -> None:
    told = refusal(github.url, {}, method)
    assert github.url.removeprefix("https://") in told
    assert "the certificate of the server is not accepted (" in told
    assert told.endswith("; set OSTLER_CA_BUNDLE to a file with the authority that signed the certificate")


def test_certificate_for_another_name_is_refused_whatever_is_trusted(github: Upstream, ca: PrivateCa) -> None:
    told = refusal(github.url.replace("127.0.0.1", "localhost"), {"OSTLER_CA_BUNDLE": str(ca.bundle)})
    assert "the certificate of the server is not accepted (Hostname mismatch" in told
    assert "OSTLER_CA_BUNDLE" not in told


def test_github_that_only_a_proxy_reaches_is_reached_by_it(github: Upstream, ca: PrivateCa, tmp_path: Path) -> None:
    trusted = {"OSTLER_CA_BUNDLE": str(ca.bundle)}
    assert "the host name cannot be resolved" in refusal(f"https://{NAME}", trusted)

    log = tmp_path / "proxy.jsonl"
    with forward_proxy("--map", to(github, 443), "--log", str(log)) as proxy:
        environment = {**trusted, "HTTPS_PROXY": proxy}
        for method in ("GET", "POST"):
            assert get(f"https://{NAME}", environment, method).status == 200
        # It is excepted: the call does not go by the proxy, so it fails as before.
        assert "the host name cannot be resolved" in refusal(f"https://{NAME}", {**environment, "NO_PROXY": ".invalid"})

    assert [json.loads(line)["method"] for line in log.read_text().splitlines()] == ["CONNECT", "CONNECT"]


def test_plain_http_goes_by_the_proxy_too() -> None:
    with Upstream() as github, forward_proxy("--map", to(github, 80)) as proxy:
        assert get(f"http://{NAME}", {"http_proxy": proxy}).status == 200


def test_login_is_sent_to_the_proxy_and_not_to_github(github: Upstream, ca: PrivateCa) -> None:
    trusted = {"OSTLER_CA_BUNDLE": str(ca.bundle)}
    with forward_proxy("--map", to(github, 443), "--login-env", "LOGIN", env={"LOGIN": "ann:p@ss"}) as proxy:
        with_login = proxy.replace("http://", "http://ann:p%40ss@")
        assert get(f"https://{NAME}", {**trusted, "HTTPS_PROXY": with_login}).status == 200
        told = refusal(f"https://{NAME}", {**trusted, "HTTPS_PROXY": proxy.replace("http://", "http://bob:hunter2@")})
    assert all(not call.authorization for call in github.calls)
    assert "requires a login (407)" in told
    assert "HTTPS_PROXY" in told
    assert "hunter2" not in told


def test_plain_http_answer_407_is_the_proxys_and_no_answer_of_github() -> None:
    with Upstream() as github, forward_proxy("--map", to(github, 80), "--login-env", "L", env={"L": "a:b"}) as proxy:
        told = refusal(f"http://{NAME}", {"HTTP_PROXY": proxy})
    assert "requires a login (407)" in told


def test_proxy_that_does_not_allow_github_is_named_with_the_cure() -> None:
    with forward_proxy("--allow", "elsewhere.example:443") as proxy:
        told = refusal(f"https://{NAME}", {"HTTPS_PROXY": proxy})
    assert told == (
        f"GitHub at {NAME}:443, by the proxy {proxy.removeprefix('http://')}, did not answer: "
        "the proxy does not allow this host (403); allow the host in the proxy, or add it to NO_PROXY"
    )


def test_proxy_that_is_away_is_named() -> None:
    port = free_port()
    told = refusal(f"https://{NAME}", {"HTTPS_PROXY": f"http://u:hunter2@127.0.0.1:{port}"})
    assert told == f"GitHub at {NAME}:443, by the proxy 127.0.0.1:{port}, did not answer: connection refused"
