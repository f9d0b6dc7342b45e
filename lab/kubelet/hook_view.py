"""A hook Pod as the kubelet reads it: containers of a job, in which the exec subresource starts commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HOOK_OF = "ostler.dev/hook-of"
"""Label of a hook Pod. The kubelet runs Pods with this label as real processes."""

MISSING = "missing"
"""Start of the name of an image that cannot be pulled, alone or after the name of a registry."""

ENTRY = "entry"
"""Name of an image with an entry point of its own: a shell that executes `entry.sh` of the folder it begins in."""

_ENTRY_POINT = ("sh", "-e", "entry.sh")
_OWN_ARGUMENTS = ("by", "default")
_TAG = re.compile(r"(exits|unready|oom)(?:-(\d+))?")
_OOM_CODE = 137


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Behaviour of an image, read from its tag.

    - `exits-<code>`: the container ends at once with this exit code, by default 0.
    - `oom`: the container ends at once, as if it had used more memory than its limit.
    - `unready`: the container runs, but is never ready.
    """

    code: int | None = None
    reason: str | None = None
    never_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A readiness probe. Times are in seconds."""

    command: tuple[str, ...]
    delay: float
    period: float
    timeout: float
    failures: int


@dataclass(frozen=True, kw_only=True)
class SecretKey:
    """One value of a Secret."""

    secret: str
    key: str


@dataclass(frozen=True, kw_only=True)
class HookContainer:
    """One container of a hook Pod. `mounts` has the volume and the path in it for each path in the container.

    `command` is None if the image's own entry point runs, and this machine does not have it.
    """

    name: str
    image: str
    command: tuple[str, ...] | None
    directory: str
    environment: Mapping[str, str | SecretKey]
    mounts: Mapping[str, tuple[str, str]]
    probe: Probe | None

    @property
    def can_be_pulled(self) -> bool:
        """Return whether the image exists."""
        return not self.image.rpartition("/")[2].startswith(MISSING)

    @property
    def fate(self) -> Fate:
        """Return the behaviour that the tag of the image asks for."""
        found = _TAG.fullmatch(self.image.rpartition("/")[2].partition("@")[0].partition(":")[2])
        if found is None:
            return Fate()
        if found[1] == "exits":
            return Fate(code=int(found[2] or 0))
        return Fate(code=_OOM_CODE, reason="OOMKilled") if found[1] == "oom" else Fate(never_ready=True)


@dataclass(frozen=True, kw_only=True)
class HookView:
    """The containers of a hook Pod, and its grace period in seconds."""

    containers: tuple[HookContainer, ...]
    init_containers: tuple[HookContainer, ...]
    grace: float


def view_hook(pod: Mapping[str, Any]) -> HookView | None:
    """Return the view of a hook Pod, or None for any other Pod."""
    if HOOK_OF not in (pod["metadata"].get("labels") or {}):
        return None
    spec = pod["spec"]
    return HookView(
        containers=tuple(_containers(spec.get("containers"), pod["metadata"])),
        init_containers=tuple(_containers(spec.get("initContainers"), pod["metadata"])),
        grace=float(spec.get("terminationGracePeriodSeconds") or 0),
    )


def added_containers(pod: Mapping[str, Any]) -> tuple[HookContainer, ...]:
    """Return the ephemeral containers of a Pod."""
    return tuple(_containers(pod["spec"].get("ephemeralContainers"), pod["metadata"]))


def _containers(found: list[dict[str, Any]] | None, metadata: Mapping[str, Any]) -> Iterator[HookContainer]:
    for each in found or ():
        yield HookContainer(
            name=each["name"],
            image=each["image"],
            command=_command(each),
            directory=each.get("workingDir") or "/",
            environment=dict(_environment(each, metadata)),
            mounts={
                mount["mountPath"]: (mount["name"], mount.get("subPath") or "")
                for mount in each.get("volumeMounts") or ()
            },
            probe=_probe(each.get("readinessProbe")),
        )


def _command(container: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the program of a container, or None if it is the unknown entry point of its image."""
    arguments = container.get("args") or ()
    if command := container.get("command"):
        return expanded((*command, *arguments))
    if container["image"].rpartition("/")[2].partition(":")[0] == ENTRY:
        return (*_ENTRY_POINT, *(expanded(arguments) or _OWN_ARGUMENTS))
    return None


def expanded(command: Iterable[str]) -> tuple[str, ...]:
    """Return a command with `$` for each `$$`. References to variables are not supported."""
    return tuple(word.replace("$$", "$") for word in command)


def _environment(container: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[tuple[str, str | SecretKey]]:
    fields = {f"metadata.{name}": metadata.get(name, "") for name in ("name", "namespace", "uid")}
    yield "HOSTNAME", metadata["name"]
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if reference := source.get("secretKeyRef"):
            yield variable["name"], SecretKey(secret=reference["name"], key=reference["key"])
        elif reference := source.get("fieldRef"):
            yield variable["name"], fields.get(reference["fieldPath"], "")
        else:
            yield variable["name"], variable.get("value", "").replace("$$", "$")


def _probe(found: Mapping[str, Any] | None) -> Probe | None:
    command = ((found or {}).get("exec") or {}).get("command")
    if found is None or not command:
        return None
    return Probe(
        command=expanded(command),
        delay=float(found.get("initialDelaySeconds") or 0),
        period=float(found.get("periodSeconds") or 10),
        timeout=float(found.get("timeoutSeconds") or 1),
        failures=int(found.get("failureThreshold") or 3),
    )
