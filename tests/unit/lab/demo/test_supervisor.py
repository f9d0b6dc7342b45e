"""Programs that end while the demo runs are started again. If this fails, the demo ends with a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.demo.supervisor import TRIES, Supervisor
from lab.processes import StartError
from lab.system import System


@dataclass
class Program:
    """A process that ends and starts on command."""

    status: int | None = None
    starts: int = 0
    lives: bool = True
    """True if the next start succeeds."""

    def start(self) -> None:
        self.starts += 1
        self.status = None if self.lives else 1

    def tail(self) -> str:
        return "its last words"


@dataclass
class Stage:
    """A system with one worker, both stores and the processes of the lab. Time moves only on command."""

    now: float = 100
    said: list[str] = field(default_factory=list)
    cluster: bool = True
    worker: Program = field(default_factory=Program)
    kubelet: Program = field(default_factory=Program)
    redis: Program = field(default_factory=Program)

    def supervisor(self) -> Supervisor:
        children = {"worker-0": self.worker, "kubelet": self.kubelet, "github": Program()}
        system: Any = SimpleNamespace(
            children=children,
            redis=SimpleNamespace(child=self.redis, start=self.redis.start),
            postgres=SimpleNamespace(child=Program()),
            cluster_runs=lambda: self.cluster,
            restart=lambda name: children[name].start(),
        )
        return Supervisor(cast("System", system), self.said.append, clock=lambda: self.now)


def test_nothing_is_said_or_started_while_all_live() -> None:
    stage = Stage()
    stage.supervisor().check()
    assert stage.said == []
    assert stage.worker.starts == 0


@pytest.mark.parametrize("name", ["worker", "redis"])
def test_what_was_killed_is_named_once_and_started_again(name: str) -> None:
    stage = Stage()
    supervisor = stage.supervisor()
    program: Program = getattr(stage, name)

    program.status = -9
    supervisor.check()
    supervisor.check()
    assert program.starts == 0  # not at once
    stage.now += 1
    supervisor.check()
    supervisor.check()

    assert program.starts == 1
    assert len(stage.said) == 1
    assert name in stage.said[0]
    assert "SIGKILL" in stage.said[0]
    assert sum(supervisor.restarts.values()) == 1


def test_what_ends_at_every_start_ends_the_demo_with_its_last_words() -> None:
    stage = Stage()
    supervisor = stage.supervisor()
    stage.worker.lives = False
    stage.worker.status = 1

    def until_given_up() -> None:
        for _ in range(200):
            supervisor.check()
            stage.now += 1

    with pytest.raises(StartError, match=r"worker-0 ended 5 times.*exit status 1(.|\n)*its last words"):
        until_given_up()
    assert stage.worker.starts == TRIES


def test_ends_far_apart_do_not_add_up() -> None:
    stage = Stage()
    supervisor = stage.supervisor()
    for _ in range(2 * TRIES):
        stage.worker.status = -9
        supervisor.check()
        stage.now += 1
        supervisor.check()
        stage.now += 600
    assert supervisor.restarts["worker-0"] == 2 * TRIES


def test_a_lab_that_lost_its_memory_ends_the_demo() -> None:
    stage = Stage()
    stage.kubelet.status = -9
    with pytest.raises(StartError, match="the lab's kubelet ended"):
        stage.supervisor().check()


def test_a_cluster_that_is_gone_ends_the_demo() -> None:
    with pytest.raises(StartError, match="the cluster ended"):
        Stage(cluster=False).supervisor().check()
