"""Faults between a client and a real API server, injected into the client's transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import urllib3

from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.runners.resources import Created
from k8s_adapters.runners.runners import create_runner
from lab.control_plane import ClusterAccess
from ostler.clock import Timing
from rules.pools.pool_spec import PoolSpec

MakeRunner = Callable[..., Created]


class FaultyTransport:
    """A transport that injects one planned fault per call of a method, and then passes calls on."""

    def __init__(self, client: KubeClient) -> None:
        self._real = client._api.rest_client.pool_manager
        self._plan: dict[str, deque[Callable[[Callable[[], Any]], Any]]] = {}
        self.calls: list[str] = []
        client._api.rest_client.pool_manager = self  # type: ignore[assignment]

    def lose_reply(self, method: str) -> None:
        """Apply the next call of this method, and lose its reply."""

        def fault(send: Callable[[], Any]) -> Any:
            send()
            raise urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset"))

        self._add(method, fault)

    def answer(self, method: str, status: int, **headers: str) -> None:
        """Answer the next call of this method here. The call is not applied."""

        def fault(_send: Callable[[], Any]) -> Any:
            return urllib3.HTTPResponse(
                body=b'{"kind":"Status"}',
                status=status,
                headers={key.replace("_", "-"): text for key, text in headers.items()},
            )

        self._add(method, fault)

    def before(self, method: str, action: Callable[[], object]) -> None:
        """Call `action` directly before the next call of this method is sent."""

        def fault(send: Callable[[], Any]) -> Any:
            action()
            return send()

        self._add(method, fault)

    def _add(self, method: str, fault: Callable[[Callable[[], Any]], Any]) -> None:
        self._plan.setdefault(method, deque()).append(fault)

    def urlopen(self, method: str, url: str, **kwargs: Any) -> Any:
        self.calls.append(method)

        def send() -> Any:
            return self._real.urlopen(method, url, **kwargs)

        planned = self._plan.get(method)
        return planned.popleft()(send) if planned else send()

    def clear(self) -> None:
        self._real.clear()


def faulty_client(access: ClusterAccess) -> tuple[KubeClient, FaultyTransport]:
    """Return an administrator's client that does not wait between attempts, and its faults."""
    client = make_client(kubeconfig=str(access.kubeconfig), timing=Timing(sleep=lambda _seconds: None))
    return client, FaultyTransport(client)


def maker(admin: KubeClient, pool: PoolSpec, *, default: str) -> MakeRunner:
    """Return a function that creates a runner of a pool. The runner has the name `default` unless a name is given."""

    def make(name: str = default, *, attempt: str = "a1", client: KubeClient | None = None) -> Created:
        return create_runner(
            client or admin,
            pool=pool,
            name=name,
            attempt=attempt,
            dispatch_url="http://web/",
            audience="ostler-dispatch",
        )

    return make
