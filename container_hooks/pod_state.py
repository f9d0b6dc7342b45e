"""State of a hook Pod while it starts, derived from its JSON only: ready, not ready yet, or failed with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from container_hooks.failures import one_line
from k8s_adapters.calls.client import Json

_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_PULL_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_NEVER_STARTED = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_START_FAILED = frozenset({"StartError", "ContainerCannotRun"})
_LONGEST_REASON = 300
_SIGNALS = 128
_DEFAULT_DISK_LIMIT = re.compile(r"ephemeral-storage[^;]* limit for ")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """State of a Pod in one answer of the API server.

    `ready` is True if every container runs and every health command has succeeded. `failed` is one line if the Pod can
    never become ready. `pull_error` is one line if an image pull failed. The kubelet repeats the pull, so it might
    succeed later. `waits_for` states what is missing. `unhealthy` has the containers that run and are not ready.
    """

    ready: bool = False
    failed: str | None = None
    pull_error: str | None = None
    waits_for: str = ""
    unhealthy: frozenset[str] = frozenset()


def see(pod: Json, *, images: Mapping[str, str]) -> Seen:
    """Return the state of a Pod. `images` has the image of each container, for the messages."""
    status: Json = pod.get("status") or {}
    if (over := _over(pod, status)) is not None:
        return Seen(failed=over)
    containers = status.get("containerStatuses") or ()
    for container in (*(status.get("initContainerStatuses") or ()), *containers):
        if (found := _waiting(container, images)) is not None:
            return found
    names = [each["name"] for each in pod["spec"]["containers"]]
    running = {each["name"] for each in containers if _is_running(each)}
    ready = {each["name"] for each in containers if each.get("ready")}
    if missing := [name for name in names if name not in running]:
        return Seen(waits_for=_unscheduled(status) or f"container {missing[0]} is not started yet")
    if unhealthy := frozenset(names) - ready:
        name = next(each for each in names if each in unhealthy)
        return Seen(waits_for=f"the health command of container {name} has not succeeded yet", unhealthy=unhealthy)
    return Seen(ready=True)


def _over(pod: Json, status: Json) -> str | None:
    """Return one line if a container or the whole Pod has ended, or the Pod is being deleted."""
    inits = status.get("initContainerStatuses") or ()
    for container in (*inits, *(status.get("containerStatuses") or ())):
        ended = _state(container, "terminated")
        if ended and not (ended.get("exitCode") == 0 and any(each is container for each in inits)):
            return ended_line(container["name"], ended, memory=memory_limit(pod, container["name"]))
    if status.get("phase") in {"Failed", "Succeeded"}:
        reason = ": ".join(filter(None, (status.get("reason"), str(status.get("message") or "").strip())))
        return one_line(f"the Pod ended before the job began ({reason or status['phase']}){_set_by(pod)}")
    return "the Pod was deleted before the job began" if "deletionTimestamp" in pod["metadata"] else None


def ended_line(name: str, ended: Json, *, memory: str | None) -> str:
    """Return one line about a container that ended. `memory` is the memory limit of the container."""
    if ended.get("reason") == "OOMKilled":
        return (
            f"container {name} used more memory than its limit{f' of {memory}' if memory else ''} and was killed "
            "(OOMKilled); give the pool more memory in spec.containers.memoryMib, or use less"
        )
    code, signal = ended.get("exitCode"), ended.get("signal")
    how = f"signal {signal}" if signal else f"exit code {code}"
    said = one_line(str(ended.get("message") or "")[-_LONGEST_REASON:])  # the end of its output
    reason = ended.get("reason")
    detail = ": ".join(filter(None, (reason if reason not in {"Error", "Completed"} else None, said)))
    return one_line(
        f"container {name} ended with {how}{f' ({detail})' if detail else ''}; check its image, its options and its log"
    )


def only(pod: Json, names: Sequence[str], *, begun: bool = False) -> Json:
    """Return a Pod with only these containers, of any kind, as if it had no others. One that runs is ready.

    If `begun` is True, a container that has ended counts as one that runs, unless it could not start.
    """
    status: Json = pod.get("status") or {}
    kept = {key: status[key] for key in ("phase", "reason", "message", "conditions") if key in status}
    known = {each["name"]: each for kind in _CONTAINERS for each in pod["spec"].get(kind) or ()}
    containers = [known.get(name) or {"name": name} for name in names]  # one that is missing is never ready
    states = [
        {**each, "ready": True, "state": {"running": {}}} if _runs(each, begun=begun) else {**each, "ready": False}
        for kind in _STATUSES
        for each in status.get(kind) or ()
        if each["name"] in names
    ]
    return {
        "metadata": pod["metadata"],
        "spec": {"containers": containers},
        "status": {**kept, "containerStatuses": states},
    }


def container_end(pod: Json, name: str) -> Json | None:
    """Return the `terminated` state of a container, or None if it has not ended."""
    status: Json = pod.get("status") or {}
    for container in (each for kind in _STATUSES for each in status.get(kind) or ()):
        if container["name"] == name:
            return _state(container, "terminated") or _state(container, "terminated", of="lastState") or None
    return None


def disruption(pod: Json) -> str | None:
    """Return one line if Kubernetes is ending the Pod or the Pod has ended, even if no container has ended.

    For example, Kubernetes ends a Pod in a drain, or after its node was tainted or removed.
    """
    status: Json = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            said = one_line(str(condition.get("message") or ""), longest=_LONGEST_REASON)
            detail = ": ".join(filter(None, (condition.get("reason"), said)))
            return f"Pod {pod['metadata']['name']} is ended by Kubernetes ({detail})"
    if status.get("phase") in {"Failed", "Succeeded"}:
        return f"Pod {pod['metadata']['name']} has ended ({status['phase']})"
    return None


def ended_pod(pod: Json) -> str | None:
    """Return one line if the status of the Pod has a reason why it ended, for example `Evicted`."""
    status: Json = pod.get("status") or {}
    if not status.get("reason"):
        return None
    said = one_line(str(status.get("message") or ""), longest=_LONGEST_REASON)
    detail = ": ".join(filter(None, (status["reason"], said)))
    return f"Pod {pod['metadata']['name']} ended ({detail}){_set_by(pod)}"


def _set_by(pod: Json) -> str:
    """Return which object set the limit of disk space that a Pod has exceeded, if it was a LimitRange.

    The admission plugin LimitRanger writes into an annotation which fields it has set, but not the name of the object.
    """
    status, metadata = pod["status"], pod["metadata"]
    said = (metadata.get("annotations") or {}).get("kubernetes.io/limit-ranger") or ""
    if status.get("reason") != "Evicted" or not _DEFAULT_DISK_LIMIT.search(said):
        return ""
    namespace = metadata.get("namespace") or "NAMESPACE"
    return (
        "; a LimitRange of the namespace set this limit: raise its default of ephemeral-storage "
        f"(kubectl get limitrange --namespace {namespace}), or set resources.ephemeralStorageLimit of the pool"
    )


def memory_limit(pod: Json, name: str) -> str | None:
    """Return the memory limit of a container as it is written in the Pod."""
    for container in pod["spec"].get("containers") or ():
        if container["name"] == name:
            limits = (container.get("resources") or {}).get("limits") or {}
            return limits.get("memory")
    return None


def signal_of(code: int) -> int | None:
    """Return the signal that an exit code of a shell stands for, or None if it stands for no signal."""
    return code - _SIGNALS if _SIGNALS < code <= _SIGNALS + 64 else None


def _waiting(container: Json, images: Mapping[str, str]) -> Seen | None:
    waiting = _state(container, "waiting")
    reason = waiting.get("reason") or ""
    name = container["name"]
    said = one_line(str(waiting.get("message") or ""), longest=_LONGEST_REASON)
    detail = f"{reason}: {said}" if said else reason
    image = images.get(name) or container.get("image") or "?"
    if reason in _NEVER_PULLED:
        return Seen(failed=f"image {image} of container {name} cannot be pulled ({detail}); check its name")
    if reason in _PULL_ERRORS:
        line = f"image {image} of container {name} cannot be pulled ({detail}); check its name, tag and credentials"
        return Seen(pull_error=line, waits_for=line)
    if reason in _NEVER_STARTED:
        return Seen(failed=f"container {name} of image {image} cannot start ({detail}); check its image and options")
    return None


def _unscheduled(status: Json) -> str | None:
    found: Iterator[Json] = (each for each in status.get("conditions") or () if each.get("type") == "PodScheduled")
    condition = next(found, {})
    if condition.get("status") != "False":
        return None
    said = one_line(str(condition.get("message") or condition.get("reason") or ""), longest=_LONGEST_REASON)
    return f"no node can run the Pod ({said})"


def _runs(container: Json, *, begun: bool) -> bool:
    ended = _state(container, "terminated")
    return _is_running(container) or bool(begun and ended and ended.get("reason") not in _START_FAILED)


def _is_running(container: Json) -> bool:
    return (container.get("state") or {}).get("running") is not None


def _state(container: Json, kind: str, *, of: str = "state") -> Json:
    found: Json = (container.get(of) or {}).get(kind) or {}
    return found
