"""Stores of the App's secrets: a Secret of the cluster, or a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cli.kubeconfigs import choose, client_for
from ostler.errors import ConfigurationError, Conflict, Forbidden, Gone, Invalid
from ostler.secrets import Secret

KEYS = ("OSTLER_GITHUB_APP_ID", "OSTLER_GITHUB_PRIVATE_KEY", "OSTLER_WEBHOOK_SECRETS")
API_URL = "OSTLER_GITHUB_API_URL"
GITHUB_API = "https://api.github.com"


class Store(Protocol):
    """A place for the secrets of the App."""

    @property
    def where(self) -> str:
        """Name of the store for messages."""

    @property
    def ping(self) -> str:
        """Command that tests the webhook, once web runs with the secrets of this store."""

    def check(self) -> None:
        """Raise `Conflict` if a write would overwrite secrets without `--replace`.

        Raises another `UpstreamError` or `OSError` if the store could not be written. The message says what to do.
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
        self.ping = "ostler setup ping"

    def check(self) -> None:
        """Raise `Conflict` if the file has the App's secrets without `--replace`, or if its folder cannot be written.

        A variable without a value, as in a copy of `compose/.env.example`, is not a secret: a write fills it in.
        """
        lines = self._lines()
        taken = sorted(name for name in KEYS if _value(lines.get(name, "")))
        if taken and not self._replace:
            raise Conflict(f"{self._path} already has {', '.join(taken)}; use --replace to overwrite")
        folder = self._path.absolute().parent
        if not folder.is_dir():
            raise Conflict(f"the folder {folder} does not exist; create it, or name another file")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Conflict(f"this user cannot write files in the folder {folder}; name another file")

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the secrets and preserve the other lines. The file is replaced atomically, with mode 0600."""
        self.check()
        lines = self._lines()
        if api_url != (_value(lines[API_URL]) if API_URL in lines else GITHUB_API):
            lines[API_URL] = f"{API_URL}='{api_url}'"
        lines |= {name: f"{name}='{_one_line(value)}'" for name, value in values.items()}
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

        A line that sets no variable is returned under `#` and its index, from 0.
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
        self._named = choose(kubeconfig).named
        self._kube = client_for(kubeconfig, pool_size=1)
        self.where = f"Secret {namespace}/{name}"
        self.ping = f"kubectl exec --namespace {namespace} deploy/ostler-worker-default -- ostler setup ping"

    def check(self) -> None:
        """Let the API server check a write of the App's keys, without writing anything.

        Raises `Conflict` if the Secret already has these keys, `Gone` if the namespace does not exist, and another
        `UpstreamError` if the cluster refuses the write or does not answer.
        """
        from k8s_adapters.calls.retry import answer_of
        from k8s_adapters.cluster.secrets import keys_of, put_secret

        try:
            taken = sorted((keys_of(self._kube, namespace=self._namespace, name=self._name) or set()) & set(KEYS))
            if taken and not self._replace:
                raise Conflict(f"{self.where} already has {', '.join(taken)}; use --replace to overwrite")
            rehearsed = dict.fromkeys(KEYS, Secret("rehearsed"))
            put_secret(
                self._kube, namespace=self._namespace, name=self._name, values=rehearsed, replace=True, dry_run=True
            )
        except Gone:
            raise Gone(
                f"namespace {self._namespace!r} does not exist; create it with `kubectl create namespace "
                f"{self._namespace}`, or correct --namespace"
            ) from None
        except (Forbidden, Invalid) as error:
            answer = answer_of(error)
            told = f"{self.where} cannot be written: {answer.message if answer and answer.message else error}"
            if isinstance(error, Forbidden):
                told += f". The identity of {self._named} needs the verbs get, create and patch on secrets there"
            raise type(error)(told) from None

    def write(self, values: Mapping[str, Secret], *, api_url: str) -> None:
        """Write the secrets and preserve the other keys of the Secret."""
        from k8s_adapters.cluster.secrets import put_secret

        del api_url
        put_secret(self._kube, namespace=self._namespace, name=self._name, values=values, replace=self._replace)

    def further(self, api_url: str) -> str | None:
        """Return the chart value to set for an Enterprise Server, or None for github.com."""
        return None if api_url == GITHUB_API else f"Set in the chart's values: settings.{API_URL}: {api_url}"


def _value(line: str) -> str:
    """Return the value of a line `NAME=value` without its quotes. A comment after a space is not a part of it."""
    value = line.partition("=")[2].partition(" #")[0].strip()
    if value.startswith("#"):
        return ""
    quoted = value[:1] in {"'", '"'} and value[:1] == value[-1:]
    return value[1:-1] if quoted else value


def _one_line(value: Secret) -> str:
    text = value.reveal().strip().replace("\r", "").replace("\n", "\\n")
    if "'" in text:
        raise ConfigurationError(
            "--env-file: GitHub sent a secret with a single quote, which the file cannot contain; use --namespace to "
            "write a Secret instead"
        )
    return text
