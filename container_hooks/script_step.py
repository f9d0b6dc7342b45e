"""Command `run_script_step`: execute a script or an action in the job's container."""

from __future__ import annotations

import secrets

from container_hooks import copies
from container_hooks.archives import below
from container_hooks.failures import HookFailed
from container_hooks.inputs import ScriptStep, paths_of, variables_of
from container_hooks.ports import World
from container_hooks.scripts import FILE_COMMANDS, TEMP, WORK, WORKFLOW_FILES, merge_files_into, run_script
from container_hooks.steps import FileCommands, run_step
from rules.pools.hook_names import workflow_pod

_BACK = "Copy of the step's file commands to the runner"


def run_script_step(given: ScriptStep, *, world: World) -> int:
    """Copy the files of the step into the job's container, execute it, and copy its file commands back.

    Return the exit code of the step. The file commands are copied back after a failed step too. Raises `HookFailed` if
    a copy fails or the result is unknown.
    """
    pod = workflow_pod(world.pod)
    name = secrets.token_hex(6)
    script = f"ostler-{name}.sh"
    variables = variables_of(given)
    content = run_script(
        folder=given.working_directory or WORK,
        entry_point=given.entry_point,
        arguments=given.entry_point_args,
        variables=variables,
        prepend=paths_of(given.prepend_path),
    )
    own = FileCommands.of(variables, folder=f"{TEMP}/{FILE_COMMANDS}")
    copies.from_runner(
        world,
        pod,
        folder=f"{world.settings.work}/_temp",
        command=merge_files_into(TEMP, name=name),
        what="Copy of the step's files to the job's container",
        keep=lambda entry: (
            # Files of earlier steps are newer in the container than in the runner.
            ("/" not in entry.name and entry.is_file) or below(entry.name, WORKFLOW_FILES) or own.has(entry.name)
        ),
        extra={script: content},
    )
    code = run_step(world, pod, f"{TEMP}/{script}")
    try:
        copies.to_runner(
            world,
            source=pod,
            pack=own.pack(f"{TEMP}/{FILE_COMMANDS}"),
            folder=f"{world.settings.work}/_temp/{FILE_COMMANDS}",
            what=_BACK,
            keep=own.may_return,
        )
    except HookFailed as error:
        raise HookFailed(str(error), code=code or error.code) from error
    return code
