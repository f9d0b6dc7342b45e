"""Containers of a job as records: name, image, command, environment, ports and options of each container."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from container_hooks.copies import JOB
from container_hooks.inputs import Container, ContainerStep, PrepareJob, Service, variables_of
from container_hooks.options import Options, parse_options
from container_hooks.port_mappings import container_ports
from container_hooks.scripts import EXTERNALS, GITHUB, HOME, WORK, words
from k8s_adapters.calls.client import Json

KEEP_ALIVE = ("tail", "-f", "/dev/null")
"""Program of a container that waits for commands."""

_LONGEST_NAME = 63
_MOST_SCRATCH = 32
_HOME_IGNORED = "variable HOME"
_HOST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OURS = (WORK, EXTERNALS, GITHUB, "/var/run", "/proc", "/sys", "/dev")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One container of a hook Pod.

    `context` is the key of a service in the workflow, or None. `scratch` has the paths of `volumes:`. The container
    gets an empty folder at each of them.
    """

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    environment: dict[str, str]
    ports: list[Json]
    options: Options
    context: str | None = None
    scratch: tuple[str, ...] = ()

    @property
    def is_service(self) -> bool:
        """Return whether the container is a service."""
        return self.context is not None


def plan_job(given: PrepareJob) -> list[Plan]:
    """Return the job's container and the containers of its services. Raises `HookFailed` for a wrong option."""
    assert given.container is not None  # noqa: S101  checked when the input was parsed
    services = given.services or []
    names = service_names([each.image or "" for each in services])
    return [
        _plan(given.container, JOB, "the job's container", keeps_alive=True),
        *(_service(each, name) for each, name in zip(services, names, strict=True)),
    ]


def plan_step(given: ContainerStep) -> Plan:
    """Return the container of a step. The container only waits, until the step is executed in it.

    The environment of the step is not part of the Pod, but of the script of the step.
    """
    found = _plan(given, JOB, "the step", keeps_alive=True)
    return Plan(
        name=JOB,
        image=found.image,
        command=KEEP_ALIVE[:1],
        args=KEEP_ALIVE[1:],
        environment={},
        ports=found.ports,
        options=found.options,
        scratch=found.scratch,
    )


def plan_program(given: ContainerStep) -> Plan:
    """Return the container of a step that runs the program of its image, with the environment of the step."""
    found = _plan(given, JOB, "the step", keeps_alive=False)
    options = replace(found.options, ignored=[each for each in found.options.ignored if each != _HOME_IGNORED])
    return replace(found, environment={**variables_of(given), **options.environment}, options=options)


def service_names(images: Sequence[str]) -> list[str]:
    """Return a name for each service, as the hooks of GitHub form it: the last part of the image's path.

    Equal names get a number. All names differ from each other, and from the name of the job's container.
    """
    bases = [_base_name(image) for image in images]
    counts, used = Counter(bases), {JOB}
    numbers: Counter[str] = Counter()
    found = []
    for base in bases:
        name = base
        if counts[base] > 1 or name in used:
            name = f"{base}-{numbers[base]}"
            numbers[base] += 1
        while name in used:
            name = f"{base}-{numbers[base]}"
            numbers[base] += 1
        used.add(name)
        found.append(name)
    return found


def _base_name(image: str) -> str:
    last = image.partition("@")[0].rstrip("/").rpartition("/")[2].partition(":")[0]
    return re.sub(r"[^a-z0-9]+", "-", last.lower())[: _LONGEST_NAME - 5].strip("-") or "service"


def _service(given: Service, name: str) -> Plan:
    plan = _plan(given, name, f"service {given.context_name[:60]}", keeps_alive=False, context=given.context_name)
    if not is_host(given.context_name):
        plan.options.ignored.append(f"host name {given.context_name[:60]}, use localhost")
    return plan


def is_host(name: str) -> bool:
    """Return whether the hosts file of a Pod can have this name. Docker also accepts capitals and `_`."""
    return _HOST.fullmatch(name) is not None


def _plan(given: Container, name: str, called: str, *, keeps_alive: bool, context: str | None = None) -> Plan:
    options = parse_options(given.create_options, of=called)
    entry_point = given.entry_point or options.entrypoint
    command: tuple[str, ...] = (entry_point,) if entry_point else ()
    args = tuple(words(given.entry_point_args))
    if keeps_alive and options.entrypoint:
        options.ignored.append("--entrypoint")
    if keeps_alive and not given.entry_point:
        command, args = KEEP_ALIVE[:1], KEEP_ALIVE[1:]
    environment = {**variables_of(given), **options.environment}
    home = environment.pop("HOME", None)  # the folder of the runner does not exist in the container
    if home is not None and home != f"{GITHUB}/home" and posixpath.basename(home) != HOME:
        options.ignored.append(_HOME_IGNORED)
    scratch, dropped = _scratch(given)
    options.ignored += dropped
    return Plan(
        name=name,
        image=given.image or "",
        command=command,
        args=args,
        environment=environment,
        ports=container_ports([*(given.port_mappings or ()), *options.ports], of=called),
        options=options,
        context=context,
        scratch=tuple(scratch),
    )


def _scratch(given: Container) -> tuple[list[str], list[str]]:
    """Return the paths of the volumes that the container gets, and the names of the volumes that are ignored."""
    paths = [each.target_volume_path.rstrip("/") for each in given.user_mount_volumes or ()]
    kept = list(dict.fromkeys(path for path in paths if _is_free(path)))[:_MOST_SCRATCH]
    return kept, [f"volume {path or '/'}" for path in dict.fromkeys(paths) if path not in kept]


def _is_free(path: str) -> bool:
    return (
        path.startswith("/")
        and ".." not in path.split("/")
        and ":" not in path
        and not any(path == ours or path.startswith(f"{ours}/") for ours in _OURS)
    )
