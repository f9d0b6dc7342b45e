"""Descriptions of errors in plain words: which server did not answer, and why.

No description contains a password (law L13) or quotes the text of a server. Besides fixed words, a description contains
at most an HTTP status, an SQLSTATE, or a message of the operating system or of OpenSSL. Only `cause_of` names the class
of an exception, if nothing else is known about it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from ostler.errors import (
    Busy,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
    UpstreamError,
)

UNKNOWN = "the call failed"

_PORTS = {"postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_TIMEOUTS = {"Timeout", "TimeoutError", "ConnectTimeoutError", "ReadTimeoutError"}
"""Names of the time-out exceptions of redis and urllib3.

Names are compared instead of classes, so that a description does not need an import of these libraries.
"""
_REDIS = {
    "AuthenticationError": "Redis refuses the user name or the password",
    "AuthenticationRequiredError": "Redis asks for a password",
    "NoPermissionError": "the user of Redis lacks the permission for the command",
    "BusyLoadingError": "Redis is still loading its data",
    "ReadOnlyError": "Redis is a read-only replica",
    "OutOfMemoryError": "the memory of Redis is full",
    "ResponseError": "Redis refuses the command, for example because replicas are missing: check the log of Redis",
}
_POSTGRES = {
    "55P03": "another session has locked the same rows",
    "40P01": "two sessions waited for each other's rows (deadlock)",
    "40001": "another session changed the same rows at the same time",
    "57014": "Postgres cancelled a statement that took too long",
    "25006": "Postgres refuses writes (it is a standby, or default_transaction_read_only is set)",
    "08": "the connection to Postgres was lost",
    "23": "Postgres refuses the row: it breaks a constraint",
    "42": "a table or column does not exist: the database has the schema of another version of Ostler",
    "53": "Postgres has run out of connections, memory or disk",
    "57": "Postgres is shutting down or starting",
}
"""Descriptions of Postgres errors, by SQLSTATE or by the first two characters of the SQLSTATE.

Source: PostgreSQL documentation, "Appendix A. PostgreSQL Error Codes".
"""
_READ_ONLY: dict[bool | None, str] = {
    True: "Postgres is a read-only standby",
    False: "Postgres refuses writes (default_transaction_read_only)",
}
"""Descriptions of the SQLSTATE 25006, by whether Postgres is in recovery (`models.db.engine` records it)."""
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}
"""OpenSSL's verification codes for a missing issuer or a self-signed certificate."""
_MEANINGS: dict[type[UpstreamError], str] = {
    NotInstalled: "the App is not installed in the account or repository",
    Gone: "the requested object does not exist",
    Suspended: "the installation is suspended",
    Forbidden: "access is refused",
    Conflict: "another client changed the object at the same time",
    Invalid: "the request is refused",
    Busy: "the runner is busy",
    RateLimited: "the rate limit is reached",
}


def endpoint(url: str) -> str:
    """Return `host:port` of a URL, without its user and password."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        return "an invalid address"
    host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def reason_of(error: BaseException) -> str:
    """Return a description of why a call over the network failed."""
    for link in _chain(error):
        words = _words(link)
        if words is not None:
            return words
    return UNKNOWN


def meaning_of(error: UpstreamError) -> str:
    """Return a description of why GitHub or Kubernetes did not carry out a call."""
    if isinstance(error, Retryable):
        return f"the server answered {error.status}" if error.status is not None else "the server did not answer"
    return next((words for kind, words in _MEANINGS.items() if isinstance(error, kind)), UNKNOWN)


def words_of(error: BaseException) -> str:
    """Return a description of why a call to GitHub, Kubernetes, Postgres or Redis failed."""
    return meaning_of(error) if isinstance(error, UpstreamError) else reason_of(error)


def cause_of(error: BaseException) -> str:
    """Return a description of why some work failed.

    If no failed call explains the error, the description names the class of the error.
    """
    words = words_of(error)
    return words if words != UNKNOWN else f"an unexpected error ({type(error).__name__})"


def reason_and_cure(error: BaseException) -> str:
    """Return a description of why a call failed.

    If the authority that signed the server's certificate is unknown, the description contains a cure.
    """
    cure = (
        "; set OSTLER_CA_BUNDLE to a file with the authority that signed the certificate"
        if unknown_authority(error)
        else ""
    )
    return f"{reason_of(error)}{cure}"


def unknown_authority(error: BaseException) -> bool:
    """Return whether a certificate was refused because this process does not trust the authority that signed it."""
    return any(
        isinstance(link, ssl.SSLCertVerificationError) and link.verify_code in _UNKNOWN_AUTHORITY
        for link in _chain(error)
    )


def _words(link: BaseException) -> str | None:
    names = {kind.__name__ for kind in type(link).__mro__}
    if hasattr(link, "pgcode"):  # an exception of psycopg2; the code is None if Postgres did not answer
        return _READ_ONLY.get(getattr(link, "in_recovery", None)) or _of_postgres(link.pgcode)
    if "DBAPIError" in names:  # the wrapped exception of psycopg2 gives a better description
        return None
    for name, words in _REDIS.items():
        if name in names:
            return words
    # urllib3's NewConnectionError is a time-out by its class, but its cause gives a better description.
    if names & _TIMEOUTS and "NewConnectionError" not in names:
        return "no answer in time"
    return _of_the_network(link) if isinstance(link, OSError) else None


def _of_postgres(code: str | None) -> str:
    if code is None:
        return "Postgres does not answer"
    return _POSTGRES.get(code) or _POSTGRES.get(code[:2]) or f"Postgres refuses the statement (SQLSTATE {code})"


def _of_the_network(link: OSError) -> str | None:
    match link:
        case socket.gaierror():
            return "the host name cannot be resolved"
        case ssl.SSLCertVerificationError():
            return f"the certificate of the server is not accepted ({link.verify_message})"
        case ssl.SSLError():
            return "the server does not speak TLS" if link.reason == "WRONG_VERSION_NUMBER" else "TLS failed"
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionError():
            return "the connection was cut"
        case _:
            return None if link.errno is None else os.strerror(link.errno).lower()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its cause, then the cause of that cause, and so on.

    The last exceptions might belong to another, earlier call.
    """
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        yield link
        link = link.__cause__ or link.__context__
