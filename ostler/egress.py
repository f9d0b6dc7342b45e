"""Proxies and private certificate authorities for calls out of a corporate network.

Proxies come from the standard variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. A lower-case variable has
precedence over the same variable in upper case, as in curl. `OSTLER_CA_BUNDLE` and the standard `SSL_CERT_FILE` name
files with private certificate authorities. Ostler trusts these authorities in addition to those of the system. A
process reads all these variables at its start.

Only calls to GitHub, and a command's calls to the REST API, use a proxy from these variables. Connections to Postgres
and Redis never use a proxy, and neither do the polls of runner Pods. Calls to the Kubernetes API use a proxy only if
the kubeconfig has a `proxy-url`. No message of this module contains the login of a proxy (law L13).
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ostler.errors import ConfigurationError

CA_BUNDLE = "OSTLER_CA_BUNDLE"
SYSTEM_CA = "SSL_CERT_FILE"
NO_PROXY = ("no_proxy", "NO_PROXY")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A forward proxy.

    `variable` is the environment variable that named the proxy. `login` is `user:password`, or None without a login. No
    log line or message shows `login`.
    """

    variable: str
    scheme: str
    host: str
    port: int
    login: str | None = None

    @property
    def url(self) -> str:
        """URL of the proxy without the login."""
        return f"{self.scheme}://{self.address}"

    @property
    def address(self) -> str:
        """Host and port of the proxy."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        """Return the URL of the proxy without the login."""
        return f"Proxy({self.url})"


def proxy_for(url: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for calls to `url`, or None if the calls are direct.

    Raises `ConfigurationError` if the proxy's environment variable does not contain the address of a proxy.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    variable, value = _first(environment, (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY"))
    if not value or bypasses(host, parts.port or _PORTS.get(parts.scheme, 0), environment):
        return None
    return _proxy(variable, value)


def bypasses(host: str, port: int, environment: Mapping[str, str]) -> bool:
    """Return whether `NO_PROXY` excludes a host from the use of a proxy.

    An entry of `NO_PROXY` is a host name, an IP address, a block of addresses such as 10.0.0.0/8, or `*` for every
    host. A host name also covers all its subdomains, with or without a leading dot. `:port` at the end of a name or an
    address limits the entry to that port.
    """
    _, value = _first(environment, NO_PROXY)
    return any(_names(entry.strip().lower(), host.lower(), port) for entry in value.split(","))


def _names(entry: str, host: str, port: int) -> bool:
    if entry in {"", "*"}:
        return entry == "*"
    with suppress(ValueError):
        block = ipaddress.ip_network(entry.strip("[]"), strict=False)
        with suppress(ValueError):
            return ipaddress.ip_address(host) in block
        return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal():
        if int(number) != port:
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*").removeprefix(".").rstrip(".")
    return host == entry or host.endswith(f".{entry}")


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """Return name and value of the first variable in `names` that is set.

    A variable that is set to the empty string counts as set, because `https_proxy=` disables a proxy. If no variable is
    set, return the last name and an empty value.
    """
    return next(((name, environment[name].strip()) for name in names if name in environment), (names[-1], ""))


def _proxy(variable: str, value: str) -> Proxy:
    try:
        parts: SplitResult = urlsplit(value if "://" in value else f"http://{value}")
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        port, parts = None, urlsplit("")
    if parts.scheme not in _PORTS or not parts.hostname or port is None:
        # The message hides the value, because it might contain a password.
        raise ConfigurationError(
            f"{variable}: found an invalid value (hidden); must be http://host:port or https://host:port; "
            "write @ : / # and % in a password as %40 %3A %2F %23 and %25"
        )
    login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(variable=variable, scheme=parts.scheme, host=parts.hostname, port=port, login=login)


def ca_bundle(environment: Mapping[str, str]) -> str | None:
    """Return the path of the file with private certificate authorities, or None if `OSTLER_CA_BUNDLE` is not set."""
    return environment.get(CA_BUNDLE, "").strip() or None


def check_bundle(path: str) -> None:
    """Raise ValueError if `path` is not a readable file with certificates in PEM."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ValueError("must be a file with certificates in PEM, but the file contains no certificate") from None
    except OSError as error:
        raise ValueError(f"must be a readable file ({os.strerror(error.errno or 0).lower()})") from None


def trust(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context that verifies servers with the system's and the private certificate authorities.

    OpenSSL replaces the system's file with the file in `SSL_CERT_FILE`. Therefore this function also loads the system's
    file. Raises `ConfigurationError` if a file is not usable.
    """
    context = ssl.create_default_context()
    if environment.get(SYSTEM_CA):
        default = Path(ssl.get_default_verify_paths().openssl_cafile)
        if default.is_file():
            context.load_verify_locations(cafile=default)
        _load(context, SYSTEM_CA, environment[SYSTEM_CA])
    if bundle := ca_bundle(environment):
        _load(context, CA_BUNDLE, bundle)
    return context


def _load(context: ssl.SSLContext, variable: str, path: str) -> None:
    try:
        check_bundle(path)
        context.load_verify_locations(cafile=path)
    except ValueError as error:
        raise ConfigurationError(f"{variable}: found {path!r}; {error}") from None


def describe(environment: Mapping[str, str], url: str) -> str:
    """Return a description of how a process connects to `url`.

    The description names the proxy, and the files with trusted certificate authorities. Raises what `proxy_for` raises.
    """
    proxy = proxy_for(url, environment)
    way = "directly" if proxy is None else f"by the proxy {proxy.address} ({proxy.variable})"
    more = [f"{path} ({name})" for name in (CA_BUNDLE, SYSTEM_CA) if (path := environment.get(name, "").strip())]
    trusted = "the system's certificate authorities" + (f" and those of {' and '.join(more)}" if more else "")
    return f"{way}, trusting {trusted}"
