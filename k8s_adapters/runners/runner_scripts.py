"""Scripts of runner Pods: the immutable ConfigMap that the containers of a runner Pod mount.

The image of a pool therefore needs no file of Ostler. The name of the ConfigMap contains the digest of the scripts. A
new release with other scripts creates another ConfigMap, and a running Pod keeps its scripts. An upgrade that leaves
the scripts as they are does not change the template of any Pod.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from importlib import resources
from urllib.parse import quote

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.names import MANAGED_BY_LABEL
from ostler.errors import Conflict, Gone, Invalid
from rules.upstream.retry import RetryPolicy

SCRIPTS = ("job-completed.sh", "job-started.sh", "poll.sh", "register.sh", "run-registered.sh", "run.sh")
SCRIPTS_FOLDER = "/var/run/ostler-scripts"
POLL, RUN, JOB_STARTED = (f"{SCRIPTS_FOLDER}/{name}" for name in ("poll.sh", "run.sh", "job-started.sh"))
REGISTER, RUN_REGISTERED, JOB_COMPLETED = (
    f"{SCRIPTS_FOLDER}/{name}" for name in ("register.sh", "run-registered.sh", "job-completed.sh")
)
PREFIX = "ostler-scripts-"
MODE = 0o555
CHECKED_SECONDS = 60.0
"""Seconds after which a process checks again that the ConfigMap exists."""


class ForeignScripts(Invalid):
    """The ConfigMap of the scripts has other contents or is not immutable, so Ostler did not create it."""


@functools.cache
def script_texts() -> dict[str, str]:
    """Return the scripts of this release by file name."""
    folder = resources.files("poller")
    return {name: (folder / name).read_text() for name in SCRIPTS}


@functools.cache
def scripts_name() -> str:
    """Return the name of the ConfigMap, with 16 hex digits that identify the scripts."""
    content = json.dumps(script_texts(), sort_keys=True)
    return f"{PREFIX}{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class RunnerScripts:
    """Creates the ConfigMap before the first Pod that needs it. One object serves all threads of a process."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._checked: dict[str, float] = {}

    def ensure(self, client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> None:
        """Create the ConfigMap if it is missing. Within `CHECKED_SECONDS` after a success, do nothing.

        Raises `ForeignScripts` if a ConfigMap with this name has other contents or is not immutable. Raises the errors
        of `KubeClient.request`.
        """
        now = self._monotonic()
        if now - self._checked.get(namespace, float("-inf")) < CHECKED_SECONDS:
            return
        ensure_scripts(client, namespace=namespace, policy=policy)
        self._checked[namespace] = now


def ensure_scripts(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> None:
    """Create the ConfigMap if it is missing.

    Raises `ForeignScripts` if it exists with other contents, or is not immutable. Without this check, another client
    could create the ConfigMap first, and so choose what the pollers execute. Raises the errors of `KubeClient.request`.
    """
    collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
    path = f"{collection}/{scripts_name()}"
    try:
        found = client.request("GET", path, policy=policy)
    except Gone:
        try:
            client.request("POST", collection, body=build_scripts(namespace=namespace), policy=policy)
        except Conflict:
            found = client.request("GET", path, policy=policy)
        else:
            return
    if found.get("data") != script_texts() or found.get("immutable") is not True:
        raise ForeignScripts(
            f"ConfigMap {namespace}/{scripts_name()} does not contain the scripts of this release, or is not "
            "immutable: delete it, and check who created it"
        )


def build_scripts(*, namespace: str) -> Json:
    """Return the JSON of the ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": scripts_name(), "namespace": namespace, "labels": {MANAGED_BY_LABEL: "ostler"}},
        "data": script_texts(),
        "immutable": True,
    }
