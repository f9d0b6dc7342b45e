"""Mendings of `make chaos`: each runs once, and a pool is created again only while its name is free or draining."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from k8s_adapters.client import KubeClient
from lab.bootstrap import POOLS
from lab.chaos import people
from lab.chaos.breaker import Breaker, Mending
from lab.chaos.people import People
from lab.system import System
from ostler.errors import Conflict


class FoundPool:
    def __init__(self, *, terminating: bool) -> None:
        self.terminating = terminating


@pytest.mark.parametrize(
    ("found", "repeated"),
    [(None, True), (FoundPool(terminating=True), True), (FoundPool(terminating=False), False)],
    ids=["gone", "draining", "there"],
)
def test_pool_is_created_again_until_it_is_there(
    found: FoundPool | None, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise Conflict("the name is taken")

    monkeypatch.setattr(people, "create_pool", taken)
    monkeypatch.setattr(people, "get_pool", lambda *_, **__: found)
    scheduled: list[Callable[[], object]] = []
    system = cast("System", SimpleNamespace(namespace="n", identities=None))
    ours = People(system, cast("KubeClient", None), lambda _seconds, mend: scheduled.append(mend))
    ours._make_again(POOLS[0])
    assert bool(scheduled) is repeated


def test_mend_all_runs_each_mending_once_when_one_schedules_itself_again() -> None:
    breaker = object.__new__(Breaker)
    breaker._to_freeze, breaker._mendings = [], []
    runs: list[str] = []

    def repeat() -> None:
        runs.append("repeat")
        breaker._after(1, repeat)

    breaker._mendings = [Mending(0, repeat), Mending(0, lambda: runs.append("once"))]
    breaker.mend_all()
    assert runs == ["repeat", "once"]
    assert [mending.mend for mending in breaker._mendings] == [repeat]
