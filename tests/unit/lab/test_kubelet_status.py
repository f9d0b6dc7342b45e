"""The kubelet's report of a Pod's end: the last status is sent even if the Pod is deleted."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from lab.kubelet.cluster import Cluster, PodKey
from lab.kubelet.pods import PodView
from lab.kubelet.status import StatusReporter

POD = PodView(
    key=PodKey(name="spent", uid="uid"),
    account="spent",
    node="node",
    phase="Running",
    deleted=False,
    images={"poller": "p", "runner": "r"},
    environment={},
    token=None,
)


class SlowServer:
    """An API server that answers a report on command."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.phases: list[str] = []

    async def report(self, _pod: PodKey, status: dict[str, Any]) -> None:
        await self.may_answer.wait()
        self.phases.append(status["phase"])


async def deleted_while_it_ends() -> list[str]:
    server = SlowServer()
    report = StatusReporter(cluster=cast("Cluster", server), pod=POD)
    life = asyncio.create_task(report.finish(code_of_the_rest=0))
    await asyncio.sleep(0.01)
    life.cancel()  # the Pod is deleted
    with contextlib.suppress(asyncio.CancelledError):
        await life
    server.may_answer.set()
    await report.sent()
    return server.phases


def test_a_pod_that_is_deleted_while_it_ends_gets_its_last_status() -> None:
    assert asyncio.run(asyncio.wait_for(deleted_while_it_ends(), 10))[-1] == "Succeeded"
