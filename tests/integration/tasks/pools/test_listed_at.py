"""`pools.listed_at`: a list shows the Pods at the time at which the list began."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from k8s_adapters.runners.pods import list_pods
from ostler.clock import utcnow
from rules.claims.pod_view import PodView
from tasks.pools import observe
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import kept


def test_listed_at_is_the_time_before_the_list(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Pod that is created late, during the list, is missing from it. The list proves nothing about this Pod (L8)."""
    stage.pool(replicas=1)
    kept(stage)
    began: list[datetime] = []

    def listing(*given: Any, **named: Any) -> Sequence[PodView]:
        began.append(utcnow())
        return list_pods(*given, **named)

    monkeypatch.setattr(observe, "list_pods", listing)
    ((pool_id,),) = stage.rows("SELECT id FROM pools")
    reconcile.run(pool_id=pool_id)  # as after a wake, so it makes a list of its own

    (pool,) = stage.rows("SELECT listed_at FROM pools")
    assert pool.listed_at <= began[-1]
