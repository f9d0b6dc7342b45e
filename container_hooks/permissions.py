"""Check of the permissions of the runner Pod's ServiceAccount, after the API server has denied a call.

The check costs one call per permission, so it runs only when it can explain a failure.
"""

from __future__ import annotations

from container_hooks.ports import World
from k8s_adapters.cluster.access import Right, may
from ostler.errors import UpstreamError
from rules.pools.hook_names import secret, workflow_pod


def missing_rights(world: World) -> list[str]:
    """Return the permissions that this process lacks. Return an empty list if the API server does not answer."""
    shared, first = world.settings.shared, secret(world.pod, 0)
    pod = world.pod if shared else workflow_pod(world.pod)
    wanted = (
        *(
            [Right("patch", "pods/ephemeralcontainers", name=pod)]
            if shared
            else [Right("create", "pods"), Right("delete", "pods", name=pod)]
        ),
        Right("get", "pods", name=pod),
        Right("get", "pods/exec", name=pod),
        Right("create", "pods/exec", name=pod),
        *(() if shared else (Right("get", "pods/log", name=pod),)),
        Right("create", "secrets"),
        Right("get", "secrets", name=first),
        Right("delete", "secrets", name=first),
    )
    try:
        return [str(right) for right in wanted if not may(world.client, right, namespace=world.namespace)]
    except UpstreamError:
        return []
