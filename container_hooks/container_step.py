"""Command `run_container_step`: execute a step in a container of its own, with the workspace of the job."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from container_hooks import copies
from container_hooks.archives import below
from container_hooks.cleanup_job import remove
from container_hooks.cluster import Made, create_step_pod
from container_hooks.containers import plan_step
from container_hooks.copies import JOB
from container_hooks.failures import HookFailed
from container_hooks.inputs import ContainerStep, is_inside, paths_of, variables_of, workspace_of
from container_hooks.manifests import step_pod
from container_hooks.overlay import apply_overlay, load_overlay
from container_hooks.ports import World
from container_hooks.prepare_job import attempted, create_pull_secrets, tell_ignored
from container_hooks.resources import divide
from container_hooks.scripts import (
    FILE_COMMANDS,
    GITHUB,
    HOME,
    TEMP,
    WORK,
    WORKFLOW_FILES,
    add,
    pack,
    place,
    run_script,
    step_paths,
)
from container_hooks.starts import wait_until_ready
from container_hooks.steps import FileCommands, run_step
from rules.pools.hook_names import workflow_pod

_WORKSPACE = f"{GITHUB}/workspace"
_FILE_COMMANDS = f"{GITHUB}/file_commands"


def run_container_step(given: ContainerStep, *, state: dict[str, object], world: World) -> int:
    """Create the Pod of the step, copy the workspace into it, execute the step, and copy the workspace back.

    Return the exit code of the step. Afterwards the Pod is deleted, also after a failure. Raises `HookFailed` if the
    step cannot be executed, if its result is unknown, or if a copy fails.
    """
    workspace = workspace_of_step(given, state, world)
    made: list[Made] = []
    before = set(world.ledger.secrets)
    try:
        made.append(_create(world, given))
        return _execute(world, given, pod=made[0].name, workspace=workspace)
    finally:
        pods = [each.name for each in made] or sorted(world.ledger.pods - {workflow_pod(world.pod)})
        own = world.ledger.secrets - world.ledger.taken - before
        remove(world, pods=pods, secrets=sorted(own), strict=False)


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


def _create(world: World, given: ContainerStep) -> Made:
    overlay = load_overlay(world.settings.overlay)
    plan = plan_step(given)
    tell_ignored(world, plan)
    nonce = secrets.token_hex(8)
    shares, lines = divide(
        millicores=world.settings.vcpu_millicores,
        memory_mib=world.settings.memory_mib,
        job=JOB,
        options={JOB: plan.options},
    )
    pull_secrets = create_pull_secrets(world, [given], nonce=nonce)
    body = step_pod(plan, share=shares[JOB], pull_secrets=pull_secrets, disk_mib=world.settings.disk_mib)
    body, more = apply_overlay(body, overlay, services={})
    for line in (*lines, *more):
        world.log.line(line)
    made = attempted("the Pod of the step was not created", lambda: create_step_pod(world, body, nonce=nonce))
    wait_until_ready(world, made, images={JOB: plan.image}, patience={})
    return made


def _execute(world: World, given: ContainerStep, *, pod: str, workspace: str) -> int:
    job = workflow_pod(world.pod)
    script = f"ostler-{secrets.token_hex(6)}.sh"
    variables = variables_of(given)
    own = FileCommands.of(variables, folder=_FILE_COMMANDS)
    content = run_script(
        folder=step_folder(given, workspace),
        entry_point=given.entry_point or "",
        arguments=given.entry_point_args,
        variables=variables,
        prepend=paths_of(given.prepend_path),
        before=step_paths(workspace),
    )
    copies.between(
        world,
        source=job,
        pack=pack(WORK, [workspace, f"_temp/{HOME}"]),
        pod=pod,
        command=place(GITHUB, {workspace: _WORKSPACE, f"_temp/{HOME}": f"{GITHUB}/home"}),
        what="Copy of the workspace to the step's container",
        keep=copies.everything,
    )
    copies.from_runner(
        world,
        pod,
        folder=f"{world.settings.work}/_temp",
        command=place(
            GITHUB,
            {FILE_COMMANDS: _FILE_COMMANDS, WORKFLOW_FILES: f"{GITHUB}/workflow", script: f"{GITHUB}/{script}"},
        ),
        what="Copy of the step's files to its container",
        keep=lambda entry: own.has(entry.name) or below(entry.name, WORKFLOW_FILES),
        extra={script: content},
    )
    code = run_step(world, pod, f"{GITHUB}/{script}")
    try:
        _copy_back(world, job=job, pod=pod, workspace=workspace, own=own)
    except HookFailed as error:
        raise HookFailed(str(error), code=code or error.code) from error
    return code


def _copy_back(world: World, *, job: str, pod: str, workspace: str, own: FileCommands) -> None:
    places = {"workspace": f"{WORK}/{workspace}", "home": f"{TEMP}/{HOME}"}
    if world.alone():
        command = place(WORK, places)
    else:
        command = add(WORK, places)
        world.log.line("Other steps run: files that this step has deleted stay in the workspace of the job")
    copies.between(
        world,
        source=pod,
        pack=pack(GITHUB, ["workspace", "home"]),
        pod=job,
        command=command,
        what="Copy of the workspace to the job's container",
        keep=copies.everything,
    )
    copies.to_runner(
        world,
        source=pod,
        pack=own.pack(_FILE_COMMANDS),
        folder=f"{world.settings.work}/_temp/{FILE_COMMANDS}",
        what="Copy of the step's file commands to the runner",
        keep=own.may_return,
    )


def step_folder(given: ContainerStep, workspace: str) -> str:
    """Return the working directory of the step. The workspace of the job is at `/github/workspace` in the step."""
    wanted = given.working_directory or _WORKSPACE
    own = f"{WORK}/{workspace}"
    if wanted == own or wanted.startswith(f"{own}/"):
        return _WORKSPACE + wanted[len(own) :]
    return wanted
