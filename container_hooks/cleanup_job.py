"""Command `cleanup_job`: delete the hook Pods and Secrets of this runner Pod."""

from __future__ import annotations

from collections.abc import Sequence

from container_hooks.cluster import delete_named
from container_hooks.conversation import CommandCancelled
from container_hooks.failures import HookFailed, failure_of
from container_hooks.ports import World
from ostler.errors import OstlerError
from rules.pools.hook_names import pod_names, secret_names


def cleanup_job(world: World) -> int:
    """Delete every object of this runner Pod and return 0. Objects that are already gone cause no error.

    The runner Pod has no permission to list, so this function reads each possible name. If this process has served the
    whole job, it reads only the names that it has used. Raises `HookFailed` if an object was not deleted. The garbage
    collector deletes such an object after the runner Pod.
    """
    ledger = world.ledger
    pods = sorted(ledger.pods) if ledger.complete else pod_names(world.pod)
    secrets = sorted(ledger.secrets) if ledger.complete else secret_names(world.pod)
    count = remove(world, pods=pods, secrets=secrets, strict=True)
    world.log.line(f"Deleted Pods and Secrets of the job: {count}")
    return 0


def remove(world: World, *, pods: Sequence[str], secrets: Sequence[str], strict: bool) -> int:
    """Delete Pods and Secrets of this runner Pod by name, and return their number.

    A failure does not stop the deletion of the other objects. Afterwards it is raised if `strict` is True, and written
    to the log otherwise. If the command is cancelled during the deletion, all objects are deleted before
    `CommandCancelled` is raised, because the cancelled command still has to clean up.
    """
    count, failures = 0, list[HookFailed]()
    cancelled: CommandCancelled | None = None
    for kind, names in (("pods", pods), ("secrets", secrets)):
        for name in names:
            try:
                try:
                    count += delete_named(world, kind, name)
                except CommandCancelled as error:  # each command raises this error only once
                    cancelled = error
                    count += delete_named(world, kind, name)
            except OstlerError as error:
                failures.append(failure_of(f"{kind}/{name} was not deleted", error))
            else:
                world.ledger.forget(kind, name)
    if cancelled is not None:
        raise cancelled
    if failures and strict:
        raise failures[0]
    for each in failures:
        world.log.line(f"{each}. The cluster deletes the object after the runner Pod")
    return count
