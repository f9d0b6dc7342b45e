"""Bodies of hook Pods, at the Pod Security level `restricted`.

A job has one Pod: the container `job` and one container per service. A container step has a Pod of its own. The
folders `/__w`, `/__e` and `/github` are empty at the start, and files are copied into them. No Pod has a token of the
Kubernetes API, a volume of its node or a namespace of its node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from container_hooks.containers import KEEP_ALIVE, Plan, is_host
from container_hooks.copies import JOB
from container_hooks.options import Health
from container_hooks.resources import Share, apart
from container_hooks.scripts import EXTERNALS, GITHUB, WORK
from k8s_adapters.calls.client import Json
from rules.pools.pod_template import outlive_lost_nodes

USER = 1001
"""User and group of a container without `--user`. It is the user `runner` of the runner image."""

FILES_IN, FILES = "ostler-files-in", "ostler-files"
"""Containers through which files are copied, before and after the program of an image runs."""

BEGIN = f"{GITHUB}/.ostler-begin"
"""File that lets the program of an image begin."""

_UNTIL = 'until [ -e "$0" ]; do sleep 0.2; done'
_VOLUMES = {"work": WORK, "externals": EXTERNALS, "github": GITHUB}
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]{0,180}")
_PUBLIC = frozenset({"CI", "GITHUB_ACTIONS"})
_DISK = "ephemeral-storage"
_GRACE = 1  # seconds; more is useless, because `tail` ignores SIGTERM and no file of a deleted hook Pod is used again


def secret_values(plans: Sequence[Plan]) -> dict[str, str]:
    """Return the environment of all containers as the data of one Secret. The environment often contains passwords."""
    return {
        _key(plan, name): value
        for plan in plans
        for name, value in plan.environment.items()
        if _VARIABLE.fullmatch(name) and name not in _PUBLIC
    }


def unusable_variables(plan: Plan) -> list[str]:
    """Return the names of variables that a container of a Pod cannot have."""
    return sorted(name for name in plan.environment if not _VARIABLE.fullmatch(name))


def job_pod(
    plans: Sequence[Plan],
    *,
    shares: Mapping[str, Share],
    env_secret: str | None,
    pull_secrets: Sequence[str],
    disk_mib: int | None = None,
) -> Json:
    """Return the body of the Pod of a job, without its name and owner.

    `env_secret` is the name of the Secret with `secret_values`. `pull_secrets` are the names of Secrets with registry
    credentials. `disk_mib` limits the disk space of the whole Pod.
    """
    job = next(each for each in plans if each.name == JOB)
    spec = _spec(job)
    spec["containers"] = [_container(plan, shares[plan.name], env_secret) for plan in plans]
    _limit_disk(spec, disk_mib)
    _add_volumes(spec, plans)
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    hosts = [each.context for each in plans if each.context is not None and is_host(each.context)]
    if hosts:
        # Docker resolves the key of a service to its container. All containers of this Pod share `localhost`.
        spec["hostAliases"] = [{"ip": "127.0.0.1", "hostnames": hosts}]
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def step_pod(plan: Plan, *, share: Share, pull_secrets: Sequence[str], disk_mib: int | None = None) -> Json:
    """Return the body of the Pod of a container step, without its name and owner."""
    spec = _spec(plan)
    spec["containers"] = [_container(plan, share, None)]
    _limit_disk(spec, disk_mib)
    _add_volumes(spec, [plan])
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def program_pod(
    plan: Plan,
    *,
    copier: str,
    folder: str,
    share: Share,
    env_secret: str | None,
    pull_secrets: Sequence[str],
    disk_mib: int | None = None,
) -> Json:
    """Return the body of the Pod of a step that runs the program of its image, without its name and owner.

    The program begins in `folder` when the file `BEGIN` exists. Beside it, a container of the image `copier` waits, so
    that files can be copied after the program has ended.
    """
    of_program, of_copier = apart(share)
    waits = replace(plan, image=copier, environment={}, ports=[], scratch=(), command=("sh",))
    before = replace(waits, name=FILES_IN, args=("-c", _UNTIL, BEGIN))
    beside = replace(waits, name=FILES, command=KEEP_ALIVE[:1], args=KEEP_ALIVE[1:])
    program = _container(plan, of_program, env_secret)
    program["workingDir"] = folder
    # Its log is the output of the step. The status of the Pod, which more people may read, must not repeat it.
    program["terminationMessagePolicy"] = "File"
    spec = _spec(plan)
    spec["initContainers"] = [_container(before, share, None)]
    spec["containers"] = [program, _container(beside, of_copier, None)]
    _limit_disk(spec, disk_mib)
    _add_volumes(spec, [plan])
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def with_user_of_program(pod: Json) -> Json:
    """Return the Pod of `program_pod` whose containers all have the user that an overlay gives to the program."""
    spec: Json = pod["spec"]
    security = next(each for each in spec["containers"] if each["name"] == JOB)["securityContext"]
    for kind in ("initContainers", "containers"):
        spec[kind] = [
            {**each, "securityContext": security} if each["name"] in {FILES_IN, FILES} else each for each in spec[kind]
        ]
    return pod


def _limit_disk(spec: Json, disk_mib: int | None) -> None:
    """Limit the disk space of a Pod: files of all containers, their logs, and all volumes.

    The kubelet evicts a Pod that uses more than the sum of the limits of its containers, so one limit suffices. The
    request is 0. Without a request, Kubernetes would use the limit, and the Pod would need a node with that much free
    space.
    """
    if disk_mib is None:
        return
    resources = next(each for each in spec["containers"] if each["name"] == JOB)["resources"]
    resources["requests"][_DISK], resources["limits"][_DISK] = "0", f"{disk_mib}Mi"


def restricted(container: Json) -> Json:
    """Return the container with the security context that the Pod Security level `restricted` demands."""
    own = container.get("securityContext") or {}
    security = {**own, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {**container, "securityContext": security}


def _spec(job: Plan) -> Json:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": job.options.group or USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": outlive_lost_nodes(()),
    }


def _container(plan: Plan, share: Share, env_secret: str | None) -> Json:
    resources = {"cpu": f"{share.millicores}m", "memory": f"{share.memory_mib}Mi"}
    container = bare_container(plan, env_secret, _VOLUMES)
    container["resources"] = {"requests": resources, "limits": dict(resources)}
    if plan.ports:
        container["ports"] = plan.ports
    if plan.options.health is not None:
        container["readinessProbe"] = probe(plan.options.health)
    return container


def bare_container(plan: Plan, env_secret: str | None, volumes: Mapping[str, str]) -> Json:
    """Return a container without resources, ports and probe. `volumes` has the path of each volume.

    A service mounts no volumes.
    """
    container: Json = {
        "name": plan.name,
        "image": plan.image,
        "env": _environment(plan, env_secret),
        # The status then has the last output of a service that ended. The log of the job shows this output, because the
        # Pod is deleted.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [] if plan.is_service else [{"name": n, "mountPath": p} for n, p in volumes.items()],
    }
    if not plan.is_service:
        # The workspace does not exist yet. The container runtime would create it with root as its owner.
        container["workingDir"] = WORK
    if plan.command:
        container["command"] = [literal(each) for each in plan.command]
    if plan.args:
        container["args"] = [literal(each) for each in plan.args]
    if plan.options.user is not None:
        user, group = plan.options.user, plan.options.group
        container["securityContext"] = {"runAsUser": user, **({} if group is None else {"runAsGroup": group})}
    return restricted(container)


def probe(health: Health) -> Json:
    """Return the readiness probe of a health command.

    The command is one word of JSON, and a shell in the tenant's own container executes it. No shell of Ostler or of the
    node parses it. The first check happens at once, and not after one interval as with Docker. A job therefore starts
    earlier.
    """
    return {
        "exec": {"command": ["sh", "-c", literal(health.command)]},
        "periodSeconds": max(math.ceil(health.interval), 1),
        "timeoutSeconds": max(math.ceil(health.timeout), 1),
        "failureThreshold": health.retries,
        "successThreshold": 1,
    }


def literal(text: str) -> str:
    """Return a word of a command, or the value of a variable, that Kubernetes passes on unchanged, as Docker does.

    Kubernetes replaces `$(NAME)` by the value of a variable, and `$$` by `$`.
    """
    return text.replace("$", "$$")


def _environment(plan: Plan, env_secret: str | None) -> list[Json]:
    found: list[Json] = []
    for name, value in plan.environment.items():
        if not _VARIABLE.fullmatch(name):
            continue
        if name in _PUBLIC or env_secret is None:
            found.append({"name": name, "value": literal(value)})
        else:
            source = {"secretKeyRef": {"name": env_secret, "key": _key(plan, name)}}
            found.append({"name": name, "valueFrom": source})
    return found


def _key(plan: Plan, name: str) -> str:
    return f"{plan.name}.{name}"


def _add_volumes(spec: Json, plans: Sequence[Plan]) -> None:
    spec["volumes"] = [{"name": name, "emptyDir": {}} for name in _VOLUMES]
    places = [(plan, path) for plan in plans for path in plan.scratch]
    for number, (plan, path) in enumerate(places):
        name = f"scratch-{number}"
        spec["volumes"].append({"name": name, "emptyDir": {}})
        container: Json = next(each for each in spec["containers"] if each["name"] == plan.name)
        container["volumeMounts"].append({"name": name, "mountPath": path})
