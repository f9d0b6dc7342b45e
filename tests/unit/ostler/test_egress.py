"""Outgoing connections: the proxy of an address, the exceptions in NO_PROXY, and the trusted certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ostler.egress import bypasses, describe, proxy_for, trust
from ostler.errors import ConfigurationError
from tests.private_ca import PrivateCa

GITHUB = "https://api.github.com"


def test_no_variable_means_no_proxy() -> None:
    assert proxy_for(GITHUB, {}) is None
    assert proxy_for(GITHUB, {"HTTP_PROXY": "http://proxy:3128"}) is None


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
@pytest.mark.parametrize("value", ["http://proxy.corp:3128", "proxy.corp:3128", " http://proxy.corp:3128/ "])
def test_proxy_is_read_in_upper_and_lower_case(name: str, value: str) -> None:
    found = proxy_for(GITHUB, {name: value})
    assert found is not None
    assert (found.url, found.variable) == ("http://proxy.corp:3128", name)


def test_lower_case_wins_also_when_it_is_empty() -> None:
    found = proxy_for(GITHUB, {"https_proxy": "one:1", "HTTPS_PROXY": "two:2"})
    assert found is not None
    assert found.address == "one:1"
    assert proxy_for(GITHUB, {"https_proxy": "", "HTTPS_PROXY": "two:2"}) is None


def test_login_of_a_proxy_is_decoded_and_shown_nowhere() -> None:
    environment = {"HTTPS_PROXY": "http://corp%5Cann:p%40ss@proxy:3128"}
    found = proxy_for(GITHUB, environment)
    assert found is not None
    assert found.login == "corp\\ann:p@ss"
    for text in (repr(found), str(found), found.url, describe(environment, GITHUB)):
        assert "ann" not in text
        assert "p@ss" not in text


@pytest.mark.parametrize("value", ["socks5://u:hunter2@proxy:1080", "http://u:hunter2@", "http://u:hunter2@proxy:port"])
def test_what_is_no_proxy_is_refused_without_its_text(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^HTTPS_PROXY: .* must be http://host:port") as error:
        proxy_for(GITHUB, {"HTTPS_PROXY": value})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "host", "excepted"),
    [
        ("*", "anything.example", True),
        ("ghe.corp", "ghe.corp", True),
        ("GHE.corp", "ghe.CORP", True),
        ("corp", "ghe.corp", True),
        (".corp", "ghe.corp", True),
        ("*.corp", "ghe.corp", True),
        ("corp", "notcorp", False),
        ("ghe.corp:443", "ghe.corp", True),
        ("ghe.corp:8443", "ghe.corp", False),
        ("10.0.0.0/8", "10.2.3.4", True),
        ("10.0.0.0/8", "11.2.3.4", False),
        ("10.0.0.0/8", "ten.example", False),
        ("10.2.3.4", "10.2.3.4", True),
        ("fd00::/8", "fd00::1", True),
        ("[fd00::1]:443", "fd00::1", True),
        ("", "ghe.corp", False),
        ("localhost, .svc ,ghe.corp", "ghe.corp", True),
    ],
)
def test_no_proxy_excepts_names_addresses_and_blocks(entry: str, host: str, *, excepted: bool) -> None:
    assert bypasses(host, 443, {"NO_PROXY": entry}) is excepted
    shown = f"[{host}]" if ":" in host else host
    assert (proxy_for(f"https://{shown}", {"HTTPS_PROXY": "p:1", "no_proxy": entry}) is None) is excepted


def names(context: ssl.SSLContext) -> set[str]:
    return {each[0][1] for found in context.get_ca_certs() for each in found["subject"] if each[0][0] == "commonName"}


@pytest.mark.parametrize("variable", ["OSTLER_CA_BUNDLE", "SSL_CERT_FILE"])
def test_private_authorities_are_added_to_those_of_the_system(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = names(trust({}))
    bundle = PrivateCa(tmp_path).bundle
    if variable == "SSL_CERT_FILE":  # OpenSSL itself reads it
        monkeypatch.setenv(variable, str(bundle))

    found = names(trust({variable: str(bundle)}))

    assert "private authority of a test" in found
    assert usual <= found


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "no such file"), ("", "contains no certificate"), ("no certificate", "contains no certificate")],
)
def test_file_without_certificates_is_named(content: str | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=rf"OSTLER_CA_BUNDLE: found '{path}'; .*{why}"):
        trust({"OSTLER_CA_BUNDLE": str(path)})


def test_way_to_an_address_is_told_in_words() -> None:
    assert describe({}, GITHUB) == "directly, trusting the system's certificate authorities"
    environment = {"HTTPS_PROXY": "http://u:hunter2@proxy:3128", "OSTLER_CA_BUNDLE": "/etc/ca.pem"}
    assert describe(environment, GITHUB) == (
        "by the proxy proxy:3128 (HTTPS_PROXY), trusting the system's certificate authorities "
        "and those of /etc/ca.pem (OSTLER_CA_BUNDLE)"
    )
