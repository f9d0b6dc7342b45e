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
    """A place for the secrets of the App."""

    @property
    def where(self) -> str:
        """Name of the store for messages."""

    def check(self) -> None:
        """Raise `Conflict` if a write would overwrite secrets without `--replace`.

        Errors of the store are passed on.
        """

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the values. `api_url` is the root of GitHub's REST API.

        Raises `Conflict` if the store already has secrets and `--replace` was not given.
        """

    def further(self, api_url: str) -> str | None:
        """Return a step that the operator must do next, or None if there is none."""


def store_of(
    *, namespace: str | None, secret: str, kubeconfig: str | None, env_file: Path | None, replace: bool
) -> Store:
    """Return the store that the options name. Raises `ConfigurationError` if they name no store or two stores."""
    if (namespace is None) == (env_file is None):
        raise ConfigurationError("--namespace or --env-file: name one place for the App's secrets")
    if env_file is not None:
        return EnvFile(env_file, replace=replace)
    return ClusterSecret(namespace or "", secret, kubeconfig, replace=replace)


class EnvFile:
    """A file of `NAME=value` lines for Docker Compose and shells."""

    def __init__(self, path: Path, *, replace: bool) -> None:
        self._path = path
        self._replace = replace
        self.where = str(path)

    def check(self) -> None:
        """Raise `Conflict` if the file already has the App's secrets, or if its folder does not exist."""
        taken = sorted(name for name in KEYS if name in self._lines())
        if taken and not self._replace:
            raise Conflict(f"{self._path} already has {', '.join(taken)}; use --replace to overwrite")
        if not self._path.absolute().parent.is_dir():
            raise Conflict(f"the folder {self._path.absolute().parent} does not exist")

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the secrets and preserve the other lines. The file is replaced atomically, with mode 0600."""
        self.check()
        lines = self._lines() | {name: f"{name}='{_one_line(value)}'" for name, value in values.items()}
        if api_url != GITHUB_API:
            lines[API_URL] = f"{API_URL}='{api_url}'"
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(lines.values()) + "\n")
        fresh.replace(self._path)

    def further(self, api_url: str) -> str | None:
        """Return None, because the file already contains the address of GitHub's API."""
        del api_url
        return None

    def _lines(self) -> dict[str, str]:
        """Return the existing lines of the file, each under the name of the variable that it sets.

        A line that sets no variable is returned under its line number.
        """
        if not self._path.exists():
            return {}
        found: dict[str, str] = {}
        for number, line in enumerate(self._path.read_text().splitlines()):
            name, sets, _ = line.removeprefix("export ").partition("=")
            found[name.strip() if sets and not line.startswith("#") else f"#{number}"] = line
        return found


class ClusterSecret:
    """A Secret in the cluster. The chart's value `existingSecret` names it."""

    def __init__(self, namespace: str, name: str, kubeconfig: str | None, *, replace: bool) -> None:
        self._namespace = namespace
        self._name = name
        self._replace = replace
        self._kube = client_for(kubeconfig, pool_size=1)
        self.where = f"Secret {namespace}/{name}"

    def check(self) -> None:
        """Raise `Conflict` if the Secret already has the App's keys. Errors of the cluster are passed on."""
        from k8s_adapters.secrets import keys_of

        taken = sorted((keys_of(self._kube, namespace=self._namespace, name=self._name) or set()) & set(KEYS))
        if taken and not self._replace:
            raise Conflict(f"{self.where} already has {', '.join(taken)}; use --replace to overwrite")

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the secrets and preserve the other keys of the Secret."""
        from k8s_adapters.secrets import put_secret

        del api_url
        put_secret(self._kube, namespace=self._namespace, name=self._name, values=values, replace=self._replace)

    def further(self, api_url: str) -> str | None:
        """Return the chart value to set for an Enterprise Server, or None for github.com."""
        return None if api_url == GITHUB_API else f"Set in the chart's values: settings.{API_URL}: {api_url}"


def _one_line(value: Secret) -> str:
    text = value.reveal().strip().replace("\r", "").replace("\n", "\\n")
    if "'" in text:
        raise ConfigurationError("GitHub sent a secret that cannot be written to a file of variables")
    return text
