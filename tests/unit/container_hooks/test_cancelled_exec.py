"""A command that waits for a process in a container stops when its `hook.sh` is killed, and its step ends."""

from __future__ import annotations

import threading
from pathlib import Path

from structlog.testing import capture_logs

from container_hooks.desk import Session
from container_hooks.detached import Place, run_detached
from k8s_adapters.calls.client import make_client
from k8s_adapters.calls.exec_stream import V5, Heartbeat
from k8s_adapters.calls.execs import ExecClient
from tests.unit.container_hooks.sidecar import Json, serving
from tests.unit.k8s_adapters.exec_server import Connection, ExecServer
from tests.unit.k8s_adapters.test_execs import until_gone
from tests.unit.k8s_adapters.test_proxies import kubeconfig
from tests.waiting import eventually


def test_killed_script_ends_the_exec_of_its_command(tmp_path: Path) -> None:
    running, closed = threading.Event(), threading.Event()

    def silent_process(connection: Connection) -> None:
        connection.accept(V5)
        running.set()
        until_gone(connection)
        closed.set()

    with ExecServer(silent_process) as server:
        client = make_client(kubeconfig=kubeconfig(tmp_path, server.url))
        exec_ = ExecClient(client, "ns", heartbeat=Heartbeat(period=0.2, deadline=60))

        def execute(given: Json, session: Session) -> int:
            if given["command"] == "cleanup_job":
                return 0
            client.timing = session.conversation.timing
            log = session.conversation.log
            return exec_.run("pod-workflow", "job", ["sleep", "3600"], stdout=log.raw, stderr=log.raw)

        (tmp_path / "hooks").mkdir()
        with serving(tmp_path / "hooks", execute) as sidecar:
            hook = sidecar.start({"command": "run_script_step", "args": {}})
            assert running.wait(30)
            hook.kill_group()

            assert closed.wait(20)
            assert sidecar.run({"command": "cleanup_job", "args": {}}).code == 0
        client.close()


def test_killed_container_runner_ends_the_detached_step(tmp_path: Path) -> None:
    """Container `runner` dies as a whole when it uses too much memory. Its end of the socket is then closed."""
    follows, scripts = threading.Event(), list[str]()

    def ends(connection: Connection) -> None:
        connection.accept(V5)
        scripts.append(" ".join(connection.query["command"]))
        connection.end(0)

    def follow(connection: Connection) -> None:
        connection.accept(V5)
        follows.set()
        until_gone(connection)

    with ExecServer(ends, follow, ends) as server:
        client = make_client(kubeconfig=kubeconfig(tmp_path, server.url))
        exec_ = ExecClient(client, "ns", heartbeat=Heartbeat(period=0.2, deadline=60))
        place = Place(pod="pod-workflow", container="job", folder="/__e/.ostler/step")

        def execute(given: Json, session: Session) -> int:
            if given["command"] == "cleanup_job":
                return 0
            client.timing = session.conversation.timing
            log = session.conversation.log.raw
            words = ["sleep", "3600"]
            return run_detached(exec_, place, words, output=log, why_ended=lambda: None, timing=client.timing)

        (tmp_path / "hooks").mkdir()
        with serving(tmp_path / "hooks", execute) as sidecar, capture_logs() as logs:
            hook = sidecar.start({"command": "run_script_step", "args": {}})
            assert follows.wait(30)
            hook.kill_group()

            eventually(lambda: len(scripts) == 2, "the step was not ended", within=20)
            assert sidecar.run({"command": "cleanup_job", "args": {}}).code == 0
        client.close()

    assert "send KILL" in scripts[1]
    events = [each["event"] for each in logs]
    assert events.index("hooks.command_cancelled") < events.index("hooks.step_ended")
