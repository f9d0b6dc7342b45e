"""Files of a step in a container of its own: the workspace and the file commands, in both directions."""

from __future__ import annotations

from collections.abc import Mapping

from container_hooks import copies
from container_hooks.archives import below
from container_hooks.copies import JOB
from container_hooks.failures import HookFailed
from container_hooks.inputs import ContainerStep, is_inside, workspace_of
from container_hooks.ports import World
from container_hooks.scripts import FILE_COMMANDS, GITHUB, HOME, TEMP, WORK, WORKFLOW_FILES, add, pack, place
from container_hooks.steps import FileCommands
from rules.pools.hook_names import workflow_pod

_WORKSPACE = f"{GITHUB}/workspace"
_FILE_COMMANDS = f"{GITHUB}/file_commands"


def workspace_of_step(given: ContainerStep, state: Mapping[str, object], world: World) -> str:
    """Return the workspace of the job, relative to `/__w`. Raises `HookFailed` if nothing names it."""
    known = state.get("workspace")
    found = workspace_of(given, work=world.settings.work) or known or world.settings.workspace
    if not isinstance(found, str) or not is_inside(found):
        raise HookFailed(
            f"run_container_step: the runner named no workspace below /__w (found {found!r}); prepare_job needs a "
            "workingDirectory such as /__w/shop/shop"
        )
    return found


def step_folder(given: ContainerStep, workspace: str) -> str:
    """Return the working directory of the step. The workspace of the job is at `/github/workspace` in the step."""
    wanted = given.working_directory or _WORKSPACE
    own = f"{WORK}/{workspace}"
    if wanted == own or wanted.startswith(f"{own}/"):
        return _WORKSPACE + wanted[len(own) :]
    return wanted


def file_commands_of(variables: Mapping[str, str]) -> FileCommands:
    """Return the file commands that the variables of a step name."""
    return FileCommands.of(variables, folder=_FILE_COMMANDS)


def copy_in(
    world: World,
    pod: str,
    *,
    workspace: str,
    own: FileCommands,
    container: str = JOB,
    extra: Mapping[str, bytes] | None = None,
) -> None:
    """Copy the workspace of the job and the file commands of a step into the Pod of the step, through `container`.

    `extra` has more files for `/github`, by name. Raises `HookFailed` if a copy fails.
    """
    more = dict(extra or {})
    copies.between(
        world,
        source=workflow_pod(world.pod),
        pack=pack(WORK, [workspace, f"_temp/{HOME}"]),
        pod=pod,
        container=container,
        command=place(GITHUB, {workspace: _WORKSPACE, f"_temp/{HOME}": f"{GITHUB}/home"}),
        what="Copy of the workspace to the step's container",
        keep=copies.everything,
    )
    places = {FILE_COMMANDS: _FILE_COMMANDS, WORKFLOW_FILES: f"{GITHUB}/workflow"}
    copies.from_runner(
        world,
        pod,
        container=container,
        folder=f"{world.settings.work}/_temp",
        command=place(GITHUB, {**places, **{name: f"{GITHUB}/{name}" for name in more}}),
        what="Copy of the step's files to its container",
        keep=lambda entry: own.has(entry.name) or below(entry.name, WORKFLOW_FILES),
        extra=more,
    )


def copy_back(world: World, pod: str, *, workspace: str, own: FileCommands, code: int, container: str = JOB) -> None:
    """Copy the workspace to the Pod of the job, and the file commands to the runner.

    `code` is the exit code of the step. If a copy fails, the command fails with this code, unless it is 0. Raises
    `HookFailed`.
    """
    try:
        _copy_back(world, pod, workspace=workspace, own=own, container=container)
    except HookFailed as error:
        raise HookFailed(str(error), code=code or error.code) from error


def _copy_back(world: World, pod: str, *, workspace: str, own: FileCommands, container: str) -> None:
    places = {"workspace": f"{WORK}/{workspace}", "home": f"{TEMP}/{HOME}"}
    if world.alone():
        command = place(WORK, places)
    else:
        command = add(WORK, places)
        world.log.line("Other steps run: files that this step has deleted stay in the workspace of the job")
    copies.between(
        world,
        source=pod,
        source_container=container,
        pack=pack(GITHUB, ["workspace", "home"]),
        pod=workflow_pod(world.pod),
        command=command,
        what="Copy of the workspace to the job's container",
        keep=copies.everything,
    )
    copies.to_runner(
        world,
        source=pod,
        container=container,
        pack=own.pack(_FILE_COMMANDS),
        folder=f"{world.settings.work}/_temp/{FILE_COMMANDS}",
        what="Copy of the step's file commands to the runner",
        keep=own.may_return,
    )
