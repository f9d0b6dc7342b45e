"""A JIT whose answer is dropped and not reset: the Pod gets the same JIT with its next poll (law L11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.toxiproxy import Toxiproxy
from tests.integration.web.polls.stage import JIT, Pod, Stage, WebProcess
from tests.waiting import eventually

Send = Callable[[dict[str, Any]], Awaitable[None]]


class BeforeTheFirstByte:
    """A hook that calls `act` after the commit of `delivered`, when web passes its first answer to the server."""

    def __init__(self, web: WebProcess, act: Callable[[], None]) -> None:
        config = web._server.config
        self._app, self._act, self._done = config.loaded_app, act, False
        config.loaded_app = self

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        async def acting(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200 and not self._done:
                self._done = True
                self._act()
            await send(message)

        await self._app(scope, receive, acting)


def poll(port: int, pod: Pod, *, patience: float) -> httpx.Response:
    with httpx.Client(timeout=patience) as client:
        headers = {"Authorization": f"Bearer {pod.token}", "Accept": "application/json"}
        return client.post(f"http://127.0.0.1:{port}/runners/v1/dispatch", headers=headers)


@pytest.mark.cluster  # Toxiproxy is built from Go modules
@pytest.mark.parametrize("dropped", ["before the commit", "after the commit"])
def test_a_pod_gets_the_same_jit_again_when_its_answer_was_dropped(stage: Stage, tmp_path: Path, dropped: str) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    clients = ThreadPoolExecutor(1)
    with Toxiproxy(tmp_path / "wire", {"web": int(web.url.rpartition(":")[2])}) as wire:
        port = wire.ports["web"]
        if dropped == "after the commit":
            BeforeTheFirstByte(web, lambda: wire.silence("web"))
        lost = clients.submit(poll, port, pod, patience=20)
        eventually(lambda: stage.is_offered(pod))
        claim_id = stage.claim(pod, state="claimed")
        if dropped == "before the commit":
            wire.silence("web")
        stage.mint(claim_id)
        eventually(lambda: stage.state(claim_id) == "delivered")
        with pytest.raises(httpx.TransportError):
            lost.result(90)

        wire.restore("web")
        again = poll(port, pod, patience=90)
    clients.shutdown()
    assert again.status_code == 200
    assert (again.json()["jit_config"], again.json()["claim_id"]) == (JIT, claim_id)
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["delivery.first"] == 1
    assert web.web.counts["delivery.again"] == 1
