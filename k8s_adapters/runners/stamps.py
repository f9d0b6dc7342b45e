"""Put the stamp of a claim on a Pod, and remove the stamp from a Pod.

Both operations are a compare-and-swap of the claim annotation, by a JSON patch. The patch tests the Pod's UID and the
old value of the annotation, so a late patch changes nothing. A value is `<claim id>.<n>`, and no value is used twice.
If the Pod has the new value, the patch was applied, even if the answer to the patch was lost.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from k8s_adapters.calls.client import JSON_PATCH, METADATA_ONLY, Json, KubeClient, object_path
from k8s_adapters.calls.retry import answer_of, single
from k8s_adapters.names import CLAIM_ANNOTATION, JOB_ANNOTATIONS, KEEP_NODE, OWNER_LABEL
from k8s_adapters.runners.pods import tests_of
from ostler.errors import Conflict, Gone, Invalid, Retryable
from rules.upstream.retry import RetryPolicy

STAMP_POLICY = RetryPolicy(attempts=3, base=0.1, growth=1.0, jitter=(1.0, 1.0), deadline=2.0, honour_retry_after=False)
_UNPROCESSABLE = 422


class StampOutcome(enum.Enum):
    """Outcome of a stamp or an un-stamp. A Pod that is terminating, or has another UID, counts as gone."""

    DONE = "done"
    MOVED_ON = "moved on"
    POD_GONE = "pod gone"


@dataclass(frozen=True, kw_only=True)
class StampResult:
    """Result of a stamp or an un-stamp: the outcome, and the stamp that the Pod has now.

    `seen` is the claim annotation and `owner` is the owner label. Both are None if the Pod is gone. `seen` is also None
    without the annotation, and `owner` without the label.
    """

    outcome: StampOutcome
    seen: str | None
    owner: int | None


def stamp(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    expected: str,
    value: str,
    owner: int,
    policy: RetryPolicy = STAMP_POLICY,
) -> StampResult:
    """Replace the claim annotation `expected` by `value`, and set the owner label to the account's id.

    The annotations `KEEP_NODE` are added too. Raises `Retryable`, `RateLimited` or `Forbidden` if it cannot be found
    out which stamp the Pod has now. Raises `Invalid` if the API server refuses the patch although the Pod has the
    annotation `expected`.
    """
    operations = [
        *_guarded(uid=uid, expected=expected, value=value),
        _add("labels", OWNER_LABEL, str(owner)),
        *(_add("annotations", key, text) for key, text in KEEP_NODE.items()),
    ]
    return _swap(client, namespace, name, uid, expected, value, operations, policy)


def unstamp(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    expected: str,
    value: str,
    policy: RetryPolicy = STAMP_POLICY,
) -> StampResult:
    """Replace the claim annotation `expected` by `value`. Remove the owner label and the annotations `KEEP_NODE`.

    Raises the same errors as `stamp`.
    """
    operations = [
        *_guarded(uid=uid, expected=expected, value=value),
        *_remove("labels", OWNER_LABEL),
        *(operation for key in KEEP_NODE for operation in _remove("annotations", key)),
    ]
    return _swap(client, namespace, name, uid, expected, value, operations, policy)


def annotate_job(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    stamp: str,
    values: Sequence[str],
    policy: RetryPolicy,
) -> bool:
    """Set the annotations `JOB_ANNOTATIONS` to `values`, in the same order.

    The patch tests the Pod's UID and its claim annotation `stamp`. Returns False if the Pod is gone or terminating, or
    if it has another claim annotation by now. Raises other errors of the API server.
    """
    claim = _pointer("annotations", CLAIM_ANNOTATION)
    operations = [
        *tests_of(uid),
        {"op": "test", "path": claim, "value": stamp},
        *(_add("annotations", key, value) for key, value in zip(JOB_ANNOTATIONS, values, strict=True)),
    ]
    path = object_path("pods", namespace=namespace, name=name)
    try:
        client.request("PATCH", path, body=operations, content_type=JSON_PATCH, accept=METADATA_ONLY, policy=policy)
    except (Gone, Invalid, Conflict):
        return False
    return True


def _swap(
    client: KubeClient,
    namespace: str,
    name: str,
    uid: str,
    expected: str,
    value: str,
    operations: list[Json],
    policy: RetryPolicy,
) -> StampResult:
    path = object_path("pods", namespace=namespace, name=name)
    began = client.timing.clock()
    try:
        answer = client.request(
            "PATCH", path, body=operations, content_type=JSON_PATCH, accept=METADATA_ONLY, policy=policy
        )
    except Gone:
        return _POD_GONE
    except (Invalid, Conflict) as error:
        refused = answer_of(error)
        if isinstance(error, Invalid) and (refused is None or refused.status != _UNPROCESSABLE):
            raise
        left = None if policy.deadline is None else policy.deadline - (client.timing.clock() - began)
        result = _read_back(client, path, uid, value, single(policy, left=left))
        if result.outcome is StampOutcome.MOVED_ON and result.seen == expected:
            if isinstance(error, Conflict):  # other writers prevented the API server from applying the patch
                raise Retryable(
                    f"PATCH {path}: the API server did not apply the patch, because another client wrote the Pod",
                    status=409,
                ) from error
            raise  # the old value was as expected, so the API server refused another part of the patch
        return result
    return _result(answer, uid, value)


def _read_back(client: KubeClient, path: str, uid: str, value: str, policy: RetryPolicy) -> StampResult:
    """Read the Pod once. Return the result that follows from the present state of the Pod."""
    try:
        return _result(client.request("GET", path, accept=METADATA_ONLY, policy=policy), uid, value)
    except Gone:
        return _POD_GONE


def _result(pod: Json, uid: str, value: str) -> StampResult:
    metadata: Json = pod["metadata"]
    if metadata["uid"] != uid or "deletionTimestamp" in metadata:
        return _POD_GONE
    seen = (metadata.get("annotations") or {}).get(CLAIM_ANNOTATION)
    label = str((metadata.get("labels") or {}).get(OWNER_LABEL, ""))
    return StampResult(
        outcome=StampOutcome.DONE if seen == value else StampOutcome.MOVED_ON,
        seen=seen,
        owner=int(label) if label.isdecimal() else None,
    )


_POD_GONE = StampResult(outcome=StampOutcome.POD_GONE, seen=None, owner=None)


def _guarded(*, uid: str, expected: str, value: str) -> list[Json]:
    claim = _pointer("annotations", CLAIM_ANNOTATION)
    return [
        *tests_of(uid),
        {"op": "test", "path": claim, "value": expected},
        {"op": "replace", "path": claim, "value": value},
    ]


def _add(kind: str, key: str, text: str) -> Json:
    return {"op": "add", "path": _pointer(kind, key), "value": text}


def _remove(kind: str, key: str) -> list[Json]:
    """Return operations of a JSON patch that remove a key.

    They first add the key, because the whole patch would fail if the key to remove is missing.
    """
    return [_add(kind, key, ""), {"op": "remove", "path": _pointer(kind, key)}]


def _pointer(kind: str, key: str) -> str:
    return f"/metadata/{kind}/{key.replace('~', '~0').replace('/', '~1')}"
