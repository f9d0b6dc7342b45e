"""Probes of both API servers: every verb of the claim path and of the lab's kubelet, with its error cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.runners import build_pod, build_service_account
from tests.contract.k8s.both.recording import JSON, MERGE, PARTIAL, PARTIAL_LIST, PATCH, POOLS, Json, Recorder

Probe = Callable[[Recorder], None]
PROBES: dict[str, Probe] = {}

OTHER_UID = "00000000-0000-4000-8000-000000000000"
RUNNER = "pool-0000000a"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPEC = {"image": "runner:1", "runnerLabels": ["linux"]}


def probe(function: Probe) -> Probe:
    """Register a probe under the name of its function."""
    PROBES[function.__name__] = function
    return function


def run(probe_name: str, recorder: Recorder) -> None:
    """Create the probe's namespace, wait for the objects in it, and run the probe."""
    recorder.ask("POST", "/api/v1/namespaces", {"metadata": {"name": recorder.namespace}})
    recorder.wait("serviceaccounts/default", lambda status, _: status == 200)
    PROBES[probe_name](recorder)


# What the probes are about.


def account(recorder: Recorder, name: str = "a", **metadata: Any) -> Json:
    """Create a ServiceAccount."""
    body = {"metadata": {"name": name, **metadata}, "automountServiceAccountToken": False}
    made: Json = recorder.quietly("POST", "serviceaccounts", body)
    return made


def pod_body(name: str = "p", **metadata: Any) -> Json:
    """Return a small Pod of ServiceAccount `a`."""
    return {
        "metadata": {"name": name, "labels": {"l": "1"}, "annotations": {"claim": "0.0"}, **metadata},
        "spec": {
            "serviceAccountName": "a",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "i"}],
        },
    }


def pod(recorder: Recorder, name: str = "p", **metadata: Any) -> Json:
    """Create a Pod."""
    made: Json = recorder.quietly("POST", "pods", pod_body(name, **metadata))
    return made


def pool(recorder: Recorder, name: str, **metadata: Any) -> Json:
    """Create a pool."""
    made: Json = recorder.quietly("POST", "pools", pool_body(name, SPEC, **metadata))
    return made


def pool_body(name: str, spec: Any, **metadata: Any) -> Json:
    """Return a pool."""
    return {
        "apiVersion": "ostler.dev/v1alpha1",
        "kind": "RunnerPool",
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def owned_by(owner: Json, **more: Any) -> list[Json]:
    """Return owner references to a pool."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return [{**reference, "uid": owner["metadata"]["uid"], "controller": True, **more}]


def bind(recorder: Recorder, name: str = "p", node: str = "n") -> None:
    """Bind a Pod to a node."""
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    recorder.quietly("POST", f"pods/{name}/binding", body)


def token(recorder: Recorder, *, bound_to: Json | None = None, audience: str = "ostler") -> str:
    """Request a token of `a`, record the answer, and return it."""
    spec: Json = {"audiences": [audience], "expirationSeconds": 3600}
    if bound_to is not None:
        metadata = bound_to["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
    return str(recorder.ask("POST", "serviceaccounts/a/token", {"spec": spec})["status"]["token"])


def review(recorder: Recorder, text: str, audiences: list[str] | None = None) -> None:
    """Request a TokenReview."""
    spec = {"token": text} | ({} if audiences is None else {"audiences": audiences})
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    recorder.ask("POST", REVIEWS, body)


def refused(recorder: Recorder, text: str) -> None:
    """Wait until a token is refused. The requests are not recorded.

    The real server reads Pods and ServiceAccounts from a cache, which can be older than a deletion, and remembers a
    success for ten seconds. A refused token proves that the cache is new enough for the other tokens.
    """
    spec = {"token": text, "audiences": ["ostler"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    recorder.quietly_until("POST", REVIEWS, body, lambda found: not found["status"].get("authenticated"))


# The probes.


@probe
def server(it: Recorder) -> None:
    """Paths that are no objects, and paths that no server serves."""
    for path in ("/version", "/readyz", "/.well-known/openid-configuration", "/openid/v1/jwks", "/nothing"):
        it.ask("GET", path)
    it.ask("GET", "/openid/v1/jwks", accept="application/jwk-set+json")
    it.ask("GET", "/apis/nobody.dev/v1/things")
    it.ask("GET", "things")
    it.ask("GET", "things/a")
    it.ask("GET", "pods/p/thing")
    it.ask("PUT", "pods", {})


@probe
def namespaces(it: Recorder) -> None:
    """Create twice, read, delete."""
    it.ask("POST", "/api/v1/namespaces", {"metadata": {"name": it.namespace}})
    it.ask("GET", f"/api/v1/namespaces/{it.namespace}")
    it.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "Not_A_Name"}})
    it.ask("GET", f"/api/v1/namespaces/{it.namespace}-none")
    account(it)
    pod(it)
    it.ask("DELETE", f"/api/v1/namespaces/{it.namespace}")
    it.wait(f"/api/v1/namespaces/{it.namespace}", lambda status, _: status == 404)
    it.ask("GET", "pods")
    it.ask("POST", "pods", pod_body())


@probe
def runners(it: Recorder) -> None:
    """A ServiceAccount and a Pod exactly as Ostler creates them."""
    owner = it.ask("POST", "pools", pool_body("pool", SPEC))
    seen = read_pool(owner)
    made = it.ask("POST", "serviceaccounts", build_service_account(pool=seen, name=RUNNER, attempt="a1"))
    body = build_pod(
        pool=seen,
        name=RUNNER,
        attempt="a1",
        dispatch_url="http://web/",
        audience="ostler",
        service_account_uid=made["metadata"]["uid"],
    )
    it.ask("POST", "pods", body)
    it.ask("GET", f"pods/{RUNNER}")
    it.ask("GET", "pods", query={"labelSelector": "ostler.dev/pool=pool", "limit": "500"})
    it.ask("GET", "serviceaccounts", query={"labelSelector": "ostler.dev/pool"})


@probe
def service_accounts(it: Recorder) -> None:
    """Create, read, refuse, delete."""
    body = {"metadata": {"name": "a", "labels": {"x": "y"}}, "automountServiceAccountToken": False}
    made = it.ask("POST", "serviceaccounts", body)
    it.ask("POST", "serviceaccounts", body)
    it.ask("POST", "serviceaccounts", {"metadata": {"name": "Bad_Name"}})
    it.ask("POST", "serviceaccounts", {"metadata": {}})
    it.ask("GET", "serviceaccounts/a")
    it.ask("GET", "serviceaccounts/a", accept=PARTIAL)
    it.ask("GET", "serviceaccounts/nobody")
    it.ask("GET", "serviceaccounts")
    it.ask("DELETE", "serviceaccounts/a", {"preconditions": {"uid": OTHER_UID}})
    it.ask("DELETE", "serviceaccounts/a", {"preconditions": {"uid": made["metadata"]["uid"]}})
    it.ask("DELETE", "serviceaccounts/a")


@probe
def pods_are_created_and_read(it: Recorder) -> None:
    """Create with every kind of refusal; read the whole Pod and parts of it."""
    it.ask("POST", "pods", pod_body())
    account(it)
    it.ask("POST", "pods", pod_body())
    it.ask("POST", "pods", pod_body())
    it.ask("GET", "pods/p")
    it.ask("GET", "pods/p", accept=PARTIAL)
    it.ask("GET", "pods", accept=PARTIAL)
    it.ask("GET", "pods", accept=PARTIAL_LIST)
    it.ask("GET", "pods/p/status")
    it.ask("GET", "pods/nobody")
    it.ask("POST", "pods", {**pod_body("q"), "spec": {"serviceAccountName": "a", "containers": []}})
    it.ask("POST", "pods", pod_body("q", labels={"a": "x" * 64}))
    it.ask("POST", "pods", pod_body("q", labels={"a": "ends-in-"}))
    it.ask("POST", "pods", pod_body("q", namespace="elsewhere"))
    it.ask("POST", "pods", pod_body(""))
    it.ask("POST", "pods", {**pod_body("q"), "kind": "ConfigMap", "apiVersion": "v1"})
    it.ask("POST", "pods", "{no json")
    it.ask("POST", f"/api/v1/namespaces/{it.namespace}-none/pods", pod_body())


@probe
def json_patches(it: Recorder) -> None:
    """The write of the stamp, and every operation in a state in which it cannot be applied."""
    account(it)
    uid = pod(it)["metadata"]["uid"]
    claim = "/metadata/annotations/claim"

    def patch(*operations: Json, name: str = "p") -> None:
        it.ask("PATCH", f"pods/{name}", list(operations), content_type=PATCH)

    def test(path: str, value: Any) -> Json:
        return {"op": "test", "path": path, "value": value}

    stamp = [test("/metadata/uid", uid), test(claim, "0.0"), {"op": "replace", "path": claim, "value": "7.1"}]
    it.ask("PATCH", "pods/p", stamp, content_type=PATCH, accept=PARTIAL)
    it.ask("PATCH", "pods/p", stamp, content_type=PATCH, accept=PARTIAL)
    patch(test("/metadata/uid", OTHER_UID), {"op": "add", "path": "/metadata/labels/late", "value": "x"})
    patch(test(claim, "7.1"), {"op": "add", "path": "/metadata/labels/ostler.dev~1owner", "value": "42"})
    patch(
        {"op": "add", "path": "/metadata/labels/gone", "value": ""}, {"op": "remove", "path": "/metadata/labels/gone"}
    )
    patch({"op": "remove", "path": "/metadata/labels/none"})
    patch({"op": "replace", "path": "/metadata/labels/none", "value": "x"})
    patch({"op": "add", "path": "/metadata/none/none", "value": "x"})
    patch(test("/metadata/annotations/none", "x"))
    patch(test("/metadata/annotations/none", None))
    patch(test("/metadata/generation", "1"))
    patch(test("/metadata/generation", 1.5))
    patch(test("/metadata/generation", 1))
    patch(test("/spec/containers/0/name", "c"), test("/spec/containers/1/name", "c"))
    patch({"op": "copy", "from": claim, "path": "/metadata/labels/c"})
    patch({"op": "move", "from": "/metadata/labels/c", "path": "/metadata/labels/d"})
    patch({"op": "dance", "path": "/metadata/labels/c"})
    patch({"op": "add", "path": "/metadata/labels/c", "value": "ends-in-"})
    patch({"op": "add", "path": "/metadata/uid", "value": OTHER_UID})
    patch({"op": "add", "path": "/metadata/resourceVersion", "value": "1"})
    patch({"op": "add", "path": "/spec/nodeName", "value": "n"})
    patch({"op": "replace", "path": "/spec/containers/0/image", "value": "i2"})
    patch()
    patch(name="nobody")
    it.ask("PATCH", "pods/p", {"op": "test"}, content_type=PATCH)
    it.ask("PATCH", "pods/p", "no json", content_type=PATCH)
    it.ask("PATCH", "pods/p", {}, content_type="application/json")


@probe
def merge_patches(it: Recorder) -> None:
    """Merge patches of a Pod that change it, that change nothing, and that are refused."""
    account(it)
    made = pod(it)

    def patch(body: Any) -> None:
        it.ask("PATCH", "pods/p", body, content_type=MERGE)

    patch({"metadata": {"labels": {"l": None, "m": "2"}}})
    patch({"metadata": {"labels": {"m": "2"}}})
    patch({"metadata": {"annotations": None}})
    patch({"metadata": {"uid": OTHER_UID}})
    patch({"metadata": {"uid": made["metadata"]["uid"], "labels": {"n": "3"}}})
    patch({"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"n": "4"}}})
    patch({"metadata": {"name": "other"}})
    patch({"metadata": {"labels": {"l": "ends-in-"}}})
    patch({"metadata": {"labels": {"l": "x" * 64}}})
    patch({"status": {"phase": "Running"}})
    patch([])
    patch("no json")
    it.ask("PATCH", "pods/nobody", {}, content_type=MERGE)


@probe
def statuses(it: Recorder) -> None:
    """The kubelet's status of a Pod, and refusals of every other change by it."""
    account(it)
    made = pod(it)
    container = {"image": "i", "imageID": "", "restartCount": 0, "started": True}
    running = {**container, "name": "c", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    terminated = {
        "exitCode": 137,
        "signal": 9,
        "reason": "OOMKilled",
        "message": "7",
        "startedAt": None,
        "finishedAt": None,
    }
    status: Json = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [running]}
    status["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]

    def report(body: Any, name: str = "p") -> None:
        it.ask("PATCH", f"pods/{name}/status", body, content_type=MERGE)

    report({"metadata": {"uid": made["metadata"]["uid"]}, "status": status})
    report({"metadata": {"uid": OTHER_UID}, "status": status})
    report({"status": {"phase": "Failed"}, "spec": {"nodeName": "n"}, "metadata": {"labels": {"via": "status"}}})
    report({"status": {"containerStatuses": [{**running, "ready": False, "state": {"terminated": terminated}}]}})
    report({"status": status}, name="nobody")
    it.ask("GET", "pods/p")


@probe
def ephemeral_containers(it: Recorder) -> None:
    """Containers are added to a Pod, and never change. A patch changes nothing else, and can test the Pod's UID."""
    account(it)
    body = pod_body()
    body["spec"]["volumes"] = [{"name": "work", "emptyDir": {}}]
    body["spec"]["initContainers"] = [{"name": "first", "image": "i"}]
    made = it.quietly("POST", "pods", body)

    def add(*containers: Json, uid: str = made["metadata"]["uid"], name: str = "p", **more: Any) -> None:
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            *({"op": "add", "path": f"/{path.replace('_', '/')}", "value": value} for path, value in more.items()),
            {"op": "add", "path": "/spec/ephemeralContainers", "value": list(containers)},
        ]
        it.ask("PATCH", f"pods/{name}/ephemeralcontainers", operations, content_type=PATCH)

    mounts = [{"name": "work", "mountPath": "/__w"}]
    job: Json = {
        "name": "job",
        "image": "i",
        "volumeMounts": mounts,
        # The real server adds these fields.
        "imagePullPolicy": "Always",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    add(job, name="nobody")
    add(job, uid=OTHER_UID)
    for name in ("c", "first", ""):
        add({**job, "name": name})
    add({**job, "image": ""})
    add({**job, "volumeMounts": [{"name": "token", "mountPath": "/t"}]})
    add({**job, "volumeMounts": [{**mounts[0], "subPath": "shop"}]})
    add({**job, "resources": {"limits": {"cpu": "1"}}})
    add({**job, "ports": [{"containerPort": 80, "protocol": "TCP"}]})
    add({**job, "readinessProbe": {"exec": {"command": ["true"]}}})
    add(job, job)
    add(job, metadata_labels={"via": "ephemeral"}, spec_activeDeadlineSeconds=60)
    add(job)
    add({**job, "image": "other"})
    add()
    add(job, {**job, "name": "service-0", "args": ["a"]})
    it.ask("GET", "pods/p/ephemeralcontainers")
    it.ask("PATCH", "pods/p/ephemeralcontainers", {"metadata": {"uid": OTHER_UID}}, content_type=MERGE)
    it.ask("PATCH", "pods/p/ephemeralcontainers", {"metadata": {"resourceVersion": "1"}}, content_type=MERGE)
    it.ask("DELETE", "pods/p/ephemeralcontainers")
    it.ask("PATCH", "pods/p", {"spec": {"ephemeralContainers": []}}, content_type=MERGE)


@probe
def leases(it: Recorder) -> None:
    """A Lease is created once. A write needs the resourceVersion that was read."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{it.namespace}/leases"
    spec: Json = {"holderIdentity": "a", "leaseDurationSeconds": 10, "renewTime": "2026-01-01T00:00:00.000000Z"}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}

    def write(version: str, spec: Json, name: str = "l") -> Json:
        patch = {"metadata": {"resourceVersion": version}, "spec": spec}
        answer: Json = it.ask("PATCH", f"{path}/{name}", patch, content_type=MERGE)
        return answer

    it.ask("GET", f"{path}/l")
    made = it.ask("POST", path, body)
    it.ask("POST", path, body)
    read = it.ask("GET", f"{path}/l")
    write(read["metadata"]["resourceVersion"], {"holderIdentity": "b", "leaseTransitions": 1})
    write(made["metadata"]["resourceVersion"], {"holderIdentity": "c"})
    taken = it.ask("GET", f"{path}/l")
    write(taken["metadata"]["resourceVersion"], {"holderIdentity": ""})
    write(taken["metadata"]["resourceVersion"], {"holderIdentity": "c"}, name="nobody")


@probe
def config_maps(it: Recorder) -> None:
    """A ConfigMap is created once. A write needs the resourceVersion that was read."""
    path = f"/api/v1/namespaces/{it.namespace}/configmaps"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "epoch"}, "data": {"epoch": "1"}}

    def write(version: str, name: str = "epoch") -> None:
        patch = {"metadata": {"resourceVersion": version}, "data": {"epoch": "2"}}
        it.ask("PATCH", f"{path}/{name}", patch, content_type=MERGE)

    it.ask("GET", f"{path}/epoch")
    made = it.ask("POST", path, body)
    it.ask("POST", path, body)
    write(made["metadata"]["resourceVersion"])
    write(made["metadata"]["resourceVersion"])
    write(made["metadata"]["resourceVersion"], name="nobody")
    it.ask("GET", f"{path}/epoch")


@probe
def bindings(it: Recorder) -> None:
    """A Pod is bound to a node once."""
    account(it)
    made = pod(it)

    def put(name: str = "p", uid: str | None = None, node: str = "n") -> None:
        metadata = {"name": name} | ({} if uid is None else {"uid": uid})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        it.ask(
            "POST",
            f"pods/{name}/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target},
        )

    put("nobody")
    put(node="")
    put(uid=made["metadata"]["uid"])
    it.ask("GET", "pods/p")
    put()
    it.ask("DELETE", "pods/p")
    put()


@probe
def execs(it: Recorder) -> None:
    """Exec requests that never reach a kubelet."""
    account(it)
    pod(it)
    for method in ("GET", "POST"):
        it.ask(method, "pods/missing/exec?command=true&stdout=true")
        it.ask(method, "pods/p/exec?command=true&stdout=true")
        it.ask(method, "pods/p/exec?command=true&stdout=true&container=missing")
    node = f"exec-{it.namespace}"
    it.quietly("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    bind(it, node=node)
    it.ask("GET", "pods/p/exec?command=true&stdout=true&container=missing")
    it.ask("GET", "pods/p/exec?command=true&stdout=true")
    it.quietly("DELETE", f"/api/v1/nodes/{node}")


@probe
def pods_are_deleted(it: Recorder) -> None:
    """Deletions by UID: at once without a node or after the end, otherwise Terminating until the kubelet confirms."""
    account(it)
    made = pod(it)
    it.ask("DELETE", "pods/nobody")
    it.ask("DELETE", "pods/p", {"preconditions": {"uid": OTHER_UID}})
    it.ask("DELETE", "pods/p", {"preconditions": {"resourceVersion": "1"}})
    it.ask("DELETE", "pods/p", {"preconditions": {"uid": made["metadata"]["uid"]}, "propagationPolicy": "Background"})
    it.ask("GET", "pods/p")
    made = pod(it)
    bind(it)
    it.ask("DELETE", "pods/p", {"preconditions": {"uid": made["metadata"]["uid"]}})
    it.ask("GET", "pods/p", accept=PARTIAL)
    it.ask("GET", "pods", query={"limit": "500"})
    it.ask("DELETE", "pods/p")
    it.ask("PATCH", "pods/p", {"metadata": {"labels": {"late": "x"}}}, content_type=MERGE)
    it.ask("PATCH", "pods/p/status", {"status": {"phase": "Failed"}}, content_type=MERGE)
    it.ask("POST", "pods", pod_body())
    it.ask("DELETE", "pods/p", {"gracePeriodSeconds": 60})
    it.ask("DELETE", "pods/p", {"gracePeriodSeconds": 5})
    it.ask("DELETE", "pods/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": OTHER_UID}})
    it.ask("DELETE", "pods/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}})
    it.ask("DELETE", "pods/p", {"gracePeriodSeconds": 0})
    pod(it)
    bind(it)
    it.quietly("PATCH", "pods/p/status", {"status": {"phase": "Succeeded"}}, content_type=MERGE)
    it.ask("DELETE", "pods/p")
    it.ask("GET", "pods/p")


@probe
def finalizers(it: Recorder) -> None:
    """An object with finalizers is gone when the last one is removed."""
    account(it)
    pod(it)
    pool(it, "w")
    for path in ("pods/p", "pools/w"):
        it.ask("PATCH", path, {"metadata": {"finalizers": ["ostler.dev/drain"]}}, content_type=MERGE)
        it.ask("DELETE", path, query={"propagationPolicy": "Background"})
        it.ask("GET", path)
        it.ask("DELETE", path)
        it.ask("PATCH", path, {"metadata": {"finalizers": ["ostler.dev/drain", "a.b/c"]}}, content_type=MERGE)
        it.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
        it.ask("GET", path)


@probe
def replacements(it: Recorder) -> None:
    """A whole object is replaced only if its resourceVersion is current and its UID is the same."""
    account(it)
    pod(it)
    pool(it, "w")
    for path in ("pods/p", "pools/w"):
        it.ask("PATCH", path, {"metadata": {"finalizers": ["ostler.dev/drain", "a.b/c"]}}, content_type=MERGE)
        found = it.ask("GET", path)
        it.ask("PUT", path, {**found, "metadata": {**found["metadata"], "uid": OTHER_UID}})
        it.ask("PUT", path, {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}})
        it.ask("PUT", path, {**found, "metadata": {**found["metadata"], "finalizers": ["a.b/c"]}}, accept=PARTIAL)
        it.ask("PUT", path, found)
        it.ask("DELETE", path, query={"propagationPolicy": "Background"})
        found = it.ask("GET", path)
        it.ask("PUT", path, {**found, "metadata": {**found["metadata"], "finalizers": []}}, accept=PARTIAL)
        it.ask("GET", path)
        it.ask("PUT", path, found)


@probe
def managers_of_pools(it: Recorder) -> None:
    """The field managers of a pool: of its creation, of changes by others, of its status, and of removed fields."""

    def ask(method: str, path: str, body: Json, manager: str | None) -> Any:
        query = None if manager is None else {"fieldManager": manager}
        kind = MERGE if method == "PATCH" else JSON
        return it.ask(method, path, body, content_type=kind, query=query)

    ask("POST", "pools", pool_body("w", {**SPEC, "paused": False}, labels={"a": "1", "b": "2"}), "helm")
    ask("PATCH", "pools/w", {"spec": {"paused": True}}, "ostler-cli:alice")
    ask("PATCH", "pools/w", {"spec": {"paused": True}}, "nobody")
    ask("PATCH", "pools/w", {"spec": {"replicas": 3, "autoscaling": {"enabled": True, "minWarm": 2}}}, None)
    ask("PATCH", "pools/w/status", {"status": {"warm": 3, "replicas": 3}}, None)
    ask("PATCH", "pools/w", {"metadata": {"finalizers": ["ostler.dev/drain", "a.b/c"]}}, None)
    ask("PATCH", "pools/w", {"metadata": {"labels": {"a": "3", "b": None}, "annotations": {"x.y/z": "1"}}}, "kubectl")
    ask("PATCH", "pools/w", {"metadata": {"finalizers": ["a.b/c"]}, "spec": {"autoscaling": None}}, "kubectl")
    found = ask("PATCH", "pools/w", {"spec": {"runnerLabels": ["linux", "gpu"], "paused": None}}, "ostler-cli:bob")
    found["spec"]["image"] = "runner:2"
    ask("PUT", "pools/w", found, "gitops")
    ask("PATCH", "pools/w", {"metadata": {"annotations": {"x.y/z": "2"}}}, "other")
    ask("PATCH", "pools/w", {"metadata": {"annotations": {"x.y/z": None}}}, "other")
    it.ask("GET", "pools/w")
    it.ask("GET", "pools")


@probe
def statuses_of_pools(it: Recorder) -> None:
    """The status of a pool as a reconciler writes it, the parts that are ignored, and the refusal of other changes."""
    pool(it, "w")
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "PodsAvailable",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }

    def report(status: Json, *, name: str = "w") -> None:
        it.ask("PATCH", f"pools/{name}/status", {"status": status}, content_type=MERGE)

    report(
        {"observedGeneration": 1, "replicas": 2, "selector": "a=b", "warm": 2, "stale": 0, "conditions": [condition]}
    )
    report({"warm": 3, "nonsense": 1, "conditions": [{**condition, "status": "False"}]})
    report({"conditions": [{**condition, "type": "Other"}]})
    report({"warm": "many"})
    report({"warm": 1}, name="nobody")
    it.ask("PATCH", "pools/w", {"status": {"warm": 9}}, content_type=MERGE)
    it.ask("GET", "pools/w")


@probe
def selectors_and_pages(it: Recorder) -> None:
    """The Pods that a list selects, and pages that all show the same moment."""
    account(it)
    for number in range(5):
        pod(it, f"p{number}", labels={"n": str(number), "odd": str(number % 2), "ostler.dev/pool": "w"})
    for selector in (
        "odd=1",
        "odd==0,n",
        "odd!=1",
        "odd",
        "!odd",
        "n in (1,2)",
        "n notin (1, 2),odd=1",
        "ostler.dev/pool=w",
        "nothing",
        "=",
        "a b",
    ):
        it.ask("GET", "pods", accept=PARTIAL_LIST, query={"labelSelector": selector})
    for selector in (
        "metadata.name=p1",
        "metadata.name!=p1",
        "spec.nodeName=",
        "status.phase=Pending",
        "spec.nothing=1",
    ):
        it.ask("GET", "pods", accept=PARTIAL_LIST, query={"fieldSelector": selector})
    first = it.ask("GET", "pods", query={"limit": "2"})
    it.quietly("DELETE", "pods/p2")
    pod(it, "p00")
    second = it.ask("GET", "pods", query={"limit": "2", "continue": first["metadata"].get("continue", "")})
    it.ask("GET", "pods", query={"limit": "2", "continue": second["metadata"].get("continue", "")})
    it.ask("GET", "pods", query={"limit": "2", "labelSelector": "odd=0"})
    it.ask("GET", "pods", query={"continue": "junk"})
    it.ask("GET", "pods", query={"limit": "x"})
    it.ask("GET", f"/api/v1/namespaces/{it.namespace}-none/pods")


@probe
def watches(it: Recorder) -> None:
    """Events since a list, with selectors, as metadata, and from the beginning."""
    account(it)
    since = it.ask("GET", "pods")["metadata"]["resourceVersion"]
    pod(it)
    for label in ("2", "2", "1"):
        it.quietly("PATCH", "pods/p", {"metadata": {"labels": {"l": label}}}, content_type=MERGE)
    bind(it)
    it.quietly("DELETE", "pods/p")
    it.quietly("DELETE", "pods/p", {"gracePeriodSeconds": 0})
    pod(it, "z")
    it.watch("pods", {"resourceVersion": since})
    it.watch("pods", {"resourceVersion": since, "labelSelector": "l=1"})
    it.watch("pods", {"resourceVersion": since, "fieldSelector": "metadata.name=z"}, accept=PARTIAL)
    it.watch("pods", {"resourceVersion": "0"})
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    it.watch("pods", initial, accept=PARTIAL)
    it.ask("GET", "pods", query={"watch": "1", "resourceVersion": "junk"})
    it.ask("GET", "pods", query={"watch": "1", "timeoutSeconds": "x"})
    it.ask("GET", "pods", query={"watch": "1", "labelSelector": "a b"})
    since = it.ask("GET", "pods")["metadata"]["resourceVersion"]

    def act() -> None:
        pod(it, "live")
        it.quietly("PATCH", "pods/live", {"metadata": {"labels": {"l": "2"}}}, content_type=MERGE)
        it.quietly("DELETE", "pods/live")

    it.follow("pods", since, act, count=4)


@probe
def tokens(it: Recorder) -> None:
    """TokenRequests that are bound to a Pod, that are not bound, and that are refused."""
    account(it)
    made = pod(it)
    token(it, bound_to=made)
    token(it)
    node = it.quietly("POST", "/api/v1/nodes", {"metadata": {"name": it.namespace}})["metadata"]["name"]
    bind(it, node=node)
    review(it, token(it, bound_to=made), ["ostler"])
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made["metadata"]["uid"]}
    for account_name, spec in (
        ("a", {}),
        ("a", {"boundObjectRef": {**reference, "uid": OTHER_UID}}),
        ("a", {"boundObjectRef": {**reference, "name": "nobody"}}),
        ("a", {"expirationSeconds": 10}),
        ("default", {"boundObjectRef": reference}),
        ("nobody", {"boundObjectRef": reference}),
    ):
        it.ask("POST", f"serviceaccounts/{account_name}/token", {"spec": spec})
    it.quietly("DELETE", f"/api/v1/nodes/{node}")


@probe
def token_reviews(it: Recorder) -> None:
    """Tokens with their owners and audiences."""
    account(it)
    text = token(it, bound_to=pod(it))
    review(it, text, ["ostler"])
    review(it, text, ["another"])
    review(it, text, ["another", "ostler"])
    review(it, text)
    review(it, token(it, audience="https://kubernetes.default.svc"))
    review(it, "garbage", ["ostler"])
    review(it, "", ["ostler"])
    review(it, f"{text[:-8]}AAAAAAAA", ["ostler"])
    bind(it)
    text = token(it, bound_to=it.quietly("GET", "pods/p"))
    it.quietly("DELETE", "pods/p")
    review(it, text, ["ostler"])


@probe
def tokens_of_what_is_gone(it: Recorder) -> None:
    """First reviews of tokens whose Pod or ServiceAccount is gone or was created again."""
    account(it)
    made = pod(it)
    text, other = token(it, bound_to=made), token(it, bound_to=made)
    it.quietly("DELETE", "pods/p")
    refused(it, other)
    review(it, text, ["ostler"])
    made = pod(it)
    text, other = token(it, bound_to=made), token(it, bound_to=made)
    it.quietly("DELETE", "pods/p")
    pod(it)
    refused(it, other)
    review(it, text, ["ostler"])
    made = pod(it, "q")
    text, other = token(it, bound_to=made), token(it, bound_to=made)
    it.quietly("DELETE", "serviceaccounts/a")
    refused(it, other)
    review(it, text, ["ostler"])
    account(it)
    text, other = token(it), token(it)
    it.quietly("DELETE", "serviceaccounts/a")
    account(it)
    refused(it, other)
    review(it, text, ["ostler"])


@probe
def callers(it: Recorder) -> None:
    """The identity of a caller, and the rights of a runner's ServiceAccount and of a stranger."""
    account(it)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    mine = token(it, audience="https://kubernetes.default.svc")
    theirs = token(it, audience="ostler")
    it.ask("POST", WHO_AM_I, asked)
    for bearer in (mine, theirs, "junk", ""):
        it.ask("POST", WHO_AM_I, asked, token=bearer)
        it.ask("GET", "pods", token=bearer)
    for bearer in (mine, ""):
        it.ask("GET", "/readyz", token=bearer)
        it.ask("GET", "/openid/v1/jwks", token=bearer, accept="application/jwk-set+json")
        it.ask("GET", "/nothing", token=bearer)
        it.ask("GET", "/api/v1/nodes", token=bearer)
        it.ask("GET", "pods", token=bearer, query={"watch": "1"})
        it.ask("DELETE", "pods/p", token=bearer)
        it.ask("PATCH", "pods/p/status", {}, token=bearer, content_type=MERGE)
        it.ask("POST", "serviceaccounts/a/token", {}, token=bearer)
        it.ask("GET", f"{POOLS}/runnerpools", token=bearer)
        it.ask("GET", "pools/w", token=bearer)


@probe
def definitions(it: Recorder) -> None:
    """A definition is accepted, established and served, and can be applied again."""
    group = f"{it.namespace}.dev"
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    names = {"plural": "things", "kind": "Thing", "listKind": "ThingList", "singular": "thing"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    path, things = f"{DEFINITIONS}/things.{group}", f"/apis/{group}/v1/things"
    it.ask("GET", path)
    it.ask("GET", things)
    it.quietly("POST", DEFINITIONS, body)
    it.ask("POST", DEFINITIONS, body)
    it.wait(path, lambda _, found: _established(found))
    it.wait(things, lambda status, _: status == 200)
    it.ask("PATCH", path, body, content_type=MERGE)
    place = f"/apis/{group}/v1/namespaces/{it.namespace}/things"
    it.ask(
        "POST",
        place,
        {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1, "x": 1}},
    )
    it.ask("PATCH", f"{place}/t", {"spec": {"size": "2"}}, content_type=MERGE)
    it.quietly("DELETE", path)


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()  # null at first
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@probe
def pools(it: Recorder) -> None:
    """RunnerPools under the schema of their definition."""
    made = it.ask("POST", "pools", pool_body("w", SPEC))
    it.ask("POST", "pools", pool_body("w", SPEC))
    for spec in (
        {"image": "r"},
        {"runnerLabels": ["a"]},
        {**SPEC, "runnerLabels": []},
        {**SPEC, "replicas": -1},
        {**SPEC, "replicas": "3"},
        {**SPEC, "replicas": 1.5},
        {**SPEC, "replicas": True},
        {**SPEC, "image": ""},
        {**SPEC, "runnerLabels": [str(number) for number in range(101)]},
        {**SPEC, "runnerLabels": ["x" * 257, ""]},
        {**SPEC, "image": 5, "replicas": -2},
        {**SPEC, "resources": {"cpu": [1]}},
        {**SPEC, "resources": {"cpu": 1.5}},
        {**SPEC, "allowedAccounts": [2**40, "x"]},
        "no object",
    ):
        it.ask("POST", "pools", pool_body("bad", spec))
    full = {**SPEC, "resources": {"cpu": "1500m"}, "allowedAccounts": [2**40], "replicas": None, "unknown": {"x": 1}}
    it.ask("POST", "pools", {**pool_body("full", full), "more": 4, "status": {"x": 1}})
    it.ask("POST", "pools", pool_body("Bad_Name", SPEC))
    it.ask("POST", "pools", {key: value for key, value in pool_body("bad", SPEC).items() if key != "spec"})
    it.ask("POST", "pools", {key: value for key, value in pool_body("bad", SPEC).items() if key != "apiVersion"})
    it.ask("POST", "pools", {"metadata": {"name": "bad"}, "spec": SPEC})
    it.ask("POST", "pools", {**pool_body("bad", SPEC), "kind": "Other"})
    it.ask("GET", "pools/w")
    it.ask("GET", "pools/nobody")
    it.ask("GET", "pools")
    it.ask("GET", "pools", query={"limit": "1"})
    it.ask("GET", "pools", accept=PARTIAL_LIST)

    def patch(path: str, body: Any) -> None:
        it.ask("PATCH", path, body, content_type=MERGE)

    patch("pools/w", {"spec": {"replicas": 3}})
    patch("pools/w", {"spec": {"replicas": 3}})
    patch("pools/w", {"spec": {"replicas": -3}})
    patch("pools/w", {"spec": {"image": None}})
    patch("pools/w", {"spec": {"unknown": 1}, "status": {"x": 2}})
    patch("pools/w", {"metadata": {"labels": {"a": "b"}}})
    patch("pools/w/status", {"status": {"warm": 2}, "spec": {"replicas": 9}, "metadata": {"labels": {"z": "z"}}})
    patch("pools/w", {"metadata": {"uid": OTHER_UID}})
    patch("pools/w", {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}})
    patch("pools/nobody", {"spec": {}})
    it.ask("PATCH", "pools/w", [{"op": "test", "path": "/spec/replicas", "value": 99}], content_type=PATCH)
    it.ask("PATCH", "pools/w", {}, content_type="application/json")
    it.ask("DELETE", "pools/w", {"preconditions": {"uid": OTHER_UID}})
    it.ask("DELETE", "pools/w", query={"propagationPolicy": "Sideways"})
    it.ask("DELETE", "pools/w", query={"propagationPolicy": "Background"})
    it.ask("DELETE", "pools/w")
    it.watch("pools", {"resourceVersion": "0"})


@probe
def nodes(it: Recorder) -> None:
    """A Node as the kubelet registers and reports it."""
    path = f"/api/v1/nodes/{it.namespace}"
    it.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": it.namespace}})
    it.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": it.namespace}})
    it.ask("PATCH", path, {"spec": {"taints": None}}, content_type=MERGE)
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    spec = {"holderIdentity": it.namespace, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": it.namespace}, "spec": spec}
    it.ask("PATCH", f"{leases}/{it.namespace}", lease, content_type=MERGE)
    it.ask("POST", leases, lease)
    it.ask("PATCH", f"{leases}/{it.namespace}", lease, content_type=MERGE)
    it.ask("DELETE", f"{leases}/{it.namespace}")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    status = {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}, "conditions": [ready]}
    it.ask("PATCH", f"{path}/status", {"status": status}, content_type=MERGE)
    it.ask("GET", path)
    for cordoned in (False, True):
        it.quietly("PATCH", path, {"spec": {"unschedulable": cordoned or None}}, content_type=MERGE)
        for value in ("true", "false"):
            query = {"fieldSelector": f"spec.unschedulable={value},metadata.name={it.namespace}"}
            it.ask("GET", "/api/v1/nodes", accept=PARTIAL_LIST, query=query)
    it.ask("PATCH", f"{path}-none", {}, content_type=MERGE)
    it.ask("DELETE", path)


@probe
def collection(it: Recorder) -> None:
    """The end of the Pods and ServiceAccounts of a deleted pool."""
    account(it)

    def runner(name: str, references: list[Json], *, on_a_node: bool = False) -> None:
        pod(it, name, ownerReferences=references)
        account(it, f"{name}-account", ownerReferences=references)
        if on_a_node:
            bind(it, name)

    def none_left(_status: int, listed: Json) -> bool:
        return not [each for each in listed["items"] if "deletionTimestamp" not in each["metadata"]]

    def is_gone(status: int, _body: Any) -> bool:
        return status == 404

    owner = pool(it, "background")
    runner("unidentified", owned_by(owner))
    runner("bound", owned_by(owner), on_a_node=True)
    it.ask("DELETE", "pools/background", query={"propagationPolicy": "Background"})
    it.wait("pods", none_left)
    it.wait("serviceaccounts/bound-account", is_gone)

    owner = pool(it, "held", finalizers=["ostler.dev/drain"])
    runner("kept", owned_by(owner))
    it.ask("DELETE", "pools/held")
    it.ask("GET", "pods/kept")
    it.ask("PATCH", "pools/held", {"metadata": {"finalizers": None}}, content_type=MERGE)
    it.wait("pods/kept", is_gone)

    owner = pool(it, "foreground")
    runner("first", owned_by(owner, blockOwnerDeletion=True), on_a_node=True)
    it.ask("DELETE", "pools/foreground", query={"propagationPolicy": "Foreground"})
    it.wait("pods/first", lambda _, found: "deletionTimestamp" in found["metadata"])
    it.ask("GET", "pools/foreground")
    it.ask("DELETE", "pods/first", {"gracePeriodSeconds": 0})
    it.wait("pools/foreground", is_gone)

    owner = pool(it, "orphan")
    runner("orphan", owned_by(owner))
    # A collector that does not know the Pod yet would delete it. One that collects a later Pod knows it.
    runner("later", owned_by(pool(it, "later")))
    it.ask("DELETE", "pools/later", query={"propagationPolicy": "Background"})
    it.wait("pods/later", is_gone)
    it.ask("DELETE", "pools/orphan", query={"propagationPolicy": "Orphan"})
    it.wait("pools/orphan", is_gone)
    it.ask("GET", "pods/orphan", accept=PARTIAL)

    nobody = {
        "apiVersion": "ostler.dev/v1alpha1",
        "kind": "RunnerPool",
        "metadata": {"name": "nobody", "uid": OTHER_UID},
    }
    runner("late", owned_by(nobody))
    it.wait("pods/late", is_gone)


@probe
def events(recorder: Recorder) -> None:
    """Events of a worker about a pool."""
    path = f"/apis/events.k8s.io/v1/namespaces/{recorder.namespace}/events"
    about = {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", "name": "pool", "uid": OTHER_UID}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "metadata": {"name": "pool.1", "namespace": recorder.namespace},
        "reportingController": "ostler.dev/worker",
        "reportingInstance": "worker:1",
        "action": "ScaledUp",
        "reason": "ScaledUp",
        "regarding": {**about, "namespace": recorder.namespace},
        "note": "1 to 2",
        "type": "Normal",
    }
    recorder.ask("POST", path, event)
    recorder.ask("POST", path, event)
    recorder.ask("GET", path)


@probe
def events_about_a_pod(recorder: Recorder) -> None:
    """Events of other components about a Pod, with a worker's selector and by known and unknown fields."""
    path = f"/apis/events.k8s.io/v1/namespaces/{recorder.namespace}/events"
    names = (("a", OTHER_UID, "Killing"), ("a", None, "TaintManagerEviction"), ("b", OTHER_UID, "Killing"))
    for number, (name, uid, reason) in enumerate(names):
        about = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": recorder.namespace}
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "eventTime": "2026-01-02T03:04:05.000006Z",
            "metadata": {"name": f"{name}.{number}", "namespace": recorder.namespace},
            "reportingController": "kubelet",
            "reportingInstance": "node-1",
            "action": reason,
            "reason": reason,
            "regarding": about if uid is None else {**about, "uid": uid},
            "note": "said",
            "type": "Normal",
        }
        recorder.ask("POST", path, event)
    for selector in (
        "regarding.kind=Pod,regarding.name=a",
        "regarding.kind=Node,regarding.name=a",
        "regarding.name!=a",
        f"regarding.uid={OTHER_UID}",
        "regarding.uid=",
        "reason=Killing",
        "type=Warning",
        "reportingController=kubelet",
        f"regarding.namespace={recorder.namespace}",
        "regarding.apiVersion=v1",
        "regarding.resourceVersion=",
        "regarding.fieldPath=",
        "metadata.name=a.0",
        "involvedObject.name=a",
        "note=said",
    ):
        recorder.ask("GET", path, query={"fieldSelector": selector, "limit": "100"})
