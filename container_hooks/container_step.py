"""Command `run_container_step`: execute a step in a container of its own, with the workspace of the job."""

from __future__ import annotations

import secrets

from container_hooks.cleanup_job import remove
from container_hooks.cluster import Made, create_step_pod
from container_hooks.containers import plan_step
from container_hooks.copies import JOB
from container_hooks.image_program import create_program_pod, run_program
from container_hooks.inputs import ContainerStep, paths_of, variables_of
from container_hooks.manifests import step_pod
from container_hooks.overlay import apply_overlay, load_overlay
from container_hooks.ports import World
from container_hooks.prepare_job import attempted, create_pull_secrets, tell_ignored
from container_hooks.resources import divide
from container_hooks.scripts import GITHUB, run_script, step_paths
from container_hooks.starts import wait_until_ready
from container_hooks.step_files import copy_back, copy_in, file_commands_of, step_folder, workspace_of_step
from container_hooks.steps import run_step
from rules.pools.hook_names import workflow_pod


def run_container_step(given: ContainerStep, *, state: dict[str, object], world: World) -> int:
    """Create the Pod of the step, copy the workspace into it, execute the step, and copy the workspace back.

    Return the exit code of the step. Afterwards the Pod is deleted, also after a failure. Raises `HookFailed` if the
    step cannot be executed, if its result is unknown, or if a copy fails.
    """
    workspace = workspace_of_step(given, state, world)
    made: list[Made] = []
    before = set(world.ledger.secrets)
    try:
        if given.entry_point:
            made.append(_create(world, given))
            return _execute(world, given, pod=made[0].name, workspace=workspace)
        made.append(create_program_pod(world, given, folder=step_folder(given, workspace)))
        return run_program(world, given, made[0], workspace=workspace)
    finally:
        pods = [each.name for each in made] or sorted(world.ledger.pods - {workflow_pod(world.pod)})
        own = world.ledger.secrets - world.ledger.taken - before
        remove(world, pods=pods, secrets=sorted(own), strict=False)


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
    script = f"ostler-{secrets.token_hex(6)}.sh"
    variables = variables_of(given)
    own = file_commands_of(variables)
    content = run_script(
        folder=step_folder(given, workspace),
        entry_point=given.entry_point or "",
        arguments=given.entry_point_args,
        variables=variables,
        prepend=paths_of(given.prepend_path),
        before=step_paths(workspace),
    )
    copy_in(world, pod, workspace=workspace, own=own, extra={script: content})
    code = run_step(world, pod, f"{GITHUB}/{script}")
    copy_back(world, pod, workspace=workspace, own=own, code=code)
    return code
