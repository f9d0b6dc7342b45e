"""A reconciler in a separate process that is killed with SIGKILL at its n-th step.

A step is the moment before or after a call to the cluster, or before a commit. Between two steps nothing happens that
another process can see. With `writes`, a step is only the moment before a call that changes the cluster, or before a
commit. These steps have the same states of the cluster and of Postgres, each of them once.
"""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

from sqlalchemy import event

from k8s_adapters.calls import client
from k8s_adapters.calls.client import make_client
from models.db.engine import make_engine
from ostler.secrets import Secret
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.worker import runtime as current
from tests.integration.tasks.conftest import StubRuntime


def live(url: str, kubeconfig: str, namespace: str, pool_id: int, step: int, *, writes: bool = False) -> None:
    """Reconcile a pool, run the retirements and reconcile it again, and die at the given step."""
    rt = die_at(step, url=url, kubeconfig=kubeconfig, namespace=namespace, writes=writes)
    reconcile.run(pool_id=pool_id)
    for message in rt.waker.take("ostler.retire"):
        retire.run(**message)
    reconcile.run(pool_id=pool_id)


def tick(url: str, kubeconfig: str, namespace: str, step: int) -> None:
    """List the Pods of all pools once, reconcile each pool with its share, and die at the given step."""
    rt = die_at(step, url=url, kubeconfig=kubeconfig, namespace=namespace)
    pools.run()
    messages = rt.waker.take("ostler.reconcile")
    assert {message.get("shared") for message in messages} == {True}
    for message in messages:
        reconcile.run(**message)


def die_at(step: int, *, url: str, kubeconfig: str, namespace: str, writes: bool = False) -> StubRuntime:
    """Install a runtime in which this process dies at the given step, and return it."""
    steps = iter(range(1, step))

    def count() -> None:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    send = client.KubeClient._send

    def counted(*args: Any, **named: Any) -> Any:
        if not writes or "GET" not in args:
            count()
        answer = send(*args, **named)
        if not writes:
            count()
        return answer

    client.KubeClient._send = counted  # type: ignore[method-assign]
    engine = make_engine(Secret(url), pool_size=5, application="mortal")
    event.listen(engine, "commit", lambda _: count())
    database: Any = SimpleNamespace(engine=engine)
    rt = StubRuntime(database, make_client(kubeconfig=kubeconfig), namespace)
    current.install(rt)  # type: ignore[arg-type]
    return rt
