"""Command `prepare_job`: create the Pod of a job with its services, and copy the files of the runner into it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from container_hooks import copies
from container_hooks.archives import Entry, below
from container_hooks.cleanup_job import remove
from container_hooks.cluster import Made, create_docker_secret, create_env_secret, create_job_pod
from container_hooks.containers import Plan, plan_job
from container_hooks.failures import HookFailed, failure_of
from container_hooks.inputs import Container, PrepareJob, Registry, workspace_of
from container_hooks.manifests import job_pod, secret_values, unusable_variables
from container_hooks.overlay import apply_overlay, load_overlay
from container_hooks.ports import World
from container_hooks.resources import divide
from container_hooks.responses import response
from container_hooks.scripts import EXTERNALS, RESPONSES, WORK, merge_into, set_up_job
from container_hooks.starts import wait_until_ready
from k8s_adapters.calls.client import Json
from ostler.errors import OstlerError

T = TypeVar("T")


def prepare_job(given: PrepareJob, *, response_file: str | None, world: World) -> int:
    """Create the Pod of a job, wait until it is ready, copy the files and write the response file. Return 0.

    If any part fails, everything that was created is deleted again. Raises `HookFailed`.
    """
    if not response_file:
        raise HookFailed("prepare_job: the input names no responseFile; the runner must name one")
    assert given.container is not None  # noqa: S101  checked when the input was parsed
    overlay = load_overlay(world.settings.overlay)
    plans = plan_job(given)
    for plan in plans:
        tell_ignored(world, plan)
    workspace = workspace_of(given.container, work=world.settings.work) or world.settings.workspace
    try:
        made, _pod = _create(world, given, plans, overlay)
        _copy_files(world, made)
        is_alpine = set_up(world, made)
        content = response(job_pod=made.name, workspace=workspace, plans=plans, is_alpine=is_alpine)
        attempted("the response file was not written", lambda: world.files.write(response_file, content))
    except BaseException:
        remove(world, pods=sorted(world.ledger.pods), secrets=sorted(world.ledger.secrets), strict=False)
        raise
    return 0


def _create(world: World, given: PrepareJob, plans: Sequence[Plan], overlay: Json | None) -> tuple[Made, Json]:
    settings = world.settings
    nonce = secrets.token_hex(8)
    shares, lines = divide(
        millicores=settings.vcpu_millicores,
        memory_mib=settings.memory_mib,
        job=copies.JOB,
        options={plan.name: plan.options for plan in plans},
    )
    pull_secrets = create_pull_secrets(world, [given.container, *(given.services or ())], nonce=nonce)
    values = secret_values(plans)
    env_secret = None
    if values:
        what = "the Secret with the environment of the containers was not created"
        env_secret = attempted(what, lambda: create_env_secret(world, values, nonce=nonce)).name
    body = job_pod(plans, shares=shares, env_secret=env_secret, pull_secrets=pull_secrets, disk_mib=settings.disk_mib)
    services = {plan.context: plan.name for plan in plans if plan.context is not None}
    body, more = apply_overlay(body, overlay, services=services)
    for line in (*lines, *more):
        world.log.line(line)
    made = attempted("the Pod of the job was not created", lambda: create_job_pod(world, body, nonce=nonce))
    world.log.line(f"Created Pod {made.name}; waiting until its {len(body['spec']['containers'])} containers are ready")
    pod = wait_until_ready(
        world,
        made,
        images={plan.name: plan.image for plan in plans},
        patience={plan.name: plan.options.health.patience for plan in plans if plan.options.health is not None},
    )
    return made, pod


def create_pull_secrets(world: World, containers: Sequence[Container | None], *, nonce: str) -> list[str]:
    """Create one Secret for each different registry login, and return the names of the Secrets."""
    logins: dict[Registry, None] = {}
    for each in containers:
        if each is not None and each.registry is not None and (each.registry.username or each.registry.password):
            logins[each.registry] = None
    what = "the Secret with the login of an image registry was not created"
    return [attempted(what, partial(create_docker_secret, world, login, nonce=nonce)).name for login in logins]


def tell_ignored(world: World, plan: Plan) -> None:
    """Write one line to the log if options or variables of a container have no effect."""
    names = [*plan.options.ignored, *(f"variable {name}" for name in unusable_variables(plan))]
    if names:
        called = f"service {plan.context}" if plan.is_service else f"container {plan.name}"
        world.log.line(f"Ignored options of {called}, which a Pod cannot have: {', '.join(names)}")
    if plan.scratch:
        world.log.line(f"Volumes of container {plan.name} are empty folders of its Pod: {', '.join(plan.scratch)}")


def attempted(what: str, action: Callable[[], T]) -> T:
    """Return the result of `action`. If `action` fails, raise `HookFailed` with a message that begins with `what`."""
    try:
        return action()
    except OstlerError as error:
        raise failure_of(what, error) from error


def _copy_files(world: World, made: Made) -> None:
    settings = world.settings

    def of_the_job(entry: Entry) -> bool:
        return not below(entry.name, f"_temp/{RESPONSES}")

    work = copies.from_runner(
        world,
        made.name,
        folder=settings.work,
        command=merge_into(WORK),
        what="Copy of the work folder to the job's container",
        keep=of_the_job,
    )
    externals = copies.from_runner(
        world,
        made.name,
        folder=settings.externals,
        command=merge_into(EXTERNALS),
        what="Copy of the runner's externals to the job's container",
    )
    files, size = work.files + externals.files, (work.content + externals.content) / 2**20
    world.log.line(f"Copied {files} files ({size:.1f} MiB) to the job's container")


def set_up(world: World, made: Made) -> bool:
    """Create the folders below `/github`. Return whether the image is Alpine Linux."""
    what = "the folders of the job were not created"

    def attempt() -> bool:
        output, errors = bytearray(), bytearray()
        code = world.exec.run(
            made.name,
            copies.JOB,
            set_up_job(),
            stdout=lambda data: copies.append(output, data),
            stderr=lambda data: copies.append(errors, data),
        )
        if code != 0:
            raise copies.command_failed(what, code, errors)
        return b"alpine" in output.split()

    return copies.repeated(world, attempt, what)
