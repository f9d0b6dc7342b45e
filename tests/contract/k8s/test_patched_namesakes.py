"""Patches of a Pod that is removed while a Pod of the same name is created: the new Pod stays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event

import pytest

from k8s_adapters.calls.client import Json, KubeClient, make_client, object_path
from k8s_adapters.runners.deadlines import set_deadline
from k8s_adapters.runners.stamps import annotate_job, stamp, unstamp
from lab.control_plane import ClusterAccess
from ostler.errors import Conflict, Gone
from rules.upstream.retry import ONCE

ROUNDS = 40
PATCHERS = 4

Patch = Callable[[KubeClient, str, str, str], object]


def put_stamp(client: KubeClient, namespace: str, name: str, uid: str) -> object:
    return stamp(client, namespace=namespace, name=name, uid=uid, expected="0.0", value="0.0", owner=1, policy=ONCE)


def take_stamp(client: KubeClient, namespace: str, name: str, uid: str) -> object:
    return unstamp(client, namespace=namespace, name=name, uid=uid, expected="0.0", value="0.0", policy=ONCE)


def put_job(client: KubeClient, namespace: str, name: str, uid: str) -> object:
    values = ["r", "w", "j"]
    return annotate_job(client, namespace=namespace, name=name, uid=uid, stamp="0.0", values=values, policy=ONCE)


def put_deadline(client: KubeClient, namespace: str, name: str, uid: str) -> object:
    return set_deadline(client, namespace=namespace, name=name, uid=uid, seconds=600, policy=ONCE)


@pytest.mark.cluster  # the small API server removes a Pod in one step
@pytest.mark.parametrize("patch", [put_stamp, take_stamp, put_job, put_deadline])
def test_a_new_pod_stays_while_clients_patch_the_old_one(
    admin: KubeClient, namespace: str, control_plane: ClusterAccess, patch: Patch
) -> None:
    clients = [make_client(kubeconfig=str(control_plane.kubeconfig)) for _ in range(PATCHERS)]
    lost = []
    with ThreadPoolExecutor(PATCHERS + 1) as threads:
        for number in range(ROUNDS):
            name = f"p{number}"
            uid = create(admin, namespace, name)
            path = object_path("pods", namespace=namespace, name=name)
            admin.request("DELETE", path)
            together, made = Barrier(PATCHERS + 2), Event()
            again = threads.submit(make_again, admin, namespace, name, together, made)
            for client in clients:
                threads.submit(keep_patching, partial(patch, client, namespace, name, uid), together, made)
            together.wait(60)
            admin.request("DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            new = again.result(60)
            for each in range(3):  # the second step of the API server might still be running
                found = find(admin, path)
                if found is None or found["metadata"]["uid"] != new:
                    lost.append((number, each))
    for client in clients:
        client.close()
    assert lost == []


def create(admin: KubeClient, namespace: str, name: str) -> str:
    """Create a Pod on a node, so that a deletion leaves it terminating, and return its UID."""
    metadata: Json = {"name": name, "annotations": {"ostler.dev/claim": "0.0"}, "labels": {"of": "test"}}
    spec = {"nodeName": namespace, "containers": [{"name": "c", "image": "i"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    found: str = admin.request("POST", object_path("pods", namespace=namespace), body=body)["metadata"]["uid"]
    return found


def make_again(admin: KubeClient, namespace: str, name: str, together: Barrier, made: Event) -> str:
    """Create a Pod of this name as soon as the API server has removed the old one."""
    together.wait(60)
    try:
        while True:
            try:
                return create(admin, namespace, name)
            except Conflict:
                continue
    finally:
        made.set()


def keep_patching(patch: Callable[[], object], together: Barrier, made: Event) -> None:
    together.wait(60)
    while not made.is_set():
        patch()


def find(admin: KubeClient, path: str) -> Json | None:
    try:
        return admin.request("GET", path)
    except Gone:
        return None
