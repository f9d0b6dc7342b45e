"""Input of a command: one JSON object from the runner, parsed into records.

The names of the fields are those of actions/runner-container-hooks. Unknown fields are ignored, because a newer runner
might send more fields. A message about a wrong argument contains its path but not its value, because values can be
secrets.
"""

from __future__ import annotations

import enum
import posixpath
from typing import Any, TypeAlias

import msgspec

from container_hooks.failures import HookFailed

LONGEST_INPUT = 4 * 1024 * 1024
"""Maximum size of an input in bytes. It is checked before the input is parsed."""

_LONGEST_STATE = 64 * 1024


class Command(enum.Enum):
    """The four commands."""

    PREPARE_JOB = "prepare_job"
    RUN_SCRIPT_STEP = "run_script_step"
    RUN_CONTAINER_STEP = "run_container_step"
    CLEANUP_JOB = "cleanup_job"


class Registry(msgspec.Struct, frozen=True, rename="camel"):
    """Credentials of an image registry."""

    server_url: str | None = None
    username: str | None = None
    password: str | None = None


class Mount(msgspec.Struct, frozen=True, rename="camel"):
    """A mount of the runner: a folder of the runner, and its path in the container."""

    source_volume_path: str
    target_volume_path: str
    read_only: bool = False


class Container(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container of the job, of a service or of a step."""

    image: str | None = None
    entry_point: str | None = None
    entry_point_args: list[str] | None = None
    create_options: str | None = None
    environment_variables: dict[str, str | None] | None = None
    user_mount_volumes: list[Mount] | None = None
    system_mount_volumes: list[Mount] | None = None
    registry: Registry | None = None
    port_mappings: list[str] | None = None
    working_directory: str | None = None


class Service(Container, frozen=True, kw_only=True, rename="camel"):
    """A service container. `context_name` is its key in the workflow."""

    context_name: str


class PrepareJob(msgspec.Struct, frozen=True, rename="camel"):
    """Arguments of `prepare_job`."""

    container: Container | None = None
    services: list[Service] | None = None


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Arguments of `run_script_step`."""

    entry_point: str
    entry_point_args: list[str] | None = None
    environment_variables: dict[str, str | None] | None = None
    prepend_path: list[str] | str | None = None
    working_directory: str | None = None


class ContainerStep(Container, frozen=True, kw_only=True, rename="camel"):
    """Arguments of `run_container_step`. Without `entry_point`, the step runs the program of its image."""

    dockerfile: str | None = None
    prepend_path: list[str] | str | None = None


Arguments: TypeAlias = PrepareJob | ScriptStep | ContainerStep | None


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    response_file: str | None = None
    state: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"null")


class HookInput(msgspec.Struct, frozen=True, kw_only=True):
    """One command with its arguments. `state` is the state that `prepare_job` returned, or empty."""

    command: Command
    response_file: str | None
    state: dict[str, Any]
    args: Arguments


_ARGUMENTS: dict[Command, type[PrepareJob | ScriptStep | ContainerStep]] = {
    Command.PREPARE_JOB: PrepareJob,
    Command.RUN_SCRIPT_STEP: ScriptStep,
    Command.RUN_CONTAINER_STEP: ContainerStep,
}


def parse(data: bytes) -> HookInput:
    """Return the command of an input. Raises `HookFailed` with one line that describes the mistake."""
    if len(data) > LONGEST_INPUT:
        raise HookFailed(
            f"the input of the hook has {len(data)} bytes, and at most {LONGEST_INPUT} are allowed; "
            "shorten the environment of the step"
        )
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.ValidationError as error:
        raise HookFailed(f"the input of the hook is wrong: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HookFailed("the input of the hook is not JSON; the runner must write one JSON object") from error
    try:
        command = Command(envelope.command)
    except ValueError as error:
        known = ", ".join(each.value for each in Command)
        raise HookFailed(f"unknown command {envelope.command[:40]!r}; the command must be one of {known}") from error
    return HookInput(
        command=command,
        response_file=envelope.response_file,
        state=_state(envelope.state),
        args=_arguments(command, envelope.args),
    )


def _state(raw: msgspec.Raw) -> dict[str, Any]:
    """Return the state that `prepare_job` returned. A long state is refused, because it would need much memory."""
    if len(bytes(raw)) > _LONGEST_STATE:
        raise HookFailed(f"the state in the input of the hook has more than {_LONGEST_STATE} bytes")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any] | None) or {}
    except msgspec.ValidationError as error:
        raise HookFailed(f"the input of the hook is wrong: {error} - at `$.state`") from error


def _arguments(command: Command, raw: msgspec.Raw) -> Arguments:
    kind = _ARGUMENTS.get(command)
    if kind is None:
        return None
    if bytes(raw).strip() == b"null":
        raise HookFailed(f"{command.value}: the input has no `args`; the runner must send them")
    try:
        found = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        where = str(error).replace("`$.", "`$.args.")
        raise HookFailed(f"{command.value}: the input of the hook is wrong: {where}") from error
    _check(command, found)
    return found


def _check(command: Command, found: PrepareJob | ScriptStep | ContainerStep) -> None:
    if isinstance(found, PrepareJob):
        if found.container is None or not found.container.image:
            raise HookFailed("prepare_job: the job has no container; give it `container:` in the workflow")
        for service in found.services or ():
            if not service.image:
                raise HookFailed(
                    f"prepare_job: service {service.context_name[:60]} has no image; set its `image:` in the workflow"
                )
    elif isinstance(found, ContainerStep):
        if found.dockerfile:
            raise HookFailed(
                "run_container_step: an action with a Dockerfile is not built in this pool; use a pool with "
                "containers.mode dind, or publish the image and refer to it by `docker://`"
            )
        if not found.image:
            raise HookFailed("run_container_step: the step has no image; set `image` of the action")
    environment = found.environment_variables if not isinstance(found, PrepareJob) else None
    for name in environment or ():
        check_variable(command, name)


def check_variable(command: Command, name: str) -> None:
    """Raise `HookFailed` if no process can have an environment variable with this name."""
    if not name or "=" in name or "\0" in name:
        raise HookFailed(f"{command.value}: {name[:60]!r} cannot be the name of an environment variable")


def paths_of(prepend: list[str] | str | None) -> list[str]:
    """Return the folders of `prependPath`. Old runners send one string instead of a list."""
    if prepend is None:
        return []
    return [prepend] if isinstance(prepend, str) else list(prepend)


def variables_of(container: Container | ScriptStep) -> dict[str, str]:
    """Return the environment of a container or step, with the variables that GitHub always sets."""
    given = {key: value for key, value in (container.environment_variables or {}).items() if value is not None}
    return {**given, "GITHUB_ACTIONS": "true", "CI": given.get("CI", "true")}


def workspace_of(container: Container, *, work: str) -> str | None:
    """Return the workspace of a job relative to `/__w`, for example `shop/shop`. Return None if no field names it.

    `work` is the work folder of the runner.
    """
    for mount in container.system_mount_volumes or ():
        if mount.target_volume_path.rstrip("/") == "/github/workspace":
            inside = posixpath.relpath(posixpath.normpath(mount.source_volume_path), work)
            return inside if is_inside(inside) else None
    folder = posixpath.normpath(container.working_directory or "/")
    inside = posixpath.relpath(folder, "/__w")
    return inside if is_inside(inside) else None


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside its folder, and is not the folder itself."""
    return bool(path) and path not in {".", ".."} and not path.startswith(("/", "../")) and "/../" not in path
