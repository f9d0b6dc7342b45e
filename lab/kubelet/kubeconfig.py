"""Reader of a kubeconfig: address, trust and identity of its current context."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Access:
    """Access to an API server. `tls` is None for plain HTTP."""

    server: str
    tls: ssl.SSLContext | None
    headers: dict[str, str] = field(repr=False)


def read_kubeconfig(path: Path) -> Access:
    """Return the access of the current context. Raises KeyError if the file refers to an entry that it lacks."""
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    server = str(cluster["server"]).rstrip("/")
    tls = _trust(cluster, user, folder=path.parent) if server.startswith("https://") else None
    headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    return Access(server=server, tls=tls, headers=headers)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


def _trust(cluster: dict[str, Any], user: dict[str, Any], *, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if data := cluster.get("certificate-authority-data"):
        context.load_verify_locations(cadata=base64.b64decode(data).decode())
    elif file := cluster.get("certificate-authority"):
        context.load_verify_locations(cafile=folder / file)
    if data := user.get("client-certificate-data"):
        # The ssl module reads a client certificate from files only.
        with tempfile.NamedTemporaryFile("wb", suffix=".pem") as pem:
            pem.write(base64.b64decode(data) + b"\n" + base64.b64decode(user["client-key-data"]))
            pem.flush()
            context.load_cert_chain(pem.name)
    elif file := user.get("client-certificate"):
        context.load_cert_chain(folder / file, folder / user["client-key"])
    return context
