"""The workload `StatefulSet`: a runner is a StatefulSet with one replica, so its Pod can have volumes of its own.

The API server accepts only the restart policy `Always` in the template of a StatefulSet. Each container therefore has
its own restart policy `Never`, which Kubernetes supports since 1.35. Such a Pod ends as any other runner Pod does.

The controller replaces a Pod that has ended. Two things prevent this. The Pod has the finalizer `ostler.dev/exit`, so
it stays until Ostler has recorded its exit. And Ostler deletes the StatefulSet with the propagation policy `Orphan`
before it removes the finalizer: the Pod then belongs to nobody, and no successor is created.
"""

from __future__ import annotations

import copy
from weakref import WeakSet

from k8s_adapters.calls import finalizers
from k8s_adapters.calls.client import METADATA_ONLY, Json, KubeClient, object_path
from k8s_adapters.calls.refusals import Refusal, failure_in, refusal_in
from k8s_adapters.calls.writes import note_failure
from k8s_adapters.names import (
    ATTEMPT_ANNOTATION,
    DIGEST_ANNOTATION,
    EXIT_FINALIZER,
    POOL_LABEL,
    POOL_UID_ANNOTATION,
    RUNNER_LABEL,
)
from k8s_adapters.runners.owners.owner import OwnerFound
from k8s_adapters.runners.pod_events import list_events
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.resources import Created, create_stateful_set
from ostler.errors import Conflict, Gone, Retryable, UpstreamError
from rules.pools.pod_template import POLLER, RUNNER
from rules.pools.pool_spec import PoolSpec
from rules.pools.workloads import pod_name_of, stateful_set_of
from rules.upstream.retry import RetryPolicy

APPS = "apps"
KIND = "statefulsets"
_ORPHANING = "orphan"  # finalizer of an object until the garbage collector has taken it off its dependents
_TERMINATING_WITHIN = 0.5  # seconds to wait for the end of an earlier StatefulSet of the same name
_supported: WeakSet[KubeClient] = WeakSet()  # clients whose API server is new enough
_PROBE = "00000000"  # suffix of the name in a dry run
TOO_OLD = (
    "workload StatefulSet needs Kubernetes 1.35 or newer: the API server dropped the restart policy of the containers, "
    "so a finished runner would start again"
)


class Unsupported(UpstreamError):
    """The API server cannot do what the workload needs. The message names the cause and the cure."""


class PodRefused(UpstreamError):
    """The controller cannot create the Pod of a StatefulSet. `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class StatefulSetOwner:
    """Owner of Pods with a StatefulSet each. See `k8s_adapters.runners.owners.owner.Owner`."""

    def create(self, client: KubeClient, *, pool: PoolSpec, pod: Json, policy: RetryPolicy | None) -> Created:
        """Create the StatefulSet. Its controller creates the Pod.

        Raises `Unsupported` if the API server is too old. If an earlier call created the StatefulSet, raises
        `PodRefused` if the API server refuses the Pod to the controller, and `Retryable` if the controller's call
        fails.
        """
        body = build_stateful_set(pool=pool, pod=pod)
        _check_support(client, body, pool=pool.name, policy=policy)
        created = create_stateful_set(client, body=body, policy=policy, terminating_within=_TERMINATING_WITHIN)
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        if created.ours_before:
            _raise_if_refused(client, namespace, name, uid=created.uid, policy=policy)
        return Created(name=pod["metadata"]["name"], uid="", ours_before=created.ours_before)

    def find(
        self, client: KubeClient, *, namespace: str, name: str, attempt: str | None, policy: RetryPolicy | None
    ) -> OwnerFound | None:
        """Return the StatefulSet, or None if it is gone or has another attempt."""
        found = _read(client, namespace, _set_of(name), policy)
        if found is None:
            return None
        metadata = found["metadata"]
        ours = POOL_LABEL in (metadata.get("labels") or {})
        same = attempt is None or (metadata.get("annotations") or {}).get(ATTEMPT_ANNOTATION) == attempt
        ending = "deletionTimestamp" in metadata
        # The controller ignores a StatefulSet that is being deleted, but its cache might be older.
        orphaning = ending and _ORPHANING in (metadata.get("finalizers") or ())
        return OwnerFound(str(metadata["uid"]), ending, orphaning) if ours and same else None

    def end(self, client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None) -> None:
        """Delete the StatefulSet with the propagation policy `Orphan`."""
        path = object_path(KIND, namespace=namespace, name=_set_of(name), group=APPS)
        body: Json = {"preconditions": {"uid": uid}, "propagationPolicy": "Orphan"}
        try:
            client.request("DELETE", path, body=body, policy=policy)
        except (Gone, Conflict):
            return

    def release(self, client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None) -> None:
        """Remove the finalizer `ostler.dev/exit`. Raises what `k8s_adapters.calls.finalizers.remove` raises."""
        path = object_path("pods", namespace=namespace, name=name)
        finalizers.remove(client, path, uid=uid, finalizer=EXIT_FINALIZER, policy=policy)


def build_stateful_set(*, pool: PoolSpec, pod: Json) -> Json:
    """Return the JSON of the StatefulSet whose Pod has the given JSON."""
    metadata = pod["metadata"]
    name = _set_of(metadata["name"])
    spec = copy.deepcopy(pod["spec"])
    spec["restartPolicy"] = "Always"
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        container.setdefault("restartPolicy", "Never")  # a sidecar has its own
    claims = () if pool.volumes is None else pool.volumes.claims
    shape = pool.volume_shape or ""
    mounts = [{"name": claim.name, "mountPath": claim.mount_path} for claim in claims]
    runner: Json = next(each for each in spec["containers"] if each["name"] == RUNNER)
    runner["volumeMounts"] = [*runner.get("volumeMounts", ()), *mounts]
    selected = {POOL_LABEL: pool.name, RUNNER_LABEL: name}
    return {
        "apiVersion": f"{APPS}/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
            "ownerReferences": metadata["ownerReferences"],
        },
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selected},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "template": {
                "metadata": {
                    "labels": {**metadata["labels"], **selected},
                    "annotations": metadata["annotations"],
                    "finalizers": [EXIT_FINALIZER],
                },
                "spec": spec,
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {
                        "name": claim.name,
                        "labels": selected,
                        "annotations": {DIGEST_ANNOTATION: shape, POOL_UID_ANNOTATION: pool.uid},
                    },
                    "spec": {
                        "accessModes": [claim.access_mode],
                        "resources": {"requests": {"storage": f"{claim.storage_mib}Mi"}},
                        **({} if claim.storage_class is None else {"storageClassName": claim.storage_class}),
                    },
                }
                for claim in claims
            ],
        },
    }


def _raise_if_refused(client: KubeClient, namespace: str, name: str, *, uid: str, policy: RetryPolicy | None) -> None:
    """Raise an error if the Pod of a StatefulSet does not exist, and an Event of the controller says why.

    The error is `PodRefused` if the API server refuses the Pod, and `Retryable` if the API server fails, for example
    because an admission webhook of the cluster does not answer.
    """
    if get_pod(client, namespace=namespace, name=pod_name_of(name), policy=policy) is not None:
        return
    events = list_events(client, kind="StatefulSet", namespace=namespace, name=name, uid=uid, policy=policy)
    refused = [each for each in events if each.reason == "FailedCreate"]
    if refused:
        latest = max(refused, key=lambda each: 0.0 if each.at is None else each.at.timestamp())
        if (refusal := refusal_in(latest.note)) is not None:
            raise PodRefused(refusal)
        error = Retryable(f"the controller could not create Pod {pod_name_of(name)}")
        error.words = failure_in(latest.note)
        note_failure("POST", object_path("pods", namespace=namespace), error)
        raise error


def _check_support(client: KubeClient, body: Json, *, pool: str, policy: RetryPolicy | None) -> None:
    """Raise `Unsupported` if the API server would drop the restart policy of the containers.

    A dry run shows it, so nothing is created. The answer is remembered for each client.
    """
    if client in _supported:
        return
    metadata = {**body["metadata"], "name": f"{pool}-{_PROBE}"}
    spec = copy.deepcopy(body["spec"])
    spec["template"]["spec"]["serviceAccountName"] = pod_name_of(metadata["name"])
    path = object_path(KIND, namespace=metadata["namespace"], group=APPS)
    probe = {**body, "metadata": metadata, "spec": spec}
    stored = client.request("POST", path, body=probe, query={"dryRun": "All"}, policy=policy)
    if not _never_restarts(stored):
        raise Unsupported(TOO_OLD)
    _supported.add(client)


def _never_restarts(stateful_set: Json) -> bool:
    containers = stateful_set["spec"]["template"]["spec"]["containers"]
    return all(each.get("restartPolicy") == "Never" for each in containers if each["name"] in {POLLER, RUNNER})


def _read(client: KubeClient, namespace: str, name: str, policy: RetryPolicy | None) -> Json | None:
    path = object_path(KIND, namespace=namespace, name=name, group=APPS)
    try:
        return client.request("GET", path, accept=METADATA_ONLY, policy=policy)
    except Gone:
        return None


def _set_of(pod: str) -> str:
    """Return the name of the StatefulSet of a Pod. Raises ValueError for a Pod with another workload."""
    found = stateful_set_of(pod)
    if found is None:
        raise ValueError(f"{pod} is not the name of a StatefulSet's Pod")
    return found
