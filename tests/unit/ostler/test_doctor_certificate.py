"""The check of `ostler doctor` on the certificate of the address that runner Pods poll."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from cli.doctor import certificate
from cli.doctor.checks import CHECKS
from cli.doctor.findings import Outcome
from tests.certificates import Authority

HOST = "ostler-web-polls.ostler.svc"
NOW = datetime.now(UTC)


def context(url: str) -> Any:
    return SimpleNamespace(settings=SimpleNamespace(dispatch_url=url))


def made(lasts: timedelta, *names: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Authority().sign(*names, lasts=lasts).certificate)


@contextmanager
def served(folder: Path, lasts: timedelta) -> Iterator[int]:
    """Run a server with a certificate, and yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority().sign(lasts=lasts).write(folder))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("lasts", "outcome"),
    [
        (timedelta(days=31), Outcome.OK),
        (timedelta(days=30), Outcome.WARNING),
        (timedelta(days=8), Outcome.WARNING),
        (timedelta(days=7), Outcome.FAILED),
        (timedelta(hours=1), Outcome.FAILED),
        (timedelta(hours=-1), Outcome.FAILED),
    ],
)
def test_certificate_warns_for_a_month_and_fails_in_its_last_week(lasts: timedelta, outcome: Outcome) -> None:
    shown = made(timedelta(days=1), HOST)
    found = certificate.judge(shown, host=HOST, now=shown.not_valid_after_utc - lasts)
    assert found.outcome is outcome
    assert HOST in found.cause
    if outcome is not Outcome.OK:
        assert found.cure is not None
        assert "helm upgrade" in found.cure


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [
        ((HOST,), HOST, True),
        ((HOST,), HOST.upper(), True),
        (("other.svc",), HOST, False),
        ((), "127.0.0.1", True),
        ((), "127.0.0.2", False),
        (("*.ostler.svc",), HOST, True),
        (("*.svc",), HOST, False),
    ],
)
def test_certificate_for_another_name_fails(names: tuple[str, ...], host: str, fits: bool) -> None:
    found = certificate.judge(made(timedelta(days=300), *names), host=host, now=NOW)
    assert (found.outcome is Outcome.OK) == fits


def test_certificate_is_read_from_the_address_itself(tmp_path: Path) -> None:
    with served(tmp_path, timedelta(days=19, hours=12)) as port:
        found = certificate.certificate(context(f"https://127.0.0.1:{port}/runners/v1/dispatch"))
    assert (found.outcome, "expires in 19 days" in found.cause) == (Outcome.WARNING, True)


def test_address_without_tls_has_no_certificate_to_end() -> None:
    assert certificate.certificate(context("http://web/runners/v1/dispatch")).outcome is Outcome.OK


def test_address_that_is_not_reached_is_unknown_and_says_where_to_ask() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    for host in (f"127.0.0.1:{port}", "no-such-host.invalid"):
        found = certificate.certificate(context(f"https://{host}/runners/v1/dispatch"))
        assert found.outcome is Outcome.UNKNOWN
        assert found.cure is not None
        assert "kubectl exec" in found.cure


def test_server_that_speaks_no_tls_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        found = certificate.certificate(context(f"https://127.0.0.1:{listening.getsockname()[1]}/runners/v1/dispatch"))
        thread.join()
    assert found.outcome is Outcome.FAILED


def test_server_without_a_certificate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_host: str, _port: int) -> x509.Certificate:
        raise ssl.SSLError(0, "it presents no certificate")

    monkeypatch.setattr(certificate, "read_certificate", read)

    verdict = certificate.certificate(context(f"https://{HOST}"))

    assert (verdict.outcome, "it presents no certificate" in verdict.cause) == (Outcome.FAILED, True)


def test_doctor_asks_for_the_certificate() -> None:
    assert "certificate" in {each.name for each in CHECKS}
