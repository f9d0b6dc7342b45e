"""Repairs by `make chaos`: each runs once, and a pool is created again only while its name is free or draining."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import POOLS
from lab.chaos import people
from lab.chaos.breaker import Breaker, Mending
from lab.chaos.people import People
from lab.chaos.plan import Blow, Strike
from lab.processes import StartError
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


class FakeNode:
    """A real node whose programs can be killed, and the calls that it got."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.runs = True
        self.containerd = SimpleNamespace(running=lambda: self.runs)

    def tag(self, _image: str, name: str) -> None:
        if not self.runs:
            raise StartError("containerd did not tag the image: connection refused")
        self.calls.append(name)

    def kill_kubelet(self) -> None:
        self.calls.append("kill kubelet")

    def kill_containerd(self) -> None:
        self.runs = False
        self.calls.append("kill containerd")

    def start_kubelet(self) -> None:
        if not self.runs:
            raise StartError("kubelet has ended: no containerd")
        self.calls.append("start kubelet")

    def start_containerd(self) -> None:
        self.runs = True
        self.calls.append("start containerd")


def test_image_of_a_pool_can_change_while_a_containerd_is_killed() -> None:
    node = FakeNode()
    patched: list[Any] = []
    kube = SimpleNamespace(request=lambda *_, body, **__: patched.append(body["spec"]))
    system = SimpleNamespace(namespace="n", identities=None, pools=POOLS, real_nodes=[node])
    ours = People(cast("System", system), cast("KubeClient", kube), lambda *_: None, rolls=2)
    node.kill_containerd()

    for _ in range(2):
        assert ours.act(Strike(1, Blow.POOL_ROLLED, 0.5, 1.0))

    assert patched == [{"image": "runner:1"}, {"image": "runner:2"}]
    assert node.calls[:2] == ["docker.io/library/runner:1", "docker.io/library/runner:2"]


def test_kubelet_comes_back_with_a_containerd_that_was_killed_in_the_meantime() -> None:
    node = FakeNode()
    breaker = object.__new__(Breaker)
    breaker._system = cast("System", SimpleNamespace(real_nodes=[node]))
    breaker._mendings = []
    breaker._kill_on_node(Strike(1, Blow.KUBELET_KILLED, 0.5, 1.0))
    breaker._kill_on_node(Strike(2, Blow.CONTAINERD_KILLED, 0.5, 15.0))

    for mending in breaker._mendings:
        mending.mend()

    assert node.calls == ["kill kubelet", "kill containerd", "start containerd", "start kubelet"]
