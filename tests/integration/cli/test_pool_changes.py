"""`ostler pool pause|resume|scale|drain` on a real API server, as an operator at a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cli import pool_changes
from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, make_client
from k8s_adapters.pools import pools as adapter
from k8s_adapters.pools.draining import add_finalizer, remove_finalizer
from k8s_adapters.pools.pools import create_pool, get_pool
from lab.control_plane import ClusterAccess
from lab.processes import default_signals, free_port
from rules.pools.pool_spec import PoolSpec
from tests.integration.cli.test_operator import Done, run_command
from tests.waiting import eventually

SPEC: dict[str, Any] = {"image": "runner:1", "runnerLabels": ["linux"], "replicas": 3}


@dataclass
class Shell:
    """An operator with a kubeconfig and without a database."""

    kube: KubeClient
    namespace: str
    kubeconfig: str

    @property
    def env(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))}
        return clean | {
            "HOME": "/nonexistent",
            "OSTLER_KUBECONFIG": self.kubeconfig,
            "OSTLER_NAMESPACE": self.namespace,
        }

    def run(self, *arguments: str, **changes: str) -> Done:
        return run_command(self.env | changes, "pool", *arguments)

    def pool(self, name: str = "small", *, held: bool = False, **spec: Any) -> PoolSpec:
        made = create_pool(self.kube, namespace=self.namespace, name=name, spec={**SPEC, **spec})
        if held:
            add_finalizer(self.kube, namespace=self.namespace, name=name, uid=made.uid)
        return made

    def seen(self, name: str = "small") -> PoolSpec:
        found = get_pool(self.kube, namespace=self.namespace, name=name)
        assert found is not None
        return found

    def patch(self, body: dict[str, Any], name: str = "small") -> None:
        path = adapter.pool_path(self.namespace, name)
        self.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def let_go(self, name: str = "small") -> None:
        remove_finalizer(self.kube, namespace=self.namespace, name=name, uid=self.seen(name).uid)


@pytest.fixture
def shell(control_plane: ClusterAccess, namespace: str) -> Iterator[Shell]:
    kube = make_client(kubeconfig=str(control_plane.kubeconfig))
    yield Shell(kube, namespace, str(control_plane.kubeconfig))
    for name in ("small", "other"):
        if (found := get_pool(kube, namespace=namespace, name=name)) is not None:
            remove_finalizer(kube, namespace=namespace, name=name, uid=found.uid)
    kube.close()


def test_a_pool_is_paused_and_resumed(shell: Shell) -> None:
    shell.pool()
    assert shell.run("pause", "small").stdout == "small is paused\n"
    assert shell.seen().paused
    assert shell.seen().writers[0].startswith("ostler-cli:")
    assert shell.run("pause", "small").stdout == "small is paused already\n"
    resumed = shell.run("resume", "small", "--json")
    assert json.loads(resumed.stdout) == {
        "name": "small",
        "namespace": shell.namespace,
        "replicas": 3,
        "paused": False,
        "autoscaled": False,
        "draining": False,
    }
    assert not shell.seen().paused
    assert shell.seen().generation == 3, "what is so already is not written"


def test_a_pool_is_scaled(shell: Shell) -> None:
    shell.pool()
    assert shell.run("scale", "small", "7").stdout == "small: 3 → 7 replicas\n"
    assert shell.seen().replicas == 7
    assert "already" in shell.run("scale", "small", "7").stdout
    shell.run("pause", "small")
    assert "is paused" in shell.run("scale", "small", "0").stderr
    assert shell.seen().replicas == 0


def test_an_autoscaled_pool_is_not_scaled_by_hand_and_the_answer_says_what_to_do(shell: Shell) -> None:
    shell.pool(autoscaling={"enabled": True, "maxReplicas": 9})
    done = shell.run("scale", "small", "7")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "autoscaled, up to 9 Pods" in done.stderr
    assert "spec.autoscaling.minWarm" in done.stderr
    assert shell.seen().replicas == 3


def test_autoscaling_that_is_switched_on_meanwhile_is_seen(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.pool()
    real = adapter.scale_pool

    def meanwhile(*arguments: Any, **named: Any) -> PoolSpec:
        shell.patch({"spec": {"autoscaling": {"enabled": True}}})
        return real(*arguments, **named)

    monkeypatch.setattr(adapter, "scale_pool", meanwhile)
    assert shell.run("scale", "small", "7").returncode == 1
    assert shell.seen().replicas == 3


@pytest.mark.parametrize("arguments", [("pause",), ("resume",), ("scale", "4"), ("drain", "--yes")])
def test_no_such_pool_is_said_with_the_namespace(shell: Shell, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    done = shell.run(command, "nowhere", *rest)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "no RunnerPool 'nowhere'" in done.stderr
    assert shell.namespace in done.stderr
    assert "ostler pool list" in done.stderr


def test_a_cluster_that_is_not_there_is_said_without_a_traceback(shell: Shell, tmp_path: Any) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{free_port()}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
""")
    done = shell.run("pause", "small", OSTLER_KUBECONFIG=str(config))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert re.search(r"the API server 127\.0\.0\.1:\d+ does not answer: connection refused\. ", done.stderr)
    done = shell.run("pause", "small", OSTLER_KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "OSTLER_KUBECONFIG" in done.stderr


def test_who_may_not_is_told_which_verb_is_missing(shell: Shell, tmp_path: Any) -> None:
    shell.pool()
    account = f"/api/v1/namespaces/{shell.namespace}/serviceaccounts"
    shell.kube.request("POST", account, body={"metadata": {"name": "nobody"}})
    token = shell.kube.request("POST", f"{account}/nobody/token", body={"spec": {}})["status"]["token"]
    import yaml  # noqa: PLC0415

    with open(shell.kubeconfig) as file:  # noqa: PTH123
        config = yaml.safe_load(file)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    done = shell.run("pause", "small", OSTLER_KUBECONFIG=str(path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "the cluster refuses the request" in done.stderr
    assert "the verbs get and patch" in done.stderr
    assert token not in done.stderr


def test_a_drain_has_to_be_confirmed(shell: Shell) -> None:
    shell.pool(held=True)
    done = shell.run("drain", "small")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert not shell.seen().terminating


def test_a_pool_without_the_finalizer_is_not_deleted(shell: Shell) -> None:
    shell.pool()
    done = shell.run("drain", "small", "--yes")
    assert done.returncode == 1
    assert "lacks the finalizer" in done.stderr
    assert not shell.seen().terminating


def test_a_finalizer_that_is_taken_off_meanwhile_is_missed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.pool(held=True)
    real = adapter.drain_pool

    def meanwhile(*arguments: Any) -> None:
        shell.let_go()
        real(*arguments)

    monkeypatch.setattr(adapter, "drain_pool", meanwhile)
    assert shell.run("drain", "small", "--yes", "--no-wait").returncode == 1
    assert not shell.seen().terminating


def test_a_drain_is_followed_until_the_pool_is_gone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_changes, "CHECK_EVERY", 0.05)
    shell.pool(held=True)
    path = adapter.pool_path(shell.namespace, "small")
    shell.kube.request("PATCH", f"{path}/status", body={"status": {"warm": 0, "busy": 2}}, content_type=MERGE_PATCH)

    def be_the_controller() -> None:
        eventually(lambda: shell.seen().terminating)
        shell.let_go()

    thread = threading.Thread(target=be_the_controller)
    thread.start()
    done = shell.run("drain", "small", "--yes")
    thread.join()
    assert (done.returncode, done.stdout) == (0, "small is deleted\n")
    assert done.stderr == "small drains: 2 busy\n"


def test_command_that_does_not_wait_names_where_to_look(shell: Shell) -> None:
    shell.pool(held=True, paused=True)
    done = shell.run("drain", "small", "--yes", "--no-wait")
    assert (done.returncode, done.stdout) == (0, "small is draining; `ostler pool list` shows the progress\n")
    assert shell.seen().terminating
    again = shell.run("drain", "small", "--no-wait", "--json")
    assert "has been draining since" in again.stderr
    assert json.loads(again.stdout) == {"name": "small", "namespace": shell.namespace, "gone": False}
    assert shell.run("pause", "small").stdout == "small is paused already\n"
    assert shell.run("resume", "small").stdout == "small is not paused\n"
    refused = shell.run("pause", "small")
    assert (refused.returncode, "a drain cannot be cancelled" in refused.stderr) == (1, True)


def test_ctrl_c_ends_the_command_and_not_the_drain(shell: Shell) -> None:
    shell.pool(held=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "ostler", "pool", "drain", "small", "--yes"],
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509  it calls one function of libc
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # it has begun to wait
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert first.startswith("small drains")
    assert "continues to drain without this command" in err
    assert "Traceback" not in err
    assert shell.seen().terminating
