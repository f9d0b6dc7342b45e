"""Command `run_script_step`: execute a script or an action in the job's container."""

from __future__ import annotations

import secrets

from container_hooks import copies
from container_hooks.archives import Entry, below
from container_hooks.failures import HookFailed
from container_hooks.inputs import ScriptStep, paths_of, variables_of
from container_hooks.ports import World
from container_hooks.scripts import FILE_COMMANDS, TEMP, WORK, WORKFLOW_FILES, merge_into, pack, run_script
from container_hooks.steps import run_step
from rules.pools.hook_names import workflow_pod

_BACK = "Copy of the step's file commands to the runner"


def run_script_step(given: ScriptStep, *, world: World) -> int:
    """Copy the files of the step into the job's container, execute it, and copy its file commands back.

    Return the exit code of the step. The file commands are copied back after a failed step too. Raises `HookFailed` if
    a copy fails or the result is unknown.
    """
    pod = workflow_pod(world.pod)
    script = f"ostler-{secrets.token_hex(6)}.sh"
    content = run_script(
        folder=given.working_directory or WORK,
        entry_point=given.entry_point,
        arguments=given.entry_point_args,
        variables=variables_of(given),
        prepend=paths_of(given.prepend_path),
    )
    copies.from_runner(
        world,
        pod,
        folder=f"{world.settings.work}/_temp",
        command=merge_into(TEMP),
        what="Copy of the step's files to the job's container",
        keep=_of_a_step,
        extra={script: content},
    )
    code = run_step(world, pod, f"{TEMP}/{script}")
    try:
        copies.to_runner(
            world,
            source=pod,
            pack=pack(TEMP, [FILE_COMMANDS]),
            folder=f"{world.settings.work}/_temp",
            what=_BACK,
            keep=lambda entry: below(entry.name, FILE_COMMANDS),
        )
    except HookFailed as error:
        raise HookFailed(str(error), code=code or error.code) from error
    return code


def _of_a_step(entry: Entry) -> bool:
    """Return whether the runner writes the entry for a step. The rest of the folder belongs to the job's container.

    The runner writes the script of the step, the file commands and the event. Files of earlier steps are newer in the
    container than in the runner.
    """
    if "/" not in entry.name and entry.is_file:
        return True
    return below(entry.name, FILE_COMMANDS) or below(entry.name, WORKFLOW_FILES)
