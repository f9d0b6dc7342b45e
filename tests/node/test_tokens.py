"""Rotation of a Pod's token by a real kubelet: the poller reads the new token, and the Pod gets a job with it.

Ostler requests a token for an hour, and no setting or pool shortens it. The kubelet would rotate it after 48 minutes.
An admission policy of the cluster therefore changes the request to the shortest life that the API server accepts.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import Fleet
from tests.node.conftest import SMALL
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

LIFE = 600
"""Seconds that a token is valid: the shortest life that the API server accepts."""

ROTATED_AT = 0.8 * LIFE - 10
"""Seconds after which the kubelet rotates such a token at the earliest: 80 % of its life, less a random time."""

HOLD = 60
"""Seconds within which web answers every poll."""

POOL = "brief"
LABELS = ("self-hosted", "linux", POOL)
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
INDEX = "string(object.spec.volumes.map(volume, volume.name).indexOf('token'))"
FIELD = f'"/spec/volumes/" + {INDEX} + "/projected/sources/0/serviceAccountToken/expirationSeconds"'
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
POLICY: dict[str, Any] = {
    "metadata": {"name": POOL},
    "spec": {
        "matchConstraints": {"resourceRules": [RULE]},
        "matchConditions": [
            {"name": "pool", "expression": f"object.metadata.?labels[?'ostler.dev/pool'].orValue('') == '{POOL}'"}
        ],
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": f'[JSONPatch{{op: "replace", path: {FIELD}, value: {LIFE}}}]'},
            }
        ],
    },
}


def lives(pod: Mapping[str, Any]) -> list[int]:
    """Return the lifetime, in seconds, of the token that each volume of a Pod requests."""
    sources = [source for volume in pod["spec"]["volumes"] for source in volume.get("projected", {}).get("sources", ())]
    return [each["serviceAccountToken"]["expirationSeconds"] for each in sources if "serviceAccountToken" in each]


def is_applied(fleet: Fleet) -> bool:
    """Return whether the API server applies the policy, as it does a moment after the creation of the policy."""
    token = {"serviceAccountToken": {"audience": "any", "expirationSeconds": 3600, "path": "token"}}
    volumes = [{"name": "jit", "emptyDir": {}}, {"name": "token", "projected": {"sources": [token]}}]
    body = {
        "metadata": {"name": "never-made", "labels": {"ostler.dev/pool": POOL}},
        "spec": {"containers": [{"name": "main", "image": "none"}], "volumes": volumes},
    }
    path = f"/api/v1/namespaces/{fleet.system.namespace}/pods"
    return LIFE in lives(fleet.kube.request("POST", path, query={"dryRun": "All"}, body=body))


@pytest.fixture
def pod(fleet: Fleet) -> Iterator[str]:
    """Yield the name of the only Pod of a pool whose tokens are valid for `LIFE` seconds."""
    policies, bindings = f"{ADMISSION}/mutatingadmissionpolicies", f"{ADMISSION}/mutatingadmissionpolicybindings"
    fleet.kube.request("POST", policies, body=POLICY)
    fleet.kube.request("POST", bindings, body={"metadata": {"name": POOL}, "spec": {"policyName": POOL}})
    eventually(lambda: is_applied(fleet), "the admission policy is not applied", within=60)
    fleet.add_pool(replace(SMALL, name=POOL, labels=LABELS, replicas=1))
    fleet.wait_until_whole(POOL)
    [name] = fleet.pods(POOL)
    yield name
    fleet.delete_pool(POOL)
    for path in (bindings, policies):
        fleet.kube.request("DELETE", f"{path}/{POOL}")


def token_file(fleet: Fleet, pod: str) -> Path:
    """Return the file in which the kubelet keeps the token of a Pod."""
    found = fleet.pods(POOL)[pod]
    node = next(each for each in fleet.system.real_nodes if each.name == found["spec"]["nodeName"])
    volumes: Path = node.folder / "kubelet" / "pods" / found["metadata"]["uid"] / "volumes"
    return volumes / "kubernetes.io~projected" / "token" / "token"


def claims(file: Path) -> dict[str, Any]:
    """Return the claims of the token in a file."""
    payload = file.read_text().split(".")[1]
    found: dict[str, Any] = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def test_pod_polls_with_the_rotated_token_and_runs_a_job(fleet: Fleet, pod: str) -> None:
    assert lives(fleet.pods(POOL)[pod]) == [LIFE]
    file = token_file(fleet, pod)
    first = claims(file)
    assert first["exp"] - first["iat"] == LIFE

    def rotated() -> dict[str, Any] | None:
        found = claims(file)
        return found if found["jti"] != first["jti"] else None

    second = eventually(rotated, "the token is not rotated", within=LIFE)
    assert first["iat"] + ROTATED_AT <= second["iat"] < first["exp"]

    # From its expiry on, web refuses the first token. Each poll that began before has ended when the hold is over.
    eventually(lambda: time.time() > first["exp"] + HOLD, within=LIFE)
    [job] = fleet.send(labels=LABELS, duration_seconds=1)

    over = fleet.wait_for(job, "completed")
    assert (over["conclusion"], over["executions"]) == ("success", 1)
    assert fleet.pod_of(job) == pod
