"""Create and delete hook Pods and Secrets idempotently: each call can be repeated after any failure.

If the reply to a create was lost, the API server answers a repeated create with 409. This module then reads the
existing object. The object is accepted only if it belongs to this runner Pod, has the same digest and is not
terminating. Each digest contains a random part, so an object that an earlier command created is never accepted.

A delete names the UID of the object. Another object with the same name is therefore never deleted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from container_hooks.failures import HookFailed
from container_hooks.inputs import Registry
from container_hooks.ports import World
from k8s_adapters.calls.client import METADATA_ONLY, Json, object_path
from k8s_adapters.hooks.hook_rights import hook_metadata
from k8s_adapters.names import DIGEST_ANNOTATION
from ostler.errors import Conflict, Gone, Retryable
from rules.pools.hook_names import SECRETS, STEPS, hook_size, login_secret, secret, step_pod, workflow_pod

_ROUNDS = 4  # attempts to create an object whose name is taken at one call and free at the next
_CHECK_EVERY = 0.25  # seconds between two reads of a terminating object
_LOGINS = "kubernetes.io/dockerconfigjson"
_DOCKER_HUB = "https://index.docker.io/v1/"


class Taken(Conflict):
    """Another object has the name.

    `uid` is the UID of that object if it belongs to this runner Pod and is not terminating, and None otherwise.
    """

    def __init__(self, message: str, *, uid: str | None = None, terminating: bool = False) -> None:
        super().__init__(message)
        self.uid = uid
        self.terminating = terminating


@dataclass(frozen=True, slots=True)
class Made:
    """A created object."""

    kind: str
    name: str
    uid: str


def digest_of(body: Json, nonce: str) -> str:
    """Return 32 hex digits that identify an object without its metadata. `nonce` is random for each command."""
    content = {key: value for key, value in body.items() if key != "metadata"}
    return hashlib.sha256(nonce.encode() + orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def create_job_pod(world: World, body: Json, *, nonce: str) -> Made:
    """Create the Pod of the job. A Pod that an earlier command of this runner Pod left is deleted first.

    Raises `Conflict` if another owner's object has the name, or if the older Pod is still terminating after the time
    limit. Raises the errors of `KubeClient.request`.
    """
    named = _named(world, body, workflow_pod(world.pod), nonce)
    try:
        return create_pod(world, named)
    except Taken as taken:
        if taken.uid is None:
            raise
        delete(world, Made("pods", workflow_pod(world.pod), taken.uid))
        return create_pod(world, named)


def create_step_pod(world: World, body: Json, *, nonce: str) -> Made:
    """Create the Pod of a step, with the first free name. Raises `HookFailed` if all names are in use.

    Pods of steps that earlier commands of this runner Pod left are deleted, because the budget of the account counts
    only one step at a time. The function does not wait until their names are free.
    """
    for n in range(STEPS):
        name = step_pod(world.pod, n)
        try:
            return create_pod(world, _named(world, body, name, nonce), waits=False)
        except Taken as taken:
            if taken.uid is not None:
                delete(world, Made("pods", name, taken.uid))
    raise HookFailed(f"all {STEPS} names of container steps are in use; run fewer container steps at once")


def create_docker_secret(world: World, registry: Registry, *, nonce: str) -> Made:
    """Create the Secret with the credentials of an image registry, with the first free name.

    Raises `HookFailed` if all names are in use.
    """
    return _create_secret(world, _LOGINS, {".dockerconfigjson": _docker_config([registry])}, nonce)


def create_login_secret(world: World, registries: Sequence[Registry], *, nonce: str) -> Made:
    """Create the Secret with all logins of a job whose containers run in the runner Pod, which names this Secret.

    A Secret that an earlier command left is replaced.
    """
    name = login_secret(world.pod)
    body = _named(world, _secret(_LOGINS, {".dockerconfigjson": _docker_config(registries)}), name, nonce)
    try:
        return create_secret(world, body)
    except Taken as taken:
        if taken.uid is None:
            raise
        delete(world, Made("secrets", name, taken.uid))
        return create_secret(world, body)


def create_env_secret(world: World, values: Mapping[str, str], *, nonce: str) -> Made:
    """Create the Secret with the environment of containers, with the first free name.

    Raises `HookFailed` if all names are in use.
    """
    return _create_secret(world, "Opaque", {key: value.encode() for key, value in values.items()}, nonce)


def _create_secret(world: World, kind: str, values: Mapping[str, bytes], nonce: str) -> Made:
    body = _secret(kind, values)
    for n in range(SECRETS):
        name = secret(world.pod, n)
        if name in world.ledger.secrets:
            continue
        try:
            return create_secret(world, _named(world, body, name, nonce))
        except Taken:
            world.ledger.taken.add(name)
    raise HookFailed(f"all {SECRETS} names of Secrets are in use; use fewer registry credentials in one job")


def _secret(kind: str, values: Mapping[str, bytes]) -> Json:
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "immutable": True, "data": data}


def _docker_config(registries: Sequence[Registry]) -> bytes:
    """Return the content of a file `.dockerconfigjson`. Of two logins for one server, the first one counts."""
    logins: Json = {}
    for registry in registries:
        user, password = registry.username or "", registry.password or ""
        auth = base64.b64encode(f"{user}:{password}".encode()).decode()
        entry = {"username": user, "password": password, "auth": auth}
        logins.setdefault(registry.server_url or _DOCKER_HUB, entry)
    return orjson.dumps({"auths": logins})


def create_pod(world: World, body: Json, *, waits: bool = True) -> Made:
    """Create a Pod. If a terminating Pod has its name, wait until it is gone, or raise `Taken` if `waits` is False."""
    world.ledger.pods.add(body["metadata"]["name"])
    return _create(world, "pods", body, waits=waits)


def create_secret(world: World, body: Json) -> Made:
    """Create a Secret. An existing Secret is accepted only if its data is equal too."""
    world.ledger.secrets.add(body["metadata"]["name"])
    return _create(world, "secrets", body, waits=False)


def _create(world: World, kind: str, body: Json, *, waits: bool) -> Made:
    name = body["metadata"]["name"]
    path = object_path(kind, namespace=world.namespace)
    lost: Conflict | Retryable | None = None
    for _ in range(_ROUNDS):
        try:
            return Made(kind, name, world.client.request("POST", path, body=body)["metadata"]["uid"])
        except (Conflict, Retryable) as error:
            lost = error
        found = read(world, kind, name, whole=kind == "secrets")
        if found is None:
            if isinstance(lost, Retryable):  # the create was not applied, and all attempts are used up
                raise lost
            world.timing.sleep(_CHECK_EVERY)  # the object disappeared, or the quota changed at the same time
            continue
        uid = found["metadata"]["uid"]
        ours = is_ours(world, found)
        if "deletionTimestamp" in found["metadata"]:
            if not waits:
                raise Taken(f"{kind}/{name} is terminating", terminating=True) from lost
            _wait_until_gone(world, Made(kind, name, uid))
            continue
        if ours and _same(found, body):
            return Made(kind, name, uid)
        whose = "an earlier command; run the job again" if ours else "another owner; ask the operator to delete it"
        raise Taken(f"{kind}/{name} exists and belongs to {whose}", uid=uid if ours else None) from lost
    raise Retryable(f"{kind}/{name} was created and deleted {_ROUNDS} times during this call") from lost


def read(world: World, kind: str, name: str, *, whole: bool = False) -> Json | None:
    """Return an object, or None if there is none. If `whole` is False, return only its metadata."""
    path = object_path(kind, namespace=world.namespace, name=name)
    try:
        return world.client.request("GET", path) if whole else world.client.request("GET", path, accept=METADATA_ONLY)
    except Gone:
        return None


def is_ours(world: World, found: Json) -> bool:
    """Return whether an object belongs to this runner Pod. The UID decides, because names can be used again."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(each.get("kind") == "Pod" and each.get("uid") == world.uid for each in owners)


def delete(world: World, made: Made) -> None:
    """Delete an object. If the object is gone, or another object has its name, no error is raised.

    Raises the errors of `KubeClient.request`, and `Conflict` if the API server refuses although the UID is correct.
    """
    path = object_path(made.kind, namespace=world.namespace, name=made.name)
    body: Json = {"preconditions": {"uid": made.uid}, "propagationPolicy": "Background"}
    try:
        world.client.request("DELETE", path, body=body)
    except Gone:
        return
    except Conflict:
        living = read(world, made.kind, made.name)
        if living is not None and living["metadata"]["uid"] == made.uid:
            raise


def delete_named(world: World, kind: str, name: str) -> bool:
    """Delete the object with this name if it belongs to this runner Pod. Return whether there was such an object."""
    found = read(world, kind, name)
    if found is None or not is_ours(world, found):
        return False
    if "deletionTimestamp" not in found["metadata"]:
        delete(world, Made(kind, name, found["metadata"]["uid"]))
    return True


def _wait_until_gone(world: World, made: Made) -> None:
    """Wait until no object with this UID has the name. Raises `Taken` if it still exists after the time limit."""
    limit = world.settings.terminating_within
    deadline = world.timing.clock() + limit
    while True:
        found = read(world, made.kind, made.name)
        if found is None or found["metadata"]["uid"] != made.uid:
            return
        if world.timing.clock() >= deadline:
            raise Taken(
                f"{made.kind}/{made.name} is still terminating after {limit:.0f} s; run the job again", terminating=True
            )
        world.timing.sleep(_CHECK_EVERY)


def _same(found: Json, wanted: Json) -> bool:
    """Return whether an earlier attempt of the same call created the object. The data of Secrets is compared too."""
    there = (found["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION)
    return (
        there == wanted["metadata"]["annotations"][DIGEST_ANNOTATION]
        and found.get("type") == wanted.get("type")
        and _data_digest(found) == _data_digest(wanted)
    )


def _data_digest(body: Json) -> str:
    return hashlib.sha256(orjson.dumps(body.get("data") or {}, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _named(world: World, body: Json, name: str, nonce: str) -> Json:
    settings = world.settings
    size = hook_size(millicores=settings.vcpu_millicores, memory_mib=settings.memory_mib)
    metadata = hook_metadata(
        namespace=world.namespace,
        name=name,
        pod=world.pod,
        pod_uid=world.uid,
        pool=world.pool,
        digest=digest_of(body, nonce),
        size=size if body["kind"] == "Pod" else None,
    )
    own = body.get("metadata") or {}
    for kind in ("labels", "annotations"):
        metadata[kind] = {**(own.get(kind) or {}), **metadata[kind]}
    return {**body, "metadata": metadata}
