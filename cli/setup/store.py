"""Stores of the App's secrets: a Secret of the cluster, or a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cli.kubeconfigs import client_for
from ostler.errors import ConfigurationError, Conflict
from ostler.secrets import Secret

KEYS = ("OSTLER_GITHUB_APP_ID", "OSTLER_GITHUB_PRIVATE_KEY", "OSTLER_WEBHOOK_SECRETS")
API_URL = "OSTLER_GITHUB_API_URL"
GITHUB_API = "https://api.github.com"


class Store(Protocol):
    """A place for secrets."""

    @property
    def where(self) -> str:
        """Its name for people."""

    def check(self) -> None:
        """Raise `Conflict` when something would be overwritten, and what the place raises when it is out of reach."""

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the values; raises as `check`."""

    def further(self, api_url: str) -> str | None:
        """Return what the operator has to set beside."""


def store_of(
    *, namespace: str | None, secret: str, kubeconfig: str | None, env_file: Path | None, replace: bool
) -> Store:
    """Return the place that the options name. Raises ConfigurationError when they name none or two."""
    if (namespace is None) == (env_file is None):
        raise ConfigurationError("--namespace or --env-file: name one place for the App's secrets")
    if env_file is not None:
        return EnvFile(env_file, replace=replace)
    return ClusterSecret(namespace or "", secret, kubeconfig, replace=replace)


class EnvFile:
    """A file of `NAME=value` lines, as compose and shells read it."""

    def __init__(self, path: Path, *, replace: bool) -> None:
        self._path = path
        self._replace = replace
        self.where = str(path)

    def check(self) -> None:
        """See that none of our lines would be overwritten, and that the folder is there."""
        taken = sorted(name for name in KEYS if name in self._lines())
        if taken and not self._replace:
            raise Conflict(f"{self._path} already has {', '.join(taken)}; use --replace to overwrite")
        if not self._path.absolute().parent.is_dir():
            raise Conflict(f"the folder {self._path.absolute().parent} does not exist")

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write beside the lines that are there; the file is replaced as a whole and is never readable by others."""
        self.check()
        lines = self._lines() | {name: f"{name}='{_one_line(value)}'" for name, value in values.items()}
        if api_url != GITHUB_API:
            lines[API_URL] = f"{API_URL}='{api_url}'"
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(lines.values()) + "\n")
        fresh.replace(self._path)

    def further(self, api_url: str) -> str | None:
        """Return None: the address of the API is in the file."""
        del api_url
        return None

    def _lines(self) -> dict[str, str]:
        """Return the lines that are there, by the variable that they set; others by their place."""
        if not self._path.exists():
            return {}
        found: dict[str, str] = {}
        for number, line in enumerate(self._path.read_text().splitlines()):
            name, sets, _ = line.removeprefix("export ").partition("=")
            found[name.strip() if sets and not line.startswith("#") else f"#{number}"] = line
        return found


class ClusterSecret:
    """A Secret of the cluster, as the chart's `existingSecret` names it."""

    def __init__(self, namespace: str, name: str, kubeconfig: str | None, *, replace: bool) -> None:
        self._namespace = namespace
        self._name = name
        self._replace = replace
        self._kube = client_for(kubeconfig, pool_size=1)
        self.where = f"Secret {namespace}/{name}"

    def check(self) -> None:
        """See that the cluster answers and that none of our keys would be overwritten."""
        from k8s_adapters.secrets import keys_of

        taken = sorted((keys_of(self._kube, namespace=self._namespace, name=self._name) or set()) & set(KEYS))
        if taken and not self._replace:
            raise Conflict(f"{self.where} already has {', '.join(taken)}; use --replace to overwrite")

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write beside what the Secret holds already."""
        from k8s_adapters.secrets import put_secret

        del api_url
        put_secret(self._kube, namespace=self._namespace, name=self._name, values=values, replace=self._replace)

    def further(self, api_url: str) -> str | None:
        """Return the value of the chart that an Enterprise Server needs."""
        return None if api_url == GITHUB_API else f"Set in the chart's values: settings.{API_URL}: {api_url}"


def _one_line(value: Secret) -> str:
    text = value.reveal().strip().replace("\r", "").replace("\n", "\\n")
    if "'" in text:
        raise ConfigurationError("GitHub sent a secret that cannot be written to a file of variables")
    return text
