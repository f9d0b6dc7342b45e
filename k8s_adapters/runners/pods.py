"""Runner Pods of the cluster, parsed from JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from k8s_adapters.calls.client import Json, KubeClient, object_path, part
from k8s_adapters.names import (
    ATTEMPT_ANNOTATION,
    CLAIM_ANNOTATION,
    DIGEST_ANNOTATION,
    EXIT_FINALIZER,
    GROUP,
    JOB_ANNOTATIONS,
    KIND,
    OWNER_LABEL,
    POOL_LABEL,
)
from ostler.errors import Gone, Retryable
from rules.claims.pod_view import PodView
from rules.pools.starts import NO_SANDBOX
from rules.upstream.retry import RetryPolicy

_NO_NODE = frozenset({"Unschedulable", "SchedulerError"})
_MESSAGE = 300
"""Maximum length of a message that is kept."""
_PAGE = 500
_ENDED = "status.phase!=Pending,status.phase!=Running"
_BOUND_TO_POD_OR_NODE = frozenset(
    {
        "emptyDir",
        "configMap",
        "secret",
        "projected",
        "downwardAPI",
        "hostPath",
        "gitRepo",
        "image",
    }
)
"""Kinds of volumes that are never attached to another node.

A volume of any other kind might be attached to another node.
"""


def tests_of(uid: str) -> list[Json]:
    """Return the first operations of every JSON patch of a Pod: the patch fails for another Pod, and at its end.

    kube-apiserver removes a Pod after its grace period in two steps. If a patch arrives between them, the server
    removes the Pod for the patch, without its UID. It then also removes a new Pod that has the name by now, although
    the patch tested the UID. The test of the deletion timestamp refuses such a patch. JSON patches count a missing
    member as null.
    """
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/deletionTimestamp", "value": None},
    ]


def get_pod(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> PodView | None:
    """Return one Pod, or None if no Pod has this name."""
    try:
        return read_pod(client.request("GET", object_path("pods", namespace=namespace, name=name), policy=policy))
    except Gone:
        return None


def list_pods(
    client: KubeClient, *, namespace: str, pool: str | None = None, policy: RetryPolicy | None = None
) -> list[PodView]:
    """Return all runner Pods of a namespace. If `pool` is given, return all runner Pods of this pool.

    The list is complete. Raises `Retryable` if a page cannot be read, or if the list expires between two pages.
    """
    return list_pods_at(client, namespace=namespace, pool=pool, policy=policy)[0]


def list_ended_pods(
    client: KubeClient, *, namespace: str, pool: str, policy: RetryPolicy | None = None
) -> list[PodView]:
    """Return the runner Pods of a pool whose phase is neither `Pending` nor `Running`.

    The API server selects these Pods, so their number determines the length of the answer, and not the size of the
    pool. A Pod that is not in the list might exist, and might be over. Raises `Retryable` as `list_pods` does.
    """
    pages = raw_pages(client, namespace=namespace, selector=_selector(pool), fields=_ENDED, policy=policy)
    return [read_pod(item) for page in pages for item in page["items"] or ()]


def list_pods_at(
    client: KubeClient, *, namespace: str, pool: str | None = None, policy: RetryPolicy | None = None
) -> tuple[list[PodView], str]:
    """Return the result of `list_pods`, and the resource version of the list.

    A watch can continue from this version.
    """
    pods: list[PodView] = []
    version = ""
    for page in raw_pages(client, namespace=namespace, selector=_selector(pool), policy=policy):
        pods.extend(read_pod(item) for item in page["items"] or ())
        version = str(part(page, "metadata").get("resourceVersion") or "")
    return pods, version


def pod_pages(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> Iterator[list[PodView]]:
    """Yield all runner Pods of a namespace, page by page.

    The caller must read all pages before it concludes that a Pod is missing. Raises `Retryable` if a page cannot be
    read, or if the list expires between two pages.
    """
    for page in raw_pages(client, namespace=namespace, selector=_selector(None), policy=policy):
        yield [read_pod(item) for item in page["items"] or ()]


def _selector(pool: str | None) -> str:
    return POOL_LABEL if pool is None else f"{POOL_LABEL}={pool}"


def raw_pages(
    client: KubeClient, *, namespace: str, selector: str, fields: str = "", policy: RetryPolicy | None
) -> Iterator[Json]:
    """Yield the pages of a list of Pods as JSON. Each page has a list `items`. Raises the errors of `pod_pages`."""
    query: dict[str, str | int] = {"limit": _PAGE, "labelSelector": selector}
    if fields:
        query["fieldSelector"] = fields
    while True:
        page = client.request("GET", object_path("pods", namespace=namespace), query=query, policy=policy)
        if "items" not in page:  # null means an empty list; a missing key means no list
            raise Retryable(f"the answer to a list of Pods in {namespace} has no field `items`")
        yield page
        following = part(page, "metadata").get("continue")
        if not following:
            return
        query = {**query, "continue": following}


def read_pod(item: Json) -> PodView:
    """Return a Pod from its JSON."""
    metadata: Json = item["metadata"]
    spec, status = part(item, "spec"), part(item, "status")
    labels, annotations = part(metadata, "labels"), part(metadata, "annotations")
    owners, finalizers = metadata.get("ownerReferences") or (), metadata.get("finalizers") or ()
    containers = {each["name"]: each for each in status.get("containerStatuses") or ()}
    poller, runner = part(containers, "poller"), part(containers, "runner")
    ended, registered = ended_state(runner), ended_state(part(containers, "register"))
    owner = str(labels.get(OWNER_LABEL, ""))
    unschedulable = unschedulable_because(status)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        pool=labels.get(POOL_LABEL),
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or disruption_of(status),
        node=spec.get("nodeName"),
        terminating="deletionTimestamp" in metadata,
        owner=int(owner) if owner.isdecimal() else None,
        stamp=annotations.get(CLAIM_ANNOTATION),
        digest=annotations.get(DIGEST_ANNOTATION),
        attempt=annotations.get(ATTEMPT_ANNOTATION),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        poller_exit_code=ended_state(poller).get("exitCode"),
        runner_ready=bool(runner.get("ready")),
        runner_exit_code=ended.get("exitCode"),
        runner_exit_signal=ended.get("signal"),
        runner_exit_reason=ended.get("reason"),
        unschedulable=unschedulable is not None,
        waiting_reason=_waiting_reason_of(status, poller, runner),
        poller_running="running" in part(poller, "state"),
        attachable_volumes=any(set(each) - {"name"} - _BOUND_TO_POD_OR_NODE for each in spec.get("volumes") or ()),
        company=_company(spec, containers),
        of_a_pool=any(_is_pool(each) for each in owners),
        of_a_set=any(each.get("kind") == "StatefulSet" for each in owners),
        deletion_at=_deletion_at(metadata),
        started_at=_time(status, "startTime"),
        active_deadline=spec.get("activeDeadlineSeconds"),
        exit_held=EXIT_FINALIZER in finalizers,
        ends_by=_time(metadata, "deletionTimestamp"),
        no_node_because=unschedulable or "",
        register_exit_code=registered.get("exitCode"),
        register_ended_at=_time(registered, "finishedAt"),
        gates=_names(each.get("name") for each in spec.get("schedulingGates") or ()),
        held_by=_names(each for each in finalizers if each != EXIT_FINALIZER),
        job=annotations.get(JOB_ANNOTATIONS[0]),
    )


def _time(of: Json, name: str) -> datetime | None:
    return datetime.fromisoformat(of[name]) if of.get(name) else None


def _is_pool(owner: Json) -> bool:
    return owner.get("kind") == KIND and str(owner.get("apiVersion", "")).startswith(f"{GROUP}/")


def _names(names: Iterable[str | None]) -> str:
    return ", ".join(sorted(filter(None, names)))[:_MESSAGE]


def unschedulable_because(status: Json) -> str | None:
    """Return the beginning of the scheduler's message about a Pod without a node, or None if it does not say so.

    The reason is `SchedulerError` if a volume was not bound in time to a node that the scheduler had chosen.
    """
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("reason") in _NO_NODE:
            return str(each.get("message") or "")[:_MESSAGE]
    return None


def _deletion_at(metadata: Json) -> datetime | None:
    """Return the time of the deletion request, or None if there was no request.

    The deletionTimestamp of the API server is a later time: the end of the grace period.
    """
    ends = _time(metadata, "deletionTimestamp")
    return None if ends is None else ends - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def disruption_of(status: Json) -> str | None:
    """Return why Kubernetes ends the Pod, such as `DeletionByTaintManager`, or None."""
    found = (each for each in status.get("conditions") or () if each.get("type") == "DisruptionTarget")
    return next((each.get("reason") for each in found if each.get("status") == "True"), None)


def _company(spec: Json, containers: Mapping[str, Json]) -> bool:
    names = {each["name"] for each in spec.get("containers") or ()} - {"poller", "runner"}
    return any(not ended_state(containers.get(name) or {}) for name in names)


def ended_state(container: Json) -> Json:
    """Return the state `terminated` of a container, or an empty mapping if the container has not ended."""
    return part(part(container, "state"), "terminated")


def _waiting_reason_of(status: Json, *containers: Json) -> str | None:
    """Return the reason why containers of the Pod do not start, or None if there is no such reason.

    If an init container waits, return the reason of this init container. All other containers then have only the reason
    `PodInitializing`. If the Pod has no sandbox, return `NO_SANDBOX`, because the kubelet then gives no reason of a
    container.
    """
    if any(
        (each.get("type"), each.get("status")) == ("PodReadyToStartContainers", "False")
        for each in status.get("conditions") or ()
    ):
        return NO_SANDBOX
    before = (_waiting_reason(each) for each in status.get("initContainerStatuses") or ())
    stuck = next((reason for reason in before if reason not in {None, "PodInitializing"}), None)
    return stuck or next(filter(None, map(_waiting_reason, containers)), None)


def _waiting_reason(container: Json) -> str | None:
    return part(part(container, "state"), "waiting").get("reason")
