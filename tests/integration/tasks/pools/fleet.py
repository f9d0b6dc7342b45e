"""Builders for tests of one pool: polls, claims, kubelet reports and runs of the reconciler."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from k8s_adapters.calls.client import MERGE_PATCH, Json, object_path
from k8s_adapters.names import OWNER_LABEL
from ostler.errors import Forbidden
from rules.claims.pod_view import PodView
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.worker import nodes
from tests.integration.tasks.conftest import Stage
from tests.waiting import eventually

OLD, NEW = "runner:1", "runner:2"


def kept(stage: Stage) -> None:
    """Mirror the pools, and reconcile each once."""
    nodes.clear()
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(pool_id=message["pool_id"], shared=message.get("shared", False))


def woken(stage: Stage) -> None:
    """Mirror the pools, and reconcile each once as after a wake: with a list of its own."""
    nodes.clear()
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(pool_id=message["pool_id"])


def retired(stage: Stage) -> None:
    """Run the sent retirements."""
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)
    stage.outbox.take("ostler.reconcile")


def rounds(stage: Stage, count: int, *, polling: bool = True) -> None:
    """Run the reconciler `count` times. In between, run the retirements and let new Pods poll."""
    for _ in range(count):
        kept(stage)
        retired(stage)
        if polling:
            polls(stage)
        new_tick(stage)


def polls(stage: Stage, *names: str) -> None:
    """Let these Pods poll, or all created Pods if none is named."""
    stage.rows(
        """
        UPDATE runner_pods SET first_polled_at = coalesce(first_polled_at, now()), polled_at = now()
        WHERE uid IS NOT NULL AND gone_at IS NULL AND (name = ANY(:names) OR :all)
        """,
        names=list(names),
        all=not names,
    )


def new_tick(stage: Stage) -> None:
    """Start a new period of the budget of retirements."""
    stage.rows("UPDATE pools SET tick_at = now() - interval '1 min'")


def beats(stage: Stage) -> None:
    """Record heartbeats of a web process for the past and the next hour."""
    stage.rows("INSERT INTO web_instances VALUES ('w', now() - interval '1 hour', now() + interval '1 hour')")


def spec(stage: Stage, name: str = "small", **changed: Any) -> None:
    """Change a pool's spec."""
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/{name}"
    stage.kube.request("PATCH", path, body={"spec": changed}, content_type=MERGE_PATCH)


def status(stage: Stage, name: str = "small") -> Json:
    """Return a pool's status from the API server."""
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/{name}"
    found: Json = stage.kube.request("GET", path).get("status") or {}
    return found


def condition(stage: Stage, kind: str, name: str = "small") -> Json:
    """Return the present condition of a pool."""
    stage.rows("UPDATE pools SET status_at = NULL")
    kept(stage)
    found: Json = next(each for each in status(stage, name)["conditions"] if each["type"] == kind)
    return found


def the_pool(stage: Stage) -> Row[Any]:
    """Return the row of the only pool."""
    (row,) = stage.rows("SELECT * FROM pools")
    return row


def images(stage: Stage) -> dict[str, list[str]]:
    """Return the names of the living Pods by their image, oldest row first."""
    found: dict[str, list[str]] = {OLD: [], NEW: []}
    items = stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods")["items"]
    for item in items:
        if "deletionTimestamp" not in item["metadata"]:
            found.setdefault(item["spec"]["containers"][1]["image"], []).append(item["metadata"]["name"])
    return {image: sorted(names) for image, names in found.items()}


def reasons(stage: Stage) -> dict[str, str]:
    """Return the reason of each Pod's retirement, by the Pod's name."""
    rows = stage.rows("""
        SELECT p.name, c.release_reason FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
        WHERE c.purpose = 'retire'
    """)
    return {row.name: row.release_reason for row in rows}


def stamp(stage: Stage, pod: PodView) -> None:
    """Put the owner label on a Pod, as a stamp does."""
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod.name}"
    body = {"metadata": {"labels": {OWNER_LABEL: "1"}}}
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def kubelet_says(stage: Stage, name: str, *, waiting: str) -> None:
    """Write the kubelet's status of a Pod whose container `runner` waits for the given reason."""
    container = {
        "name": "runner",
        "image": OLD,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": waiting, "message": "s3cret"}},
    }
    body = {"status": {"phase": "Pending", "containerStatuses": [container]}}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status"
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def no_node_takes(stage: Stage, name: str) -> None:
    """Write the scheduler's condition that no node has room for a Pod."""
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status"
    stage.kube.request("PATCH", path, body={"status": {"conditions": [told]}}, content_type=MERGE_PATCH)


def limit_pods(stage: Stage, count: int) -> str:
    """Create a quota of Pods, wait until the API server applies it, and return its path."""
    path = object_path("resourcequotas", namespace=stage.namespace)
    stage.kube.request("POST", path, body={"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(count)}}})
    eventually(lambda: "hard" in (stage.kube.request("GET", f"{path}/few").get("status") or {}))
    pod = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    def applies() -> bool:
        try:
            stage.kube.request(
                "POST", object_path("pods", namespace=stage.namespace), body=pod, query={"dryRun": "All"}
            )
        except Forbidden:
            return True
        return False

    if count == 0:  # the admission reads quotas from a cache, which can be older than the status
        eventually(applies)
    return f"{path}/few"
