"""The four commands for pools with a shared workspace, where the containers of a job run in the runner Pod.

The runner and the containers of the job see the same work folder, so no file is copied. A file that a step writes is
seen by the runner at once: actions of the repository, and the files that `hashFiles()` reads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from container_hooks.cleanup_job import remove
from container_hooks.cluster import Made, create_env_secret, create_login_secret
from container_hooks.containers import Plan, plan_job, plan_step
from container_hooks.copies import JOB
from container_hooks.ephemeral import (
    add,
    add_step,
    end_of,
    read,
    service_container,
    service_name,
    wait_until_running,
    waiting_container,
)
from container_hooks.failures import HookFailed, failure_of
from container_hooks.inputs import (
    Container,
    ContainerStep,
    PrepareJob,
    ScriptStep,
    paths_of,
    variables_of,
    workspace_of,
)
from container_hooks.manifests import USER, secret_values
from container_hooks.options import Health
from container_hooks.pod_state import only, see
from container_hooks.ports import World
from container_hooks.prepare_job import attempted, set_up, tell_ignored
from container_hooks.responses import response
from container_hooks.scripts import TEMP, WORK, health_check, run_script, shared_paths
from container_hooks.step_files import step_folder, workspace_of_step
from container_hooks.steps import run_step
from k8s_adapters.calls.client import Json
from ostler.errors import ExecLost, OstlerError, RateLimited, Retryable
from rules.pools.hook_names import secret_names

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.5, 5.0  # seconds between two health checks
_NOT_ADDED = "the containers of the job were not added to the runner Pod"


def prepare_job(given: PrepareJob, *, response_file: str | None, world: World) -> int:
    """Add the containers of a job to the runner Pod, wait until they run, and write the response file. Return 0.

    Raises `HookFailed`. The containers that were added then end with the Pod.
    """
    if not response_file:
        raise HookFailed("prepare_job: the input names no responseFile; the runner must name one")
    assert given.container is not None  # noqa: S101  checked when the input was parsed
    plans = [_planned(plan) for plan in plan_job(given)]
    for plan in plans:
        _check(world, plan)
    if world.settings.overlay is not None:
        world.log.line("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE has no effect in a shared workspace")
    workspace = workspace_of(given.container, work=world.settings.work) or world.settings.workspace
    nonce = secrets.token_hex(8)
    try:
        _log_in(world, [given.container, *(given.services or ())], nonce=nonce)
        values = secret_values(plans)
        env_secret = None
        if values:
            what = "the Secret with the environment of the containers was not created"
            env_secret = attempted(what, lambda: create_env_secret(world, values, nonce=nonce)).name
        wanted = [
            service_container(plan, env_secret=env_secret)
            if plan.is_service
            else waiting_container(plan, env_secret=env_secret)
            for plan in plans
        ]
        pod = attempted(_NOT_ADDED, lambda: add(world, lambda _pod: wanted))
        _tell_unknown_names(world, plans, pod)
        world.log.line(f"Added {len(wanted)} containers to Pod {world.pod}; waiting until they run")
        wait_until_running(world, plans)
        is_alpine = set_up(world, Made("pods", world.pod, world.uid))
        _wait_until_healthy(world, plans)
        content = response(job_pod=world.pod, workspace=workspace, plans=plans, is_alpine=is_alpine)
        attempted("the response file was not written", lambda: world.files.write(response_file, content))
    except BaseException:
        remove(world, pods=(), secrets=sorted(world.ledger.secrets), strict=False)
        _end(world, JOB)
        raise
    return 0


def run_script_step(given: ScriptStep, *, world: World) -> int:
    """Execute a step in the job's container, and return its exit code. Raises `HookFailed` if it is unknown."""
    script = f"ostler-{secrets.token_hex(6)}.sh"
    content = run_script(
        folder=given.working_directory or WORK,
        entry_point=given.entry_point,
        arguments=given.entry_point_args,
        variables=variables_of(given),
        prepend=paths_of(given.prepend_path),
    )
    _write(world, script, content)
    return run_step(world, world.pod, f"{TEMP}/{script}")


def run_container_step(given: ContainerStep, *, state: Mapping[str, object], world: World) -> int:
    """Execute a step in a container of its own, with the workspace of the job, and return its exit code.

    Raises `HookFailed` if the step cannot be executed, or if its result is unknown.
    """
    if not given.entry_point:
        raise HookFailed(
            "run_container_step: in a shared workspace, the entry point of the image is not known; set `entrypoint` of "
            "the action, or ask for a pool with spec.containers.workspace copy"
        )
    workspace = workspace_of_step(given, state, world)
    plan = _planned(plan_step(given))
    _check(world, plan)
    _log_in(world, [given], nonce=secrets.token_hex(8))
    name = attempted(_NOT_ADDED, lambda: add_step(world, plan))
    try:
        wait_until_running(world, [replace(plan, name=name)])
        script = f"ostler-{secrets.token_hex(6)}.sh"
        content = run_script(
            folder=step_folder(given, workspace),
            entry_point=given.entry_point or "",
            arguments=given.entry_point_args,
            variables=variables_of(given),
            prepend=paths_of(given.prepend_path),
            before=shared_paths(workspace),
        )
        _write(world, script, content)
        return run_step(world, world.pod, f"{TEMP}/{script}", container=name)
    finally:
        _end(world, name)


def cleanup_job(world: World) -> int:
    """Delete the Secrets of this runner Pod, end the job's container, and return 0.

    Services and processes that are left end with the Pod, which ends after the runner. Raises `HookFailed` if a Secret
    was not deleted. The garbage collector deletes such a Secret after the Pod.
    """
    names = sorted(world.ledger.secrets) if world.ledger.complete else secret_names(world.pod)
    count = remove(world, pods=(), secrets=names, strict=True)
    _end(world, JOB)
    world.log.line(f"Deleted Secrets of the job: {count}")
    return 0


def _planned(plan: Plan) -> Plan:
    """Return a plan as an ephemeral container can have it. Options without effect are in `ignored`."""
    options = plan.options
    sizes = (("--cpus", options.millicores), ("--memory", options.memory_mib))
    more = [*(name for name, value in sizes if value is not None), *(f"volume {path}" for path in plan.scratch)]
    name = service_name(plan.name) if plan.is_service else plan.name
    return replace(plan, name=name, scratch=(), options=replace(options, ignored=[*options.ignored, *more]))


def _check(world: World, plan: Plan) -> None:
    """Write what is ignored to the log. Raises `HookFailed` if the user of the container cannot use the workspace."""
    tell_ignored(world, plan)
    if not plan.is_service and plan.options.user not in {None, USER}:
        raise HookFailed(
            f"container {plan.name} has --user {plan.options.user}, but the files of the runner belong to user {USER}: "
            "remove --user, or ask for a pool with spec.containers.workspace copy"
        )


def _log_in(world: World, containers: Sequence[Container], *, nonce: str) -> None:
    """Create the Secret with the registry logins of these containers, if they have any."""
    logins = [each.registry for each in containers if each.registry is not None]
    logins = [each for each in dict.fromkeys(logins) if each.username or each.password]
    if logins:
        what = "the Secret with the logins of image registries was not created"
        attempted(what, lambda: create_login_secret(world, logins, nonce=nonce))


def _tell_unknown_names(world: World, plans: Sequence[Plan], pod: Json) -> None:
    """Write one line to the log for each service whose name is no host name of the Pod."""
    known = {name for each in pod["spec"].get("hostAliases") or () for name in each.get("hostnames") or ()}
    for plan in plans:
        if plan.context is not None and plan.context not in known:
            world.log.line(
                f"Service {plan.context} is reached at localhost only: its name is not in spec.containers.serviceNames"
            )


def _wait_until_healthy(world: World, plans: Sequence[Plan]) -> None:
    """Wait until the health commands of all services have succeeded. Raises `HookFailed` if one does not in time."""
    began = world.timing.clock()
    for plan in plans:
        health = plan.options.health
        if health is None:
            continue
        while not _is_healthy(world, plan, health):
            seen = see(only(read(world), [plan.name]), images={plan.name: plan.image})
            if seen.failed is not None:
                raise HookFailed(f"Pod {world.pod}: {seen.failed}")
            if world.timing.clock() - began >= health.patience:
                raise HookFailed(
                    f"container {plan.name} did not become healthy within {health.patience:.0f} seconds; check its "
                    "--health-cmd and its log"
                )
            world.timing.sleep(max(min(health.interval, _LONGEST_INTERVAL), _SHORTEST_INTERVAL))


def _is_healthy(world: World, plan: Plan, health: Health) -> bool:
    """Execute the health command once. A lost connection counts as a failure of the command."""

    def ignore(_data: bytes) -> None:
        return

    try:
        command = health_check(health.command, seconds=health.timeout)
        return world.exec.run(world.pod, plan.name, command, stdout=ignore, stderr=ignore) == 0
    except (ExecLost, Retryable, RateLimited):
        return False
    except OstlerError as error:
        raise failure_of(f"the health command of container {plan.name} was not executed", error) from error


def _end(world: World, name: str) -> None:
    """End a container that waits for commands. If this fails, the container ends with the Pod."""

    def ignore(_data: bytes) -> None:
        return

    with suppress(OstlerError):
        world.exec.run(world.pod, name, ["sh", "-c", ': > "$0"', end_of(name)], stdout=ignore, stderr=ignore)


def _write(world: World, script: str, content: bytes) -> None:
    """Write a script into the folder that the runner and the containers share."""
    path = f"{world.settings.work}/_temp/{script}"
    attempted("the script of the step was not written", lambda: world.files.write(path, content))
