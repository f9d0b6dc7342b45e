"""Create the objects of a runner idempotently: the same call may be repeated after any failure.

If the reply to a create was lost, the API server answers a repeated create with 409. The existing object is then read.
If this object has the same pool, attempt and spec digest, and is not terminating, the create has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k8s_adapters.calls.client import METADATA_ONLY, Json, KubeClient, object_path
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.names import ATTEMPT_ANNOTATION, DIGEST_ANNOTATION, POOL_LABEL, SERVICE_ACCOUNT_ANNOTATION
from ostler.errors import Conflict, Forbidden, Gone, Retryable
from rules.upstream.retry import RetryPolicy

_ROUNDS = 4  # attempts to create an object whose name is taken at one call and free at the next
_CHECK_EVERY = 0.1  # seconds between two reads of a terminating object
_OWNED_BY_ACCOUNT = ("Role", "RoleBinding")  # kinds that the garbage collector deletes after the ServiceAccount
_CACHE_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds; the caches of the admission plugins lag behind
_UNKNOWN_ACCOUNT = ("error looking up service account",)
_UNKNOWN_POOL = ("is above the size of a hook Pod in pool", "has no container jobs: set spec.containers")
"""Parts of the texts of refusals by the chart's policy for Roles.

The API server might still evaluate this policy with an older version of the pool.
"""


@dataclass(frozen=True, kw_only=True)
class Created:
    """The object that has the name now. `ours_before` is True if an earlier call created the object."""

    name: str
    uid: str
    ours_before: bool = False


def create_service_account(
    client: KubeClient, *, body: Json, policy: RetryPolicy | None = None, terminating_within: float = 5.0
) -> Created:
    """Create a ServiceAccount from its JSON, which contains the namespace.

    If a terminating object has the name, wait up to `terminating_within` seconds until this object is gone. Raises
    `Conflict` if the object is still terminating after this time, or if another attempt or another client created the
    object. Raises `Retryable` if the state of the object cannot be found out, and the other errors of
    `KubeClient.request`.
    """
    return _create(client, "serviceaccounts", body, policy, terminating_within)


def create_role(
    client: KubeClient, *, body: Json, policy: RetryPolicy | None = None, terminating_within: float = 5.0
) -> Created:
    """Create a Role from its JSON, with the same errors as `create_service_account`.

    A Role whose ServiceAccount has another UID is not accepted, because the garbage collector is about to delete it.
    For a moment after a change of the pool, the API server might compare the size in the Role with the pool before the
    change. The creation is therefore retried for about 1.5 seconds. Raises `Forbidden` if the last try fails as well,
    if this client has no right to create Roles, or if an admission policy refuses the Role for another reason.
    """
    return _create_late(client, "roles", body, policy, terminating_within, late=_UNKNOWN_POOL)


def create_role_binding(
    client: KubeClient, *, body: Json, policy: RetryPolicy | None = None, terminating_within: float = 5.0
) -> Created:
    """Create a RoleBinding from its JSON, with the same errors as `create_role`."""
    return _create(client, "rolebindings", body, policy, terminating_within)


def create_pod(
    client: KubeClient, *, body: Json, policy: RetryPolicy | None = None, terminating_within: float = 5.0
) -> Created:
    """Create a Pod from its JSON, with the same errors as `create_service_account`.

    For a moment after the creation of the Pod's ServiceAccount, the API server might not know the ServiceAccount and
    answer 403. The creation of the Pod is therefore retried for about 1.5 seconds. Raises `Forbidden` if the last try
    fails as well.
    """
    return _create_late(client, "pods", body, policy, terminating_within, late=_UNKNOWN_ACCOUNT)


def create_stateful_set(
    client: KubeClient, *, body: Json, policy: RetryPolicy | None = None, terminating_within: float = 5.0
) -> Created:
    """Create a StatefulSet from its JSON, with the same errors as `create_service_account`."""
    return _create(client, "statefulsets", body, policy, terminating_within)


def _create_late(
    client: KubeClient,
    kind: str,
    body: Json,
    policy: RetryPolicy | None,
    terminating_within: float,
    *,
    late: tuple[str, ...],
) -> Created:
    """Create an object. Retry while the API server refuses it with one of the texts in `late`."""
    for wait in _CACHE_WAITS:
        try:
            return _create(client, kind, body, policy, terminating_within)
        except Forbidden as error:
            answer = answer_of(error)
            if answer is None or not any(text in answer.message for text in late):
                raise
        client.timing.sleep(wait)
    return _create(client, kind, body, policy, terminating_within)


def _create(
    client: KubeClient, kind: str, body: Json, policy: RetryPolicy | None, terminating_within: float
) -> Created:
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    group = _group_of(body)
    path = object_path(kind, namespace=namespace, name=name, group=group)
    lost: Conflict | Retryable | None = None
    for _ in range(_ROUNDS):
        try:
            return _record(
                client.request("POST", object_path(kind, namespace=namespace, group=group), body=body, policy=policy),
                before=False,
            )
        except (Conflict, Retryable) as error:
            lost = error
        found = _read(client, path, policy)
        if found is None:
            if isinstance(lost, Retryable):  # the create was not applied, and all attempts are used up
                raise lost
            continue  # the object disappeared between the two calls
        if "deletionTimestamp" in found["metadata"]:
            _wait_until_gone(client, path, policy, uid=found["metadata"]["uid"], within=terminating_within)
            continue
        if _ours(found, body):
            return _record(found, before=True)
        raise Conflict(f"{kind} {namespace}/{name} exists, and this attempt did not create it") from lost
    raise Retryable(f"{kind} {namespace}/{name} was created and deleted {_ROUNDS} times during this call") from lost


def _read(client: KubeClient, path: str, policy: RetryPolicy | None) -> Json | None:
    try:
        return client.request("GET", path, accept=METADATA_ONLY, policy=policy)
    except Gone:
        return None


def _wait_until_gone(client: KubeClient, path: str, policy: RetryPolicy | None, *, uid: str, within: float) -> None:
    """Wait until no object with this UID has the name.

    Raises `Conflict` if the object still exists after `within` seconds.
    """

    def gone() -> bool:
        found = _read(client, path, policy)
        return found is None or found["metadata"]["uid"] != uid

    if not becomes_true(client, gone, within):
        raise Conflict(f"{path} is still terminating after {within:.0f} s")


def becomes_true(
    client: KubeClient, condition: Callable[[], bool], within: float, *, every: float = _CHECK_EVERY
) -> bool:
    """Check a condition every `every` seconds. Return False if it is not true after `within` seconds."""
    deadline = client.timing.clock() + within
    while not condition():
        if client.timing.clock() >= deadline:
            return False
        client.timing.sleep(every)
    return True


def _ours(found: Json, wanted: Json) -> bool:
    """Return whether an earlier call with the same attempt created the object that was found."""
    there, ours = found["metadata"], wanted["metadata"]
    labels, annotations = there.get("labels") or {}, there.get("annotations") or {}
    known = [ATTEMPT_ANNOTATION, DIGEST_ANNOTATION]
    if wanted["kind"] in _OWNED_BY_ACCOUNT:
        known.append(SERVICE_ACCOUNT_ANNOTATION)
    return labels.get(POOL_LABEL) == ours["labels"][POOL_LABEL] and all(
        annotations.get(key) == ours["annotations"][key] for key in known
    )


def _group_of(body: Json) -> str:
    """Return the API group of an object's JSON, which is empty for a core object."""
    return str(body["apiVersion"]).rpartition("/")[0]


def _record(item: Json, *, before: bool) -> Created:
    return Created(name=item["metadata"]["name"], uid=item["metadata"]["uid"], ours_before=before)
