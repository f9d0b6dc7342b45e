"""Several reconcilers of one pool that have read the same list: no act of one of them is repeated by the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from k8s_adapters.runners.pods import list_pods
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import beats, kept, polls, reasons, spec, the_pool

RECONCILERS = 4


def together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run several reconcilers of the pool. All of them have listed before any continues, and they share no work."""
    met = threading.Barrier(RECONCILERS)
    failures: list[BaseException] = []

    def listed(*args: Any, **named: Any) -> Any:
        found = list_pods(*args, **named)
        met.wait(60)
        return found

    pool_id = the_pool(stage).id

    def run() -> None:
        try:
            reconcile.run(pool_id=pool_id)
        except BaseException as error:  # noqa: BLE001  told by the test
            failures.append(error)

    with monkeypatch.context() as patched:
        patched.setattr("tasks.pools.observe.list_pods", listed)
        patched.setattr(stage.outbox, "single_flight", everybody)
        threads = [threading.Thread(target=run) for _ in range(RECONCILERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert failures == []


@contextmanager
def everybody(_: str) -> Iterator[bool]:
    """Redis has lost the keys of the running reconcilers."""
    yield True


def test_reconciler_with_more_to_create_requests_the_next_reconcile_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.pools.plan.MAX_CREATIONS", 2)
    stage.pool(replicas=3)
    kept(stage)
    (message,) = stage.outbox.take("ostler.reconcile")
    assert message["after"] > 0
    kept(stage)
    assert len(stage.pods()) == 3
    assert stage.outbox.take("ostler.reconcile") == []


def test_they_create_what_is_missing_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=0)
    kept(stage)
    stage.rows("UPDATE pools SET replicas = 3")
    spec(stage, replicas=3)
    together(stage, monkeypatch)
    assert len(stage.pods()) == 3
    assert len(stage.service_accounts() - {"default"}) == 3
    rows = stage.rows("SELECT uid FROM runner_pods WHERE gone_at IS NULL")
    assert {row.uid for row in rows} == {pod.uid for pod in stage.pods().values()}


def test_they_retire_what_is_too_many_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=4)
    kept(stage)
    polls(stage)
    stage.rows("UPDATE pools SET replicas = 2")
    together(stage, monkeypatch)
    assert len(reasons(stage)) == 2


def test_they_roll_one_share_and_count_one_failure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=4)
    kept(stage)
    names = sorted(stage.pods())
    polls(stage, *names[1:])
    beats(stage)
    stage.rows("UPDATE runner_pods SET template_hash = 'old' WHERE name <> :name", name=names[0])
    stage.rows("UPDATE pools SET start_timeout = 0")
    together(stage, monkeypatch)
    assert list(reasons(stage)) == [names[0]]  # its place is the share
    assert the_pool(stage).failed_starts == 1
