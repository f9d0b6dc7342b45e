"""Exec in containers of a real kubelet with containerd, through a real API server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from k8s_adapters.calls.exec_stream import V4
from k8s_adapters.calls.execs import ExecClient
from lab.node.images import PAUSE
from ostler.errors import Gone, Invalid, UpstreamError
from tests.fleet import Fleet
from tests.node.plain_pods import NAMESPACE, PlainPods, container, shell

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

MIB = 1024 * 1024
FOREVER = "while :; do sleep 0.2; done"


class Exec:
    """Runs commands in the container `main` of one Pod."""

    def __init__(self, execs: ExecClient, pod: str) -> None:
        self._execs = execs
        self._pod = pod
        self.stdout = bytearray()
        self.stderr = bytearray()

    def run(self, *command: str, stdin: list[bytes] | None = None) -> int:
        """Return the exit code of a command."""
        self.stdout.clear()
        self.stderr.clear()
        return self._execs.run(
            self._pod, "main", command, stdin=stdin, stdout=self.stdout.extend, stderr=self.stderr.extend
        )


@pytest.fixture(scope="module", autouse=True)
def pods(fleet: Fleet) -> Iterator[None]:
    made = PlainPods(fleet.kube, fleet.system.real_nodes[0].name)
    made.create("exec", shell(FOREVER))
    made.create("exec-pause", container("/pause", image=PAUSE))
    made.wait_until_running("exec")
    made.wait_until_running("exec-pause")
    yield
    made.delete("exec")
    made.delete("exec-pause")


@pytest.fixture
def run(fleet: Fleet) -> Exec:
    return Exec(ExecClient(fleet.kube, NAMESPACE), "exec")


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_exit_code_comes_back(run: Exec, script: str, code: int) -> None:
    assert run.run("sh", "-c", f"echo out; echo err >&2; {script}") == code
    assert (bytes(run.stdout), bytes(run.stderr)) == (b"out\n", b"err\n")


@pytest.mark.parametrize("versions", [None, [V4]], ids=["version 5", "version 4"])
def test_input_of_20_mib_arrives_and_ends(
    run: Exec, monkeypatch: pytest.MonkeyPatch, versions: list[str] | None
) -> None:
    if versions is not None:
        monkeypatch.setattr("k8s_adapters.calls.exec_stream.VERSIONS", versions)
    content = bytes(range(256)) * 80 * 1024

    assert run.run("sha256sum", stdin=[content[begin : begin + MIB] for begin in range(0, len(content), MIB)]) == 0

    assert run.stdout.split()[0].decode() == hashlib.sha256(content).hexdigest()


def test_output_of_20_mib_arrives(run: Exec) -> None:
    assert run.run("head", "-c", str(20 * MIB), "/dev/zero") == 0
    assert bytes(run.stdout) == bytes(20 * MIB)


def test_command_that_is_silent_for_longer_than_a_ping_is_not_lost(run: Exec) -> None:
    assert run.run("sleep", "12") == 0


def test_image_without_a_shell_is_reported_with_the_reason(fleet: Fleet) -> None:
    with pytest.raises(UpstreamError) as found:
        Exec(ExecClient(fleet.kube, NAMESPACE), "exec-pause").run("true")

    assert found.value.words is not None
    assert "executable file not found" in found.value.words


def test_missing_pod_and_missing_container_are_told_apart(fleet: Fleet) -> None:
    execs = ExecClient(fleet.kube, NAMESPACE)

    with pytest.raises(Gone):
        execs.run("exec-missing", "main", ["true"], stdout=print, stderr=print)
    with pytest.raises(Invalid):
        execs.run("exec", "missing", ["true"], stdout=print, stderr=print)
