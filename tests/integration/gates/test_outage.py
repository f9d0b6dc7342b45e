"""GitHub or the API server answers 5xx to real clients: its gate trips, nothing is deleted, and it recovers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from github_adapters.client import GitHub
from k8s_adapters.calls.client import make_client
from k8s_adapters.runners.pods import list_pods
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy, kubeconfig_through
from models.db.engine import transaction
from models.sweeps.repairs import Case
from models.upstream.gates import is_open, shut
from ostler.errors import Retryable
from ostler.upstreams import TALLY, Upstream
from rules.sweeps.limits import Source, Witness
from rules.upstream.retry import ONCE
from tasks.sweeps import gates as sweep
from tasks.sweeps.frame.pace import Sweep
from tasks.sweeps.frame.sweep import LEASE, run_tick
from tasks.sweeps.frame.tick import Tick
from tasks.worker import runtime as current
from tests.contract.github.conftest import APP_ID, make_app_key, running
from tests.database import Database
from tests.integration.tasks.conftest import StubRuntime, StubSettings
from tests.timed import changed

WITNESSES = (Witness(Source.KUBERNETES, "its poller still runs"), Witness(Source.GITHUB, "its runner is absent"))
SPEC = Sweep(name="stub", quiet=False, again=False, lease=LEASE, longest=20)


@dataclass
class Stage:
    """A worker whose connections to both upstreams can be broken."""

    rt: StubRuntime
    lines: dict[Upstream, FaultProxy]
    namespace: str

    def call(self, upstream: Upstream) -> None:
        """Make one call, as the worker does."""
        if upstream is Upstream.GITHUB:
            self.rt.github.list_deliveries()
        else:
            list_pods(self.rt.kube, namespace=self.namespace, policy=ONCE)

    def fails(self, upstream: Upstream, times: int) -> None:
        """Make calls that fail."""
        for _ in range(times):
            with pytest.raises(Retryable):
                self.call(upstream)

    def soon(self) -> None:
        """Let one interval of the evaluations pass."""
        with self.rt.engine.begin() as db:
            db.execute(text("UPDATE gates SET checked_at = checked_at - interval '15 s'"))

    def later(self) -> None:
        """Let more than a minute pass."""
        self.soon()
        with self.rt.engine.begin() as db:
            db.execute(text("UPDATE upstream_calls SET since = since - interval '70 s'"))

    def evaluate(self) -> list[str]:
        """Run the sweep, and return its log events about gates."""
        with capture_logs() as logs:
            sweep.gates.run()
        return [each["event"] for each in logs if each["event"].startswith("gate.")]

    def open(self, upstream: Upstream) -> bool:
        """Return whether a gate is ok."""
        return transaction(self.rt.engine, lambda db: is_open(db, upstream))

    def reap(self) -> dict[str, Any]:
        """Run a sweep that would make one destructive and one other repair, and return the row of its run."""
        done: list[str] = []

        def body(tick: Tick) -> None:
            tick.listed(10)
            for what, kills in (("kill", True), ("mend", False)):
                if tick.repair(Case(what=what, why="the story", kills=kills, witnesses=WITNESSES), lambda _db: True):
                    done.append(what)

        run_tick(self.rt, SPEC, body, dry=False, asked=None)  # type: ignore[arg-type]
        with self.rt.engine.connect() as db:
            run = db.execute(text("SELECT * FROM sweep_runs ORDER BY id DESC LIMIT 1")).one()
        return {"done": done, "overflow": run.overflow, "why": run.why}


@pytest.fixture
def stage(database: Database, control_plane: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """Both upstreams are real and behind fault proxies. The gates recover after two healthy evaluations."""
    config = tmp_path / "kubeconfig"
    config.touch(mode=0o600)
    config.write_bytes(control_plane.kubeconfig.read_bytes())
    key = make_app_key(tmp_path)
    with (
        running(key, tmp_path, webhook_url="http://127.0.0.1:1/", secret="none") as lab,
        FaultProxy(lab.url) as github,
        FaultProxy(control_plane.url, ca_file=control_plane.ca_file) as kubernetes,
    ):
        rt = StubRuntime(database, make_client(kubeconfig=str(kubeconfig_through(config, kubernetes.url))), namespace)
        rt.settings = changed(StubSettings(namespace), gate_healthy_checks=2, gate_extra_checks=0)
        rt.github = GitHub(api_url=github.url, app_id=APP_ID, private_key=lab.private_key)
        current.install(rt)  # type: ignore[arg-type]
        TALLY.take()
        yield Stage(rt, {Upstream.GITHUB: github, Upstream.KUBERNETES: kubernetes}, namespace)
        current.install(None)
        rt.github.close()
        rt.kube.close()


@pytest.mark.parametrize("upstream", list(Upstream))
def test_an_upstream_that_fails_stops_what_kills_until_it_has_come_back(stage: Stage, upstream: Upstream) -> None:
    other = next(each for each in Upstream if each is not upstream)
    line = stage.lines[upstream]
    stage.call(upstream)
    assert stage.evaluate() == []
    assert stage.reap()["done"] == ["kill", "mend"]

    # It fails: the gate trips, and only destructive repairs are left to later.
    line.add(Fault(kind="status", status=503))
    stage.fails(upstream, 6)
    stage.call(other)
    stage.soon()
    assert stage.evaluate() == ["gate.closed"]
    assert (stage.open(upstream), stage.open(other)) == (False, True)
    run = stage.reap()
    assert (run["done"], run["overflow"]) == (["mend"], 1)
    assert run["why"].startswith(f"the gate of {upstream} has been tripped since ")
    assert run["why"].endswith("recent calls failed")
    assert [each.upstream for each in transaction(stage.rt.engine, shut)] == [upstream]

    # It goes on failing while nobody else calls it: the sweep asks it, and says so each time.
    stage.later()
    assert stage.evaluate() == ["gate.probe_failed", "gate.stays_closed"]
    assert not stage.open(upstream)

    # It is back: nobody but the sweep need call it.
    line.clear()
    stage.later()
    assert stage.evaluate() == ["gate.stays_closed"]
    assert stage.reap()["done"] == ["mend"]
    stage.later()
    assert stage.evaluate() == ["gate.opened"]
    assert stage.reap()["done"] == ["kill", "mend"]
