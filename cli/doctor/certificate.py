"""Check of the certificate at the address that runner Pods poll: its names and its expiry.

The check reads the certificate from the address itself, so it sees the certificate that web presents now. The check
does not verify the issuer, because no process of Ostler reads the ConfigMap with the CAs that runner Pods trust.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from cryptography import x509

from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from ostler.clock import machine_now

FAILS = timedelta(days=7)
WARNS = timedelta(days=30)
"""Remaining lifetimes of a certificate at or below which the check fails (`FAILS`) or warns (`WARNS`)."""

CONNECT_WITHIN = 5.0
"""Maximum seconds to connect to the server, and maximum seconds for the TLS handshake."""

_CURE = (
    "run `helm upgrade` with your values, or renew the certificate where you created it: "
    "docs/operations/certificates.md"
)


def certificate(context: Context) -> Verdict:
    """Check that the certificate of the dispatch URL covers its host and does not expire soon."""
    url = urlsplit(context.settings.dispatch_url)
    host = url.hostname or ""
    if url.scheme != "https":
        return ok("runner Pods poll without TLS, so there is no certificate to check")
    try:
        found = read_certificate(host, url.port or 443)
    except ssl.SSLError as error:
        told = getattr(error, "reason", None) or error.strerror  # an error of Python code has no reason
        return failed(
            f"the TLS handshake with {host} failed: {told}", "check the log of web for tls.certificate_not_loaded"
        )
    except OSError as error:
        told = error.strerror or "no reason was given" if not isinstance(error, TimeoutError) else "no answer in time"
        return unknown(
            f"{host} cannot be reached from here: {told}",
            "run the command in a worker: kubectl exec deploy/ostler-worker-default -- ostler doctor",
        )
    return judge(found, host=host, now=machine_now())


def read_certificate(host: str, port: int) -> x509.Certificate:
    """Return the certificate that a server presents, without verifying it. Raises OSError if the connection fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: the certificate is only checked
    with (
        socket.create_connection((host, port), timeout=CONNECT_WITHIN) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    if shown is None:
        raise ssl.SSLError(0, "the server presented no certificate")
    return x509.load_der_x509_certificate(shown)


def judge(found: x509.Certificate, *, host: str, now: datetime) -> Verdict:
    """Return the verdict on a certificate for a host."""
    ends_at = found.not_valid_after_utc
    left, day = ends_at - now, f"{ends_at:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta(0):
        return failed(f"the certificate of {host} expired at {day}: runner Pods cannot poll", _CURE)
    if not _is_for(found, host):
        return failed(f"the certificate does not cover {host}, so runner Pods cannot poll", _CURE)
    told = f"the certificate of {host} expires in {left.days} days, at {day}"
    if left <= FAILS:
        return failed(told, _CURE)
    return warning(told, _CURE) if left <= WARNS else ok(told)


def _is_for(found: x509.Certificate, host: str) -> bool:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass  # `host` is a name and not an IP address
    wildcard = f"*.{host.partition('.')[2]}"
    return any(each.lower() in {host.lower(), wildcard.lower()} for each in names.get_values_for_type(x509.DNSName))
