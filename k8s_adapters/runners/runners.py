"""Create and delete a runner: one Pod and one ServiceAccount of the same name.

Their pool owns both, or a StatefulSet of the pool owns the Pod (`k8s_adapters.runners.owners`).

A runner with container jobs also has a Role and a RoleBinding of this name. The Role and the RoleBinding are created
between the ServiceAccount and the Pod. The garbage collector deletes them after the ServiceAccount, so a deletion needs
no calls for them.

The ServiceAccount is created before the Pod and deleted after it. The Pod and the ServiceAccount have the pool label
from the moment of their creation. By this label, an admission policy prevents the cluster's garbage collector from
deleting Pods that are not terminal.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import replace

from k8s_adapters.calls.client import METADATA_ONLY, Json, KubeClient, object_path
from k8s_adapters.hooks.hook_rights import build_role, build_role_binding
from k8s_adapters.hooks.hook_sidecar import add_sidecar
from k8s_adapters.names import (
    API_VERSION,
    ATTEMPT_ANNOTATION,
    CLAIM_ANNOTATION,
    DIGEST_ANNOTATION,
    EXIT_FINALIZER,
    KIND,
    MANAGED_BY_LABEL,
    POOL_LABEL,
    SERVICE_ACCOUNT_ANNOTATION,
    UNCLAIMED,
)
from k8s_adapters.runners.builder_sidecar import add_builder, limit_layers
from k8s_adapters.runners.owners.detaching import end_owner, is_orphaned
from k8s_adapters.runners.owners.kinds import owner_of
from k8s_adapters.runners.pod_hash import mounted_ca, pod_hash
from k8s_adapters.runners.pods import get_pod, read_pod
from k8s_adapters.runners.resources import Created, create_role, create_role_binding, create_service_account
from k8s_adapters.runners.runner_scripts import (
    JOB_COMPLETED,
    JOB_STARTED,
    MODE,
    POLL,
    RUN,
    RUN_REGISTERED,
    SCRIPTS_FOLDER,
    scripts_name,
)
from k8s_adapters.runners.runner_scripts import REGISTER as REGISTER_SCRIPT
from ostler.errors import Conflict, Gone
from ostler.halt import halt
from rules.pools.hook_names import hook_size
from rules.pools.owner_sync import OwnerSeen, Step, next_step
from rules.pools.pod_template import (
    BUILDER,
    CA_VOLUME,
    EXTERNALS,
    HOOKS,
    JIT_VOLUME,
    POLLER,
    REGISTER,
    REGISTRATION_VOLUME,
    RUNNER,
    SCRIPTS_VOLUME,
    TOKEN_VOLUME,
    lay_over,
    outlive_lost_nodes,
)
from rules.pools.pool_spec import PoolSpec
from rules.pools.workloads import stateful_set_of
from rules.upstream.retry import RetryPolicy

JIT_FOLDER = "/var/run/ostler"
_TOKEN_FOLDER = "/var/run/ostler-token"  # noqa: S105 - a path
_CA_FOLDER = "/var/run/ostler-ca"
_REGISTRATION_FOLDER = "/var/run/ostler-registration"
_CA_KEY = "ca.crt"
_TOKEN_SECONDS = 3600
_DISK = "ephemeral-storage"
_RUNNER_USER = 1001  # the user `runner` of GitHub's actions/runner image
_USER = {"runAsUser": _RUNNER_USER, "runAsGroup": _RUNNER_USER, "fsGroup": _RUNNER_USER}


class Deletion(enum.Enum):
    """Result of a deletion. After `ACCEPTED` the Pod might still be terminating.

    `REMOVED` means that the API server has removed the Pod, as its answer shows. `GONE` means that the Pod did not
    exist any more. `SUCCESSOR` means that another Pod has the name, and that nothing was deleted.
    """

    ACCEPTED = "accepted"
    REMOVED = "removed"
    GONE = "gone"
    SUCCESSOR = "successor"


def create_runner(
    client: KubeClient,
    *,
    pool: PoolSpec,
    name: str,
    attempt: str,
    dispatch_url: str,
    audience: str,
    dispatch_ca: str | None = None,
    hooks_image: str | None = None,
    builder_image: str | None = None,
    policy: RetryPolicy | None = None,
) -> Created:
    """Create the ServiceAccount and the Pod, and return the Pod.

    For the workload `StatefulSet`, the StatefulSet is created instead of the Pod. The returned UID is then empty.

    If the pool has container jobs, the Role and the RoleBinding for them are created before the Pod, so that the rights
    exist when the first job starts. `hooks_image` is the image of the sidecar of such a Pod. `builder_image` is the
    image of the sidecar that builds images.

    The Pod does not start before the ConfigMap with its scripts exists (`runner_scripts`).

    A repeated call with the same `attempt` returns the same Pod. Raises `Conflict` if the name belongs to an object
    that this attempt did not create, or that is still terminating. Raises `Forbidden` if a quota is used up, if an
    admission policy refuses an object, or if Ostler has no right to create it. Raises the other errors of
    `KubeClient.request`.
    """
    account = create_service_account(
        client, body=build_service_account(pool=pool, name=name, attempt=attempt), policy=policy
    )
    if pool.containers is not None:
        hooks = pool.containers
        size = None
        if not hooks.shared:
            size = hook_size(millicores=hooks.vcpu_millicores, memory_mib=hooks.memory_mib)
        _create_rights(client, pool=pool, name=name, attempt=attempt, account_uid=account.uid, size=size, policy=policy)
    pod = build_pod(
        pool=pool,
        name=name,
        attempt=attempt,
        dispatch_url=dispatch_url,
        audience=audience,
        dispatch_ca=dispatch_ca,
        hooks_image=hooks_image,
        builder_image=builder_image,
        service_account_uid=account.uid,
    )
    return owner_of(name).create(client, pool=pool, pod=pod, policy=policy)


def _create_rights(
    client: KubeClient,
    *,
    pool: PoolSpec,
    name: str,
    attempt: str,
    account_uid: str,
    size: str | None,
    policy: RetryPolicy | None,
) -> None:
    role = build_role(
        namespace=pool.namespace,
        name=name,
        pool=pool.name,
        attempt=attempt,
        digest=pool.template_hash,
        account_uid=account_uid,
        size=size,
    )
    binding = build_role_binding(
        namespace=pool.namespace,
        name=name,
        pool=pool.name,
        attempt=attempt,
        digest=pool.template_hash,
        account_uid=account_uid,
    )
    create_role(client, body=role, policy=policy)
    create_role_binding(client, body=binding, policy=policy)


def delete_runner(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    attempt: str | None = None,
    force: bool = False,
    owner_within: float = 0.5,
    policy: RetryPolicy | None = None,
) -> Deletion:
    """Delete the Pod with this UID, and then its ServiceAccount. Objects that are already gone cause no error.

    A StatefulSet of the Pod is removed before the Pod, so that the Pod gets no successor. For such a Pod, `attempt` is
    required. Its finalizer is removed when its containers have ended and the StatefulSet is gone. Until then, the
    caller must call this function again (`rules.pools.owner_sync`). `owner_within` is the time in seconds that this
    call waits for the end of the StatefulSet, which usually takes about 0.03 seconds.

    If another Pod has the name, neither that Pod nor the ServiceAccount is deleted. If the deleted Pod has an
    annotation with the UID of its ServiceAccount, the ServiceAccount with this UID is deleted. Otherwise the
    ServiceAccount is found by its name. `attempt` is the attempt that created the Pod. If `attempt` is given, a
    ServiceAccount that was found by name is deleted only if the same attempt created it. A ServiceAccount that was just
    created for a successor of the Pod is therefore not deleted.

    If `force` is True, the Pod object is deleted at once, even if the containers of the Pod still run. Use `force` only
    if the node of the Pod is gone.
    """
    owner = owner_of(name)
    found = None
    if attempt is not None:
        found = owner.find(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
    seen = OwnerSeen(
        owned=found is not None and not found.ending,
        owner_ending=found is not None and found.orphaning,
        pod=True,
        forced=force,
    )
    answer: Json | None = None
    while (step := next_step(seen)) not in {Step.WAIT, Step.DONE}:
        halt(f"runner_end.before_{step.name.lower()}")
        if step is Step.END_OWNER and found is not None:
            owner.end(client, namespace=namespace, name=name, uid=found.uid, policy=policy)
            gone = is_orphaned(
                client, owner, namespace=namespace, name=name, attempt=attempt, within=owner_within, policy=policy
            )
            seen = replace(seen, owned=False, owner_ending=not gone)
        elif step is Step.DELETE_POD:
            try:
                answer = _delete_pod(client, namespace=namespace, name=name, uid=uid, force=force, policy=policy)
            except _Successor:
                return Deletion.SUCCESSOR
            seen = _after_delete(seen, answer)
        else:
            owner.release(client, namespace=namespace, name=name, uid=uid, policy=policy)
            seen = replace(seen, held=False)
    known = ((answer or {}).get("metadata", {}).get("annotations") or {}).get(SERVICE_ACCOUNT_ANNOTATION)
    if known is not None:
        delete_service_account(client, namespace=namespace, name=name, uid=known, policy=policy)
    else:
        delete_account_left(client, namespace=namespace, name=name, uid=uid, attempt=attempt, policy=policy)
    if answer is None:
        return Deletion.GONE
    return Deletion.REMOVED if _is_removed(answer) else Deletion.ACCEPTED


def _is_removed(answer: Json) -> bool:
    """Return True if the answer to the deletion of a Pod shows that no grace period and no finalizer keeps the Pod.

    kube-apiserver removes such a Pod before it answers (`updateForGracefulDeletionAndFinalizers` of its registry).
    """
    metadata: Json = answer.get("metadata") or {}
    return metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")


class _Successor(Exception):
    """Another Pod has the name."""


def _delete_pod(
    client: KubeClient, *, namespace: str, name: str, uid: str, force: bool, policy: RetryPolicy | None
) -> Json | None:
    """Delete the Pod with this UID. Return its JSON, or None if the Pod is gone. Raises `_Successor`."""
    path = object_path("pods", namespace=namespace, name=name)
    body: Json = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    if force:
        body["gracePeriodSeconds"] = 0
    try:
        return client.request("DELETE", path, body=body, policy=policy)
    except Gone:
        return None
    except Conflict:
        living = get_pod(client, namespace=namespace, name=name, policy=policy)
        if living is None:
            return None
        if living.uid != uid:
            raise _Successor from None
        raise


def _after_delete(seen: OwnerSeen, answer: Json | None) -> OwnerSeen:
    """Return the runner as the answer to the deletion of its Pod shows it."""
    if answer is None:
        return replace(seen, pod=False)
    if EXIT_FINALIZER not in (answer.get("metadata", {}).get("finalizers") or ()):
        return replace(seen, terminating=True)
    return replace(seen, terminating=True, held=True, ended=read_pod(answer).is_terminal)


def delete_account_left(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    attempt: str | None = None,
    policy: RetryPolicy | None = None,
) -> None:
    """Delete the StatefulSet and the ServiceAccount of a Pod that is gone, unless a successor of the Pod uses them.

    If `attempt` is given, they are deleted only if this attempt created them. Without it, no StatefulSet is deleted.
    """
    if attempt is not None:
        end_owner(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
    known = _service_account_of(client, namespace, name, uid, attempt, policy)
    if known is not None:
        delete_service_account(client, namespace=namespace, name=name, uid=known, policy=policy)


def _service_account_of(
    client: KubeClient, namespace: str, name: str, uid: str, attempt: str | None, policy: RetryPolicy | None
) -> str | None:
    """Return the UID of the ServiceAccount that the Pod left behind.

    Return None if there is no such ServiceAccount, if Ostler or the given attempt did not create it, or if a successor
    of the Pod needs it.
    """
    try:
        account = client.request("GET", object_path("serviceaccounts", namespace=namespace, name=name), policy=policy)[
            "metadata"
        ]
    except Gone:
        return None
    if POOL_LABEL not in (account.get("labels") or {}):
        return None
    if attempt is not None and (account.get("annotations") or {}).get(ATTEMPT_ANNOTATION) != attempt:
        return None
    # The Pod is read after the ServiceAccount. If a successor uses this ServiceAccount, this read finds the successor.
    # Otherwise the successor creates a ServiceAccount with another UID.
    living = get_pod(client, namespace=namespace, name=name, policy=policy)
    return None if living is not None and living.uid != uid else str(account["uid"])


def delete_service_account(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> None:
    """Delete a runner's ServiceAccount with this UID.

    It is no error if the ServiceAccount is missing or has another UID.
    """
    path = object_path("serviceaccounts", namespace=namespace, name=name)
    try:
        client.request("DELETE", path, body={"preconditions": {"uid": uid}}, policy=policy)
    except (Gone, Conflict):  # the ServiceAccount is gone or belongs to a successor
        return


def delete_left_by_runner(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    attempt: str | None,
    account_uid: str,
    policy: RetryPolicy | None = None,
) -> None:
    """Delete the StatefulSet that a runner left behind, and then its ServiceAccount, which has this UID.

    `name` is the name of the runner's Pod, and `attempt` the attempt of the ServiceAccount. The caller has proven that
    the Pod is gone and that no row needs the name.
    """
    end_owner(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
    delete_service_account(client, namespace=namespace, name=name, uid=account_uid, policy=policy)


def clear_name(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> bool:
    """Request the removal of the objects of earlier attempts that have the name of a runner without a Pod.

    Return True if the name is free, or becomes free when Kubernetes has removed these objects. Return False if a Pod or
    an object of another program has the name. The caller has proven that no other row needs the name.
    """
    if get_pod(client, namespace=namespace, name=name, policy=policy) is not None:
        return False
    end_owner(client, namespace=namespace, name=name, attempt=None, policy=policy)
    delete_account_left(client, namespace=namespace, name=name, uid="", policy=policy)
    left = _objects_with_name(client, namespace=namespace, name=name, policy=policy)
    return all(POOL_LABEL in (metadata.get("labels") or {}) for metadata in left)


def is_free(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> bool:
    """Return True if neither a Pod nor another object has the name of a runner."""
    if get_pod(client, namespace=namespace, name=name, policy=policy) is not None:
        return False
    return not _objects_with_name(client, namespace=namespace, name=name, policy=policy)


def _objects_with_name(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None) -> list[Json]:
    """Return the metadata of the ServiceAccount and the StatefulSet with the name of a runner, as far as they exist."""
    paths = [object_path("serviceaccounts", namespace=namespace, name=name)]
    if (stateful_set := stateful_set_of(name)) is not None:
        paths.append(object_path("statefulsets", namespace=namespace, name=stateful_set, group="apps"))
    found = []
    for path in paths:
        with suppress(Gone):
            found.append(client.request("GET", path, accept=METADATA_ONLY, policy=policy)["metadata"])
    return found


def build_service_account(*, pool: PoolSpec, name: str, attempt: str) -> Json:
    """Return the JSON of a runner's ServiceAccount. It has no mounted token, and no rights without container jobs."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(pool=pool, name=name, attempt=attempt, digest=pool.template_hash),
        "automountServiceAccountToken": False,
    }


def build_pod(
    *,
    pool: PoolSpec,
    name: str,
    attempt: str,
    dispatch_url: str,
    audience: str,
    dispatch_ca: str | None = None,
    hooks_image: str | None = None,
    builder_image: str | None = None,
    service_account_uid: str | None = None,
) -> Json:
    """Return the JSON of a runner Pod.

    Its container `poller` polls for a JIT, and its container `runner` executes the job. Of these two containers, only
    the poller has a token of the Pod's ServiceAccount. Both containers can write to one common volume, which is in
    memory. Both containers execute the scripts of a ConfigMap, which they mount read-only. The pool's overlay is merged
    into the Pod.

    In a pool of persistent runners, the poller polls for a registration token. A third container, `register`, registers
    the runner with the token.

    `dispatch_ca` is the name of the ConfigMap with the CAs for an https `dispatch_url`. The kubelet copies changes of
    the ConfigMap into running Pods. A Pod starts even without the ConfigMap, but its polls fail until the ConfigMap
    exists.

    If the pool has container jobs, the Pod has the sidecar `hooks` with `hooks_image`. If its Pods build images, the
    Pod has the sidecar `builder` with `builder_image`.

    The overlay cannot remove the tolerations for unreachable nodes. Without these tolerations, the taint manager would
    delete a busy Pod, because taint eviction ignores disruption budgets.
    """
    digest = pod_hash(
        pool,
        dispatch_url=dispatch_url,
        audience=audience,
        dispatch_ca=dispatch_ca,
        hooks_image=hooks_image,
        builder_image=builder_image,
    )
    metadata = _metadata(pool=pool, name=name, attempt=attempt, digest=digest)
    metadata["annotations"][CLAIM_ANNOTATION] = UNCLAIMED
    if service_account_uid is not None:
        metadata["annotations"][SERVICE_ACCOUNT_ANNOTATION] = service_account_uid
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                **({} if pool.assigned_user else _USER),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                _poller(pool, dispatch_url),
                *([_register(pool)] if pool.persistent else []),
                _runner(pool),
            ],
            "volumes": [
                {"name": JIT_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": SCRIPTS_VOLUME, "configMap": {"name": scripts_name(), "defaultMode": MODE}},
                {
                    "name": TOKEN_VOLUME,
                    "projected": {
                        "sources": [
                            {
                                "serviceAccountToken": {
                                    "audience": audience,
                                    "expirationSeconds": _TOKEN_SECONDS,
                                    "path": "token",
                                }
                            }
                        ]
                    },
                },
            ],
        },
    }
    if pool.persistent:
        pod["spec"]["volumes"].append(
            {"name": REGISTRATION_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        )
    if (ca := mounted_ca(dispatch_url, dispatch_ca)) is not None:
        _trust(pod, ca)
    if pool.containers is not None:
        add_sidecar(pod, pool=pool, containers=pool.containers, image=hooks_image or "")
    if pool.builder is not None:
        add_builder(pod, builder=pool.builder, image=builder_image or "", runner_image=pool.image, group=_RUNNER_USER)
    if pool.pod_template is not None:
        pod = _restricted(lay_over(_without_request(pod, pool.pod_template), pool.pod_template), pool)
        # Ostler lists, protects and stamps the Pod by these values, so the overlay must not change them.
        for kind in ("labels", "annotations"):
            pod["metadata"][kind] = {**(pod["metadata"].get(kind) or {}), **metadata[kind]}
    if pool.builder is not None:
        limit_layers(pod, builder=pool.builder)
    pod["spec"]["tolerations"] = outlive_lost_nodes(pod["spec"].get("tolerations") or ())
    return pod


def _restricted(pod: Json, pool: PoolSpec) -> Json:
    """Set the security context of Ostler's own containers in all containers of a Pod.

    Containers that the pool's overlay adds get this security context as well. Above the level `restricted`, the overlay
    may change this security context, except in the containers with a token of the Pod. The builder has a security
    context of its own.
    """
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        if pool.builder is not None and container["name"] in {BUILDER, EXTERNALS}:
            continue
        given = container.get("securityContext", {})
        if not pool.pod_security.elevated or container["name"] in {POLLER, HOOKS, REGISTER}:
            container["securityContext"] = {**given, **_security()}
        else:
            container["securityContext"] = {**_elevated(pool, privileged=given.get("privileged") is True), **given}
    return pod


def _metadata(*, pool: PoolSpec, name: str, attempt: str, digest: str) -> Json:
    return {
        "name": name,
        "namespace": pool.namespace,
        "labels": {POOL_LABEL: pool.name, MANAGED_BY_LABEL: "ostler"},
        "annotations": {ATTEMPT_ANNOTATION: attempt, DIGEST_ANNOTATION: digest},
        "ownerReferences": [
            {"apiVersion": API_VERSION, "kind": KIND, "name": pool.name, "uid": pool.uid, "controller": True}
        ],
    }


def _poller(pool: PoolSpec, dispatch_url: str) -> Json:
    return {
        "name": POLLER,
        "image": pool.image,
        "command": ["/bin/sh", POLL],
        "env": [
            {"name": "OSTLER_DISPATCH_URL", "value": dispatch_url},
            {"name": "OSTLER_TOKEN_FILE", "value": f"{_TOKEN_FOLDER}/token"},
            {"name": "OSTLER_JIT_DIR", "value": JIT_FOLDER},
        ],
        "resources": _resources("50m", "64Mi"),
        "securityContext": _security(),
        "volumeMounts": [
            {"name": JIT_VOLUME, "mountPath": JIT_FOLDER},
            _scripts_mount(),
            {"name": TOKEN_VOLUME, "mountPath": _TOKEN_FOLDER, "readOnly": True},
        ],
    }


def _trust(pod: Json, name: str) -> None:
    """Make the poller verify the certificate of its server with the CAs in a ConfigMap, and with no other CAs."""
    source: Json = {"name": name, "items": [{"key": _CA_KEY, "path": _CA_KEY}], "optional": True}
    pod["spec"]["volumes"].append({"name": CA_VOLUME, "configMap": source})
    poller: Json = next(each for each in pod["spec"]["containers"] if each["name"] == POLLER)
    # poll.sh reads the first variable, and the curl that it starts reads the second.
    for variable in ("OSTLER_CA_FILE", "CURL_CA_BUNDLE"):
        poller["env"].append({"name": variable, "value": f"{_CA_FOLDER}/{_CA_KEY}"})
    poller["volumeMounts"].append({"name": CA_VOLUME, "mountPath": _CA_FOLDER, "readOnly": True})


def _register(pool: PoolSpec) -> Json:
    """Return the container that registers a persistent runner. It executes no code of jobs."""
    return {
        "name": REGISTER,
        "image": pool.image,
        "command": ["/bin/sh", REGISTER_SCRIPT],
        "env": [
            {"name": "OSTLER_JIT_DIR", "value": JIT_FOLDER},
            {"name": "OSTLER_REGISTRATION_DIR", "value": _REGISTRATION_FOLDER},
        ],
        "resources": _resources("100m", "512Mi"),
        "securityContext": _security(),
        "volumeMounts": [
            {"name": JIT_VOLUME, "mountPath": JIT_FOLDER},
            {"name": REGISTRATION_VOLUME, "mountPath": _REGISTRATION_FOLDER},
            _scripts_mount(),
        ],
    }


def _runner(pool: PoolSpec) -> Json:
    """Return the container that executes jobs.

    A persistent runner has the volume of its registration in the place of the volume that the poller writes to, so that
    a job can read no registration token.
    """
    hooks = {"ACTIONS_RUNNER_HOOK_JOB_STARTED": JOB_STARTED}
    if pool.persistent:
        hooks["ACTIONS_RUNNER_HOOK_JOB_COMPLETED"] = JOB_COMPLETED
    return {
        "name": RUNNER,
        "image": pool.image,
        "command": ["/bin/sh", RUN_REGISTERED if pool.persistent else RUN],
        "env": [
            {"name": "OSTLER_JIT_DIR", "value": JIT_FOLDER},
            *({"name": name, "value": script} for name, script in hooks.items()),
        ],
        "resources": _runner_resources(pool),
        "securityContext": _elevated(pool),
        "readinessProbe": {
            "exec": {"command": ["test", "-f", f"{JIT_FOLDER}/job-started"]},
            "periodSeconds": 2,
            "failureThreshold": 1,
        },
        "volumeMounts": [
            {"name": REGISTRATION_VOLUME if pool.persistent else JIT_VOLUME, "mountPath": JIT_FOLDER},
            _scripts_mount(),
        ],
    }


def _scripts_mount() -> Json:
    return {"name": SCRIPTS_VOLUME, "mountPath": SCRIPTS_FOLDER, "readOnly": True}


def _runner_resources(pool: PoolSpec) -> Json:
    """Return the requests and limits of the container `runner`. Its disk has no limit unless the pool sets one.

    The request of disk is enough to protect other Pods. A node without free disk first evicts the Pods that use more
    disk than they requested. If a busy Pod exceeds a limit, the kubelet ends the Pod. Only the owner of the pool may
    set such a limit (law L3).
    """
    millicores, memory_mib = pool.vcpu_millicores, pool.memory_mib
    if pool.containers is not None and pool.containers.shared:
        # Containers that are added to a Pod have no resources of their own. They use those of the whole Pod.
        millicores, memory_mib = (
            millicores + pool.containers.vcpu_millicores,
            memory_mib + pool.containers.memory_mib,
        )
    found = _resources(f"{millicores}m", f"{memory_mib}Mi")
    found["requests"][_DISK] = f"{pool.ephemeral_storage_mib}Mi"
    if pool.ephemeral_storage_limit_mib is not None:
        found["limits"][_DISK] = f"{pool.ephemeral_storage_limit_mib}Mi"
    return found


def _without_request(pod: Json, overlay: Json) -> Json:
    """Remove the runner's request of disk if the overlay sets a limit of disk.

    Kubernetes then uses the limit as the request. A request above the limit would make the API server refuse every Pod
    of the pool.
    """
    runner: Json = next((each for each in pod["spec"]["containers"] if each["name"] == RUNNER), {})
    for each in (overlay.get("spec") or {}).get("containers") or ():
        resources = each.get("resources") or {}
        if each["name"] == RUNNER and _DISK in (resources.get("limits") or {}):
            runner["resources"]["requests"].pop(_DISK, None)
    return pod


def _resources(cpu: str, memory: str) -> Json:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def _security() -> Json:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _elevated(pool: PoolSpec, *, privileged: bool = False) -> Json:
    """Return the security context of a container that executes jobs.

    A process with `allowPrivilegeEscalation` can start a program such as sudo, which needs the capabilities that the
    container runtime gives by default. The API server refuses a `privileged` container that must not gain privileges,
    so a privileged container may gain them.
    """
    if privileged or pool.allow_privilege_escalation:
        return {"allowPrivilegeEscalation": True}
    return _security()
