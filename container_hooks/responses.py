"""Response of `prepare_job`: the JSON that the runner reads from the response file."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from container_hooks.containers import Plan
from k8s_adapters.calls.client import Json


def response(*, job_pod: str, workspace: str | None, plans: Sequence[Plan], is_alpine: bool) -> bytes:
    """Return the content of the response file.

    The runner sends `state` back with each later command. `workspace` is the workspace relative to `/__w`. `ports` maps
    each port of a container to the same number, because all containers of the Pod reach the port at `localhost`.
    """
    services = [_context(each) for each in plans if each.is_service]
    content: Json = {
        "state": {"jobPod": job_pod, **({} if workspace is None else {"workspace": workspace})},
        "context": {"container": _context(next(each for each in plans if not each.is_service))},
        "isAlpine": is_alpine,
    }
    if services:
        content["context"]["services"] = services
    return orjson.dumps(content)


def _context(plan: Plan) -> Json:
    numbers = [str(each["containerPort"]) for each in plan.ports]
    return {"image": plan.image, "ports": {number: number for number in numbers}}
