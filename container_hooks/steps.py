"""Execution of one program in the container of a hook Pod, with its exit code and the reason if it was killed."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from container_hooks.archives import Entry, below
from container_hooks.copies import JOB
from container_hooks.detached import Place, StepKilled, StepNotStarted, run_detached
from container_hooks.failures import HookFailed, failure_of
from container_hooks.pod_state import container_end, disruption, ended_line, ended_pod, memory_limit, signal_of
from container_hooks.ports import World
from container_hooks.scripts import EXTERNALS, FILE_COMMANDS, pack, pack_present
from k8s_adapters.calls.client import Json, object_path
from ostler.errors import ExecLost, Gone, OstlerError, UpstreamError

KILLED = 128 + signal.SIGKILL
"""Exit code of a step that was ended without an exit code of its own."""


@dataclass(frozen=True, slots=True)
class FileCommands:
    """The files through which one step sets variables, outputs and its summary.

    The runner names them in variables of the step, such as GITHUB_OUTPUT. Steps that run at the same time share the
    folder, and a copy must not replace a file of another step. If `names` is empty, all files of the folder count.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, variables: Mapping[str, str], *, folder: str) -> Self:
        """Return the files that the variables name. `folder` is their folder in the container."""
        inside = f"{folder}/"
        return cls(frozenset(each.removeprefix(inside) for each in variables.values() if each.startswith(inside)))

    def has(self, path: str) -> bool:
        """Return whether a path, relative to `_temp`, is one of the files."""
        return below(path, FILE_COMMANDS) and (not self.names or path.removeprefix(f"{FILE_COMMANDS}/") in self.names)

    def may_return(self, entry: Entry) -> bool:
        """Return whether an entry of the archive that a container returns is one of the files.

        The archive is written by programs of the image, which must not replace the files of another step.
        """
        return entry.is_file and "/" not in entry.name and (not self.names or entry.name in self.names)

    def pack(self, folder: str) -> list[str]:
        """Return a command that writes an archive of the files in `folder` to its output."""
        return pack_present(folder, sorted(self.names)) if self.names else pack(folder, ["."])


def run_step(world: World, pod: str, script: str, *, container: str = JOB) -> int:
    """Run a script in a container, and return its exit code. The script is never started twice.

    If a signal ended the script, the log says so. Raises `HookFailed` if the exit code is unknown.
    """
    place = Place(pod=pod, container=container, folder=f"{EXTERNALS}/.ostler/{secrets.token_hex(8)}")
    try:
        code = run_detached(
            world.exec,
            place,
            ["sh", "-e", script],
            output=world.log.raw,
            why_ended=lambda: _why_ended(world, pod, container),
            timing=world.timing,
        )
    except StepNotStarted as error:
        raise HookFailed(f"the step was not started: {error}") from error
    except StepKilled as error:
        raise HookFailed(
            f"the step has no exit code: {_why_ended(world, pod, container) or error}", code=KILLED
        ) from error
    except ExecLost as error:
        raise HookFailed(
            "the result of the step is unknown: its container could not be reached for several minutes. The step might "
            "still run if its container could not be reached to end it, so it is not repeated; run the job again"
        ) from error
    except OstlerError as error:
        raise failure_of("the result of the step is unknown", error) from error
    if (line := killed_line(world, pod, container, code)) is not None:
        world.log.line(line)
    return code


def killed_line(world: World, pod: str, container: str, code: int) -> str | None:
    """Return one line if an exit code says that a signal ended a step, with the reason, and None otherwise."""
    number = signal_of(code)
    if number is None:
        return None
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    reason = _why_ended(world, pod, container)
    if reason is not None:
        return f"The step was ended by {name}: {reason}"
    if number == signal.SIGKILL:
        return (
            f"The step was ended by {name}. If it used more memory than the container's limit, give the pool more "
            "memory in spec.containers.memoryMib"
        )
    return f"The step was ended by {name}"


def _why_ended(world: World, pod: str, container: str) -> str | None:
    """Return one line if the Pod is gone or ends, or its container has ended. Return None if the Pod cannot be read."""
    try:
        found: Json = world.client.request("GET", object_path("pods", namespace=world.namespace, name=pod))
    except Gone:
        return f"Pod {pod} no longer exists; it was deleted, or its node was lost"
    except UpstreamError:
        return None
    return reason_of_end(found, container)


def reason_of_end(found: Json, container: str) -> str | None:
    """Return one line if a Pod ends, or its container has ended, and None otherwise."""
    if "deletionTimestamp" in found["metadata"]:
        return f"Pod {found['metadata']['name']} is being deleted"
    if (over := ended_pod(found)) is not None:
        return over
    ended = container_end(found, container)
    if ended is not None:
        return ended_line(container, ended, memory=memory_limit(found, container))
    return disruption(found)
