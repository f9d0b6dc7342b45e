"""The reason why a Pod ended is in its row before the Pod is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json
from ostler.errors import Retryable
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import kept

OOM = {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}
ENDS: tuple[tuple[Json, Json, tuple[str | None, int | None]], ...] = (
    ({}, OOM, ("OOMKilled (9)", 137)),
    ({}, {"exitCode": 137, "reason": "OOMKilled"}, ("OOMKilled", 137)),  # as containerd reports it, without the signal
    ({"reason": "Evicted", "message": "s3cret"}, {}, ("Evicted", None)),
    ({"reason": "NodeLost"}, {}, ("NodeLost", None)),
    (
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]},
        {},
        ("DeletionByPodGC", None),
    ),
    ({}, {"exitCode": 143, "signal": 15}, ("signal (15)", 143)),
    ({}, {"exitCode": 255, "reason": "Unknown"}, ("Unknown", 255)),
)


def test_it_is_stored_whatever_it_was(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=len(ENDS))
    kept(stage)
    names = sorted(stage.pods())
    for name, (status, ended, _) in zip(names, ENDS, strict=True):
        end(stage, name, status, ended)

    def refuse(*_: Any, **__: Any) -> None:
        raise Retryable("no answer")

    with monkeypatch.context() as broken:  # the reconciler gets as far as the deletion
        broken.setattr("tasks.pools.finished_pods.delete_runner", refuse)
        kept(stage)
    found = {
        row.name: (row.exit_reason, row.runner_exit_code)
        for row in stage.rows(
            "SELECT name, exit_reason, runner_exit_code FROM runner_pods WHERE terminal_at > now() - interval '1 h'"
        )
    }
    assert found == {name: stored for name, (_, _, stored) in zip(names, ENDS, strict=True)}
    kept(stage)
    assert set(stage.pods()).isdisjoint(names)
    assert len(stage.pods()) == len(ENDS)


def end(stage: Stage, name: str, status: Json, ended: Json) -> None:
    """Write the status of the kubelet, or of the controller that acts for a lost one."""
    containers = [
        {
            "name": "runner",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
    ]
    body = {"status": {"phase": "Failed", **status, **({"containerStatuses": containers} if ended else {})}}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status"
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
