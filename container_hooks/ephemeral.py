"""Ephemeral containers: the containers of a job in its runner Pod, for pools with a shared workspace.

The API server adds them to a running Pod. They mount volumes that the Pod has from its creation, and share its network
and its resources. Such a container never changes, and is never removed: it ends with its program, or with its Pod. Each
name can therefore be used once. A repeated call adds no second container, because the existing one has the name.

Law L7: each patch tests the UID of the Pod, and the claim in its annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from container_hooks.cluster import Made
from container_hooks.containers import Plan
from container_hooks.copies import JOB
from container_hooks.failures import HookFailed
from container_hooks.manifests import bare_container
from container_hooks.pod_state import only
from container_hooks.ports import World
from container_hooks.scripts import EXTERNALS, GITHUB, WORK
from container_hooks.starts import wait_until_ready
from k8s_adapters.calls.client import JSON_PATCH, Json, object_path
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.names import CLAIM_ANNOTATION
from ostler.errors import Conflict, Gone, Invalid
from rules.pools.hook_names import JOB_SERVICE, JOB_STEP
from rules.pools.pod_template import EXTERNALS_VOLUME, GITHUB_VOLUME, WORK_VOLUME

VOLUMES = {WORK_VOLUME: WORK, EXTERNALS_VOLUME: EXTERNALS, GITHUB_VOLUME: GITHUB}
_LONGEST_NAME = 63
_ROUNDS = 6  # attempts to add a container while another client writes the Pod
_CHECK_EVERY = 0.25  # seconds between two attempts
_UNPROCESSABLE = 422
# The container ends when the file exists, or after SIGTERM. A shell that is process 1 ignores SIGTERM without a trap.
_WAIT = "trap 'exit 0' TERM INT; until [ -e \"$0\" ]; do sleep 1 & wait $!; done"


def waiting_container(plan: Plan, *, env_secret: str | None = None) -> Json:
    """Return a container that waits for commands, until `end_of` names an existing file."""
    program = replace(plan, command=("sh",), args=("-c", _WAIT, end_of(plan.name)))
    return bare_container(program, env_secret, VOLUMES)


def service_container(plan: Plan, *, env_secret: str | None) -> Json:
    """Return the container of a service, which executes its own program."""
    return bare_container(plan, env_secret, VOLUMES)


def service_name(name: str) -> str:
    """Return the name of the ephemeral container of a service."""
    return f"{JOB_SERVICE}{name}"[:_LONGEST_NAME].rstrip("-")


def end_of(name: str) -> str:
    """Return the path of the file that ends a waiting container."""
    return f"{GITHUB}/.ended-{name}"


def add(world: World, wanted: Callable[[Json], Sequence[Json]]) -> Json:
    """Add containers to the runner Pod, and return the Pod. A repeated call has no effect.

    `wanted` returns the containers for the present state of the Pod. Raises `HookFailed` if another container has the
    name of a wanted one, and the errors of `KubeClient.request`.
    """
    refused: Conflict | Invalid | None = None
    path = object_path("pods", namespace=world.namespace, name=world.pod)
    for _ in range(_ROUNDS):
        pod = read(world)
        there: Sequence[Json] = pod["spec"].get("ephemeralContainers") or ()
        containers = wanted(pod)
        missing = [each for each in containers if not _exists(each, there)]
        if not missing:
            return pod
        claim = (pod["metadata"].get("annotations") or {}).get(CLAIM_ANNOTATION)
        pointer = f"/metadata/annotations/{CLAIM_ANNOTATION.replace('/', '~1')}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": world.uid},
            {"op": "test", "path": pointer, "value": claim},
            {"op": "add", "path": "/spec/ephemeralContainers", "value": [*there, *missing]},
        ]
        try:
            return world.client.request(
                "PATCH", f"{path}/ephemeralcontainers", body=operations, content_type=JSON_PATCH
            )
        except (Conflict, Invalid) as error:
            answer = answer_of(error)
            if isinstance(error, Invalid) and (answer is None or answer.status != _UNPROCESSABLE):
                raise
            refused = error  # the Pod has changed since it was read, or the API server refuses the containers
        world.timing.sleep(_CHECK_EVERY)
    assert refused is not None  # noqa: S101  each round ends with a return or sets it
    raise refused


def add_step(world: World, plan: Plan) -> str:
    """Add a container that waits for the commands of a step, and return its name. Raises as `add`."""
    names: list[str] = []

    def wanted(pod: Json) -> Sequence[Json]:
        names[:] = [_free_step(pod)]
        return [waiting_container(replace(plan, name=names[0]))]

    add(world, wanted)
    return names[0]


def read(world: World) -> Json:
    """Return the runner Pod. Raises `HookFailed` if it is gone or was replaced."""
    try:
        pod = world.client.request("GET", object_path("pods", namespace=world.namespace, name=world.pod))
    except Gone as error:
        raise HookFailed(f"runner Pod {world.pod} no longer exists; run the job again") from error
    if pod["metadata"]["uid"] != world.uid:
        raise HookFailed(f"runner Pod {world.pod} was replaced by another Pod; run the job again")
    return pod


def wait_until_running(world: World, plans: Sequence[Plan]) -> None:
    """Wait until these containers run. Raises `HookFailed` with the reason if one of them cannot start or has ended."""
    wait_until_ready(
        world,
        Made("pods", world.pod, world.uid),
        images={each.name: each.image for each in plans},
        patience={},
        view=lambda pod: only(pod, [each.name for each in plans]),
    )


def _free_step(pod: Json) -> str:
    """Return the first name of a step that no container of the Pod has."""
    used = {each["name"] for each in pod["spec"].get("ephemeralContainers") or ()}
    return next(name for n in range(len(used) + 1) if (name := f"{JOB_STEP}{n}") not in used)


def _exists(wanted: Json, there: Sequence[Json]) -> bool:
    """Return whether the Pod has this container. Raises `HookFailed` if another container has its name."""
    found = next((each for each in there if each["name"] == wanted["name"]), None)
    if found is None:
        return False
    if not _covers(found, wanted):
        what = "the job was prepared before" if wanted["name"] == JOB else "an earlier command added it"
        raise HookFailed(f"the runner Pod has another container {wanted['name']}, because {what}; run the job again")
    return True


def _covers(found: object, wanted: object) -> bool:
    """Return whether `found` has all values of `wanted`. The API server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            _covers(found.get(key), value) for key, value in wanted.items() if value not in ([], {}, None, "")
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_covers, found, wanted))
    return found == wanted
