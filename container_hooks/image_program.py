"""Steps that run the program of their image, because no entry point is given and the API server does not know it.

The Pod of such a step has three containers. The files are copied through an init container, and then the program
begins. When it has ended, the files are copied back through a container that waits beside it. Both have the image of
the job's container, because the image of the step might contain nothing but its program.
"""

from __future__ import annotations

import secrets

from container_hooks import copies
from container_hooks.cluster import Made, create_env_secret, create_step_pod
from container_hooks.containers import plan_program
from container_hooks.conversation import CommandCancelled
from container_hooks.copies import JOB
from container_hooks.failures import HookFailed
from container_hooks.inputs import ContainerStep, variables_of
from container_hooks.logged import follow_program
from container_hooks.manifests import BEGIN, FILES, FILES_IN, program_pod, secret_values, with_user_of_program
from container_hooks.overlay import apply_overlay, load_overlay
from container_hooks.pod_state import container_end, only
from container_hooks.ports import World
from container_hooks.prepare_job import attempted, create_pull_secrets, tell_ignored
from container_hooks.resources import divide
from container_hooks.scripts import step_paths
from container_hooks.starts import wait_until_ready
from container_hooks.step_files import copy_back, copy_in, file_commands_of
from k8s_adapters.calls.client import Json, object_path
from ostler.errors import RateLimited, Retryable, UpstreamError
from rules.pools.hook_names import secret_names, workflow_pod

_REPORTED_WITHIN = 15.0  # seconds until the status of a Pod shows that a container has ended
_REPORT_EVERY = 0.5  # seconds between two reads of this status


def create_program_pod(world: World, given: ContainerStep, *, folder: str) -> Made:
    """Create the Pod of a step, and wait until files can be copied into it. Raises `HookFailed`."""
    overlay = load_overlay(world.settings.overlay)
    plan = plan_program(given)
    tell_ignored(world, plan)
    nonce = secrets.token_hex(8)
    shares, lines = divide(
        millicores=world.settings.vcpu_millicores,
        memory_mib=world.settings.memory_mib,
        job=JOB,
        options={JOB: plan.options},
    )
    job = attempted("the Pod of the job cannot be read", lambda: _read(world, workflow_pod(world.pod)))
    copier = next(each["image"] for each in job["spec"]["containers"] if each["name"] == JOB)
    pull_secrets = create_pull_secrets(world, [given], nonce=nonce)
    of_job = {each["name"] for each in job["spec"].get("imagePullSecrets") or ()} & set(secret_names(world.pod))
    values = secret_values([plan])
    what = "the Secret with the environment of the step was not created"
    env_secret = attempted(what, lambda: create_env_secret(world, values, nonce=nonce)).name if values else None
    body = program_pod(
        plan,
        copier=copier,
        folder=folder,
        share=shares[JOB],
        env_secret=env_secret,
        pull_secrets=[*pull_secrets, *sorted(of_job)],
        disk_mib=world.settings.disk_mib,
    )
    body, more = apply_overlay(body, overlay, services={})
    for line in (*lines, *more):
        world.log.line(line)
    body = with_user_of_program(body)
    made = attempted("the Pod of the step was not created", lambda: create_step_pod(world, body, nonce=nonce))
    _wait_until_begun(world, made, FILES_IN, image=copier)
    return made


def run_program(world: World, given: ContainerStep, made: Made, *, workspace: str) -> int:
    """Copy the files, run the program of the image, copy the files back, and return the exit code of the program.

    Raises `HookFailed` if the program cannot be started, if its exit code is unknown, or if a copy fails.
    """
    own = file_commands_of(variables_of(given))
    copy_in(world, made.name, workspace=workspace, own=own, container=FILES_IN)
    _begin(world, made, workspace)
    _wait_until_begun(world, made, JOB, image=given.image or "")
    code = follow_program(world, made, container=JOB)
    try:
        _wait_until_begun(world, made, FILES, image="")  # its image might be pulled after the program began
    except HookFailed as error:
        raise HookFailed(str(error), code=code or error.code) from error
    copy_back(world, made.name, workspace=workspace, own=own, code=code, container=FILES)
    return code


def _wait_until_begun(world: World, made: Made, container: str, *, image: str) -> None:
    """Wait until a container runs or has run. Raises `HookFailed` if it cannot start."""
    wait_until_ready(
        world,
        made,
        images={container: image},
        patience={},
        view=lambda pod: only(pod, [container], begun=True),
    )


def _begin(world: World, made: Made, workspace: str) -> None:
    """Make the paths of the job point to the folders of the step, and let the program begin.

    The init container ends after the command, so the answer might be lost. The status of the Pod then decides.
    """
    what = "the program of the image was not started"
    script = "\n".join(["set -e", *step_paths(workspace), ': > "$0"'])

    def attempt() -> None:
        errors = bytearray()
        code = world.exec.run(
            made.name,
            FILES_IN,
            ["sh", "-c", script, BEGIN],
            stdout=lambda _data: None,
            stderr=lambda data: copies.append(errors, data),
        )
        if code != 0:
            raise copies.command_failed(what, code, errors)

    try:
        copies.repeated(world, attempt, what)
    except HookFailed as error:
        if isinstance(error.__cause__, CommandCancelled) or not _has_begun(world, made):
            raise


def _has_begun(world: World, made: Made) -> bool:
    """Return whether the init container has ended with 0. The kubelet reports its end a moment later."""
    until = world.timing.clock() + _REPORTED_WITHIN
    while True:
        try:
            ended = container_end(_read(world, made.name), FILES_IN)
        except (Retryable, RateLimited):
            ended = None
        except UpstreamError:
            return False
        if ended is not None:
            return ended.get("exitCode") == 0
        if world.timing.clock() >= until:
            return False
        world.timing.sleep(_REPORT_EVERY)


def _read(world: World, pod: str) -> Json:
    return world.client.request("GET", object_path("pods", namespace=world.namespace, name=pod))
