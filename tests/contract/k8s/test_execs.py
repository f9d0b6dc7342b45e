"""Exec in hook Pods of the lab's kubelet, through both API servers: the embedded one and the real one."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from container_hooks.failures import failure_of
from k8s_adapters.calls.client import Json, make_client, object_path
from k8s_adapters.calls.exec_stream import V4, Heartbeat
from k8s_adapters.calls.execs import ExecClient
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from ostler.clock import Timing
from ostler.errors import ExecLost, Gone, Invalid, UpstreamError
from tests.contract.k8s.hook_pods import HookPods, container, hook_pods, is_ready, states
from tests.waiting import eventually

MIB = 1024 * 1024
EXECS = r"/api/v1/namespaces/[^/]+/pods/[^/]+/exec\?.*"


@pytest.fixture(scope="module")
def pods(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookPods]:
    """Hook Pods behind the API server."""
    with hook_pods(control_plane, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


@pytest.fixture(scope="module")
def pod(pods: HookPods) -> str:
    """A hook Pod with two containers that share the volumes."""
    name = pods.create(container(), container("service", env=[{"name": "COLOUR", "value": "blue"}]))
    pods.wait_for(name, is_ready)
    return name


class Shell:
    """Runs commands in a Pod and collects their output."""

    def __init__(self, execs: ExecClient, pod: str) -> None:
        self._execs = execs
        self._pod = pod
        self.stdout = bytearray()
        self.stderr = bytearray()

    def run(self, *command: str, stdin: Sequence[bytes] | None = None, container: str = "job") -> int:
        """Return the exit code of a command."""
        self.stdout.clear()
        self.stderr.clear()
        return self._execs.run(
            self._pod, container, command, stdin=stdin, stdout=self.stdout.extend, stderr=self.stderr.extend
        )

    def sh(self, script: str, **given: Sequence[bytes]) -> str:
        """Return the output of a script that succeeds."""
        code = self.run("sh", "-c", script, stdin=given.get("stdin"))
        assert code == 0, self.stderr
        return self.stdout.decode()


@pytest.fixture
def shell(pods: HookPods, pod: str) -> Shell:
    return Shell(ExecClient(pods.client, pods.namespace), pod)


def test_output_and_exit_code_come_back(shell: Shell) -> None:
    assert shell.run("sh", "-c", "echo out; echo err >&2; exit 3") == 3
    assert (bytes(shell.stdout), bytes(shell.stderr)) == (b"out\n", b"err\n")


def test_command_that_is_killed_has_the_code_of_its_signal(shell: Shell) -> None:
    assert shell.run("sh", "-c", "kill -9 $$") == 137


def test_folders_of_the_job_are_at_their_paths_and_shared_by_containers(shell: Shell) -> None:
    shell.sh("mkdir -p /__w/shop && echo text > /__w/shop/file && cd /github && touch ../__e/here")

    assert shell.run("cat", "/__w/shop/file", container="service") == 0
    assert bytes(shell.stdout) == b"text\n"
    assert shell.sh("ls /__e") == "here\n"


def test_system_of_the_machine_is_not_changed_by_a_command(shell: Shell) -> None:
    assert shell.run("sh", "-c", "touch /etc/changed || exit 9") == 9


def test_environment_is_that_of_the_container(shell: Shell, pod: str) -> None:
    assert shell.run("sh", "-c", "echo $COLOUR $HOSTNAME", container="service") == 0
    assert shell.stdout.decode() == f"blue {pod}\n"


def test_archive_of_16_mib_is_copied_in_and_out(shell: Shell) -> None:
    content = bytes(range(256)) * 64 * 1024
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("folder/big")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    whole = packed.getvalue()
    pieces = [whole[begin : begin + 100_000] for begin in range(0, len(whole), 100_000)]

    shell.sh("cd /__w && tar -xf -", stdin=pieces)
    assert shell.sh("sha256sum /__w/folder/big").split()[0] == hashlib.sha256(content).hexdigest()

    shell.run("cat", "/__w/folder/big")
    assert bytes(shell.stdout) == content


def test_version_4_ends_the_input_of_tar(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s_adapters.calls.exec_stream.VERSIONS", [V4])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))

    assert shell.sh("cd /github && tar -xf - && ls", stdin=[packed.getvalue()]) == "empty\n"


def test_command_that_does_not_exist_is_reported(shell: Shell, pods: HookPods, pod: str) -> None:
    assert shell.run("no-such-command") == 127

    with pytest.raises(UpstreamError) as found:
        ExecClient(pods.client, pods.namespace, shell=False).run(
            pod, "job", ["no-such-command"], stdout=print, stderr=print
        )
    assert found.value.words is not None
    assert "no-such-command" in found.value.words


def test_missing_pod_and_missing_container_are_told_apart(pods: HookPods, pod: str) -> None:
    execs = ExecClient(pods.client, pods.namespace)

    with pytest.raises(Gone):
        execs.run("missing", "job", ["true"], stdout=print, stderr=print)
    with pytest.raises(Invalid):
        execs.run(pod, "missing", ["true"], stdout=print, stderr=print)


def test_request_without_an_upgrade_is_invalid(pods: HookPods, pod: str) -> None:
    path = f"{object_path('pods', namespace=pods.namespace, name=pod)}/exec"

    for method in ("GET", "POST"):
        with pytest.raises(Invalid):
            pods.client.request(method, path, query={"container": "job", "command": "true", "stdout": "true"})


# Faults between the client and the API server


@pytest.fixture
def proxy(pods: HookPods) -> Iterator[FaultProxy]:
    with FaultProxy(pods.access.url, ca_file=pods.access.ca_file) as proxy:
        yield proxy


@pytest.fixture
def through(pods: HookPods, pod: str, proxy: FaultProxy) -> Iterator[Shell]:
    kubeconfig = str(proxy.kubeconfig(pods.access.kubeconfig))
    with closing(make_client(kubeconfig=kubeconfig, timing=Timing(sleep=lambda _seconds: None))) as client:
        yield Shell(ExecClient(client, pods.namespace, heartbeat=Heartbeat(period=0.2, deadline=1)), pod)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="status", path_regex=EXECS, status=400, body="<html>Bad Request</html>"),
        Fault(kind="status", path_regex=EXECS, status=200, body="<html>Sign in</html>"),
        Fault(kind="no_version", path_regex=EXECS),
    ],
    ids=["bad request", "no upgrade", "no version"],
)
def test_proxy_that_breaks_the_upgrade_is_named(through: Shell, proxy: FaultProxy, fault: Fault) -> None:
    """Some proxies refuse the upgrade of an exec, or do not pass on the version of its protocol."""
    proxy.add(fault)

    with pytest.raises(Invalid) as found:
        through.run("true")

    assert sum(proxy.counts.values()) == 1
    line = str(failure_of("the step was not started", found.value))
    assert "a proxy between Ostler and the API server" in line
    assert "v5.channel.k8s.io" in line


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="reset_before", path_regex=EXECS, times=2),
        Fault(kind="reset_after", path_regex=EXECS, times=2),
        Fault(kind="truncate", path_regex=EXECS, times=1),
        Fault(kind="status", path_regex=EXECS, status=503, times=3),
        Fault(kind="status", path_regex=EXECS, status=429, headers={"Retry-After": "1"}, times=3),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_command_runs_exactly_once_after_handshakes_that_failed(
    through: Shell, proxy: FaultProxy, shell: Shell, fault: Fault
) -> None:
    shell.sh("rm -f /__w/runs")
    proxy.add(fault)

    through.sh("echo run >> /__w/runs")

    assert proxy.counts[fault.kind] == fault.times
    assert shell.sh("cat /__w/runs") == "run\n"


@pytest.mark.parametrize("kind", ["cut", "close", "freeze"])
@pytest.mark.parametrize("after_bytes", [0, 1000, MIB])
def test_lost_connection_is_reported_and_the_command_is_not_repeated(
    through: Shell, proxy: FaultProxy, shell: Shell, kind: str, after_bytes: int
) -> None:
    shell.sh("rm -f /__w/runs")
    proxy.add(Fault(kind=kind, path_regex=EXECS, after_bytes=after_bytes))

    with pytest.raises(ExecLost):
        through.sh("echo run >> /__w/runs; head -c 2000000 /dev/zero")

    assert proxy.counts[kind] == 1
    assert shell.sh("cat /__w/runs 2> /dev/null || true") in ({"run\n"} if after_bytes else {"run\n", ""})


def test_status_that_is_lost_is_reported(through: Shell, proxy: FaultProxy) -> None:
    proxy.add(Fault(kind="close", path_regex=EXECS, after_bytes=MIB))

    with pytest.raises(ExecLost):
        through.run("echo", "done")

    assert bytes(through.stdout) == b"done\n"


# Pods of the lab's kubelet


def test_main_process_and_health_command_run_in_the_container(pods: HookPods) -> None:
    health = {"exec": {"command": ["sh", "-c", "test -e /__w/healthy"]}, "periodSeconds": 1}
    name = pods.create(
        container(command=["sh", "-c", "echo begun > /__w/main; sleep 600"], readinessProbe=health),
        init=(container("first", command=["sh", "-c", "test ! -e /__w/main"]),),
    )
    status = pods.wait_for(name, lambda status: status["phase"] == "Running")
    assert states(status, "initContainerStatuses")["first"]["terminated"]["exitCode"] == 0
    assert not is_ready(status)

    Shell(ExecClient(pods.client, pods.namespace), name).sh("cat /__w/main && touch /__w/healthy")
    pods.wait_for(name, is_ready)

    pods.delete(name)


def test_pod_ends_with_its_main_process(pods: HookPods) -> None:
    name = pods.create(container(command=["sh", "-c", "exit 3"]))

    status = pods.wait_for(name, lambda status: status["phase"] == "Failed")

    assert states(status)["job"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize(
    ("image", "kind", "reason"),
    [
        ("missing:1", "waiting", "ErrImagePull"),
        ("registry.example/team/missing-tool:1", "waiting", "ImagePullBackOff"),
        ("job:exits-4", "terminated", "Error"),
        ("job:oom", "terminated", "OOMKilled"),
    ],
)
def test_image_chooses_the_failure(pods: HookPods, image: str, kind: str, reason: str) -> None:
    name = pods.create(container(image=image))

    phase = "Pending" if kind == "waiting" else "Failed"

    def is_so(status: Json) -> bool:
        state = states(status).get("job", {}).get(kind) or {}
        return (state.get("reason"), status["phase"]) == (reason, phase)

    pods.wait_for(name, is_so)
    pods.delete(name)


def test_exec_ends_when_its_pod_is_deleted(pods: HookPods) -> None:
    name = pods.create(container())
    pods.wait_for(name, is_ready)
    shell = Shell(ExecClient(pods.client, pods.namespace), name)

    def delete(_output: bytes) -> None:
        pods.client.request("DELETE", object_path("pods", namespace=pods.namespace, name=name))

    code = ExecClient(pods.client, pods.namespace).run(
        name, "job", ["sh", "-c", "echo begun; exec sleep 600"], stdout=delete, stderr=print
    )

    assert code in {137, 143}
    with pytest.raises((Gone, UpstreamError)):
        shell.sh("true")


def test_process_that_a_command_left_behind_runs_until_its_pod_is_deleted(pods: HookPods) -> None:
    name = pods.create(container())
    pods.wait_for(name, is_ready)
    shell = Shell(ExecClient(pods.client, pods.namespace), name)
    pid = int(shell.sh("sleep 600 > /dev/null 2>&1 < /dev/null & echo $!"))

    shell.sh(f"kill -0 {pid}")
    pods.delete(name)

    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the process survives its Pod", within=30)


def test_secret_becomes_a_variable(pods: HookPods) -> None:
    secret = {"metadata": {"name": "env"}, "data": {"job.PASSWORD": base64.b64encode(b"open").decode()}}
    reference = {"secretKeyRef": {"name": "env", "key": "job.PASSWORD"}}
    name = pods.create(container(env=[{"name": "PASSWORD", "valueFrom": reference}]))
    pods.wait_for(
        name,
        lambda status: states(status).get("job", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError",
    )
    pods.client.request("POST", object_path("secrets", namespace=pods.namespace), body=secret)
    pods.wait_for(name, is_ready)

    assert Shell(ExecClient(pods.client, pods.namespace), name).sh("echo $PASSWORD") == "open\n"
