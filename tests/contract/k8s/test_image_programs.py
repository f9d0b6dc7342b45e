"""Docker actions that run the program of their image: hook Pods, logs and the lab's kubelet, on both API servers."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from container_hooks import logged
from container_hooks.conversation import CommandCancelled
from k8s_adapters.calls.client import make_client
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from ostler.clock import Timing
from tests.contract.k8s.hook_pods import HookPods, container, hook_pods, states
from tests.contract.k8s.test_hook_commands import LOGIN, QUICK, Runner, sleepers
from tests.waiting import eventually

LOGS = r"/api/v1/namespaces/[^/]+/pods/[^/]+/log\?.*"
PRINTS = "i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i + 1)); done"


@pytest.fixture(scope="module")
def pods(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookPods]:
    """A namespace with a kubelet behind the API server."""
    with hook_pods(control_plane, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


@pytest.fixture
def proxy(pods: HookPods) -> Iterator[FaultProxy]:
    with FaultProxy(pods.access.url, ca_file=pods.access.ca_file) as proxy:
        yield proxy


def prepared(runner: Runner, program: str) -> Runner:
    """Prepare a job whose workspace has the program of the image `entry`."""
    (runner.work / "shop" / "shop" / "entry.sh").write_text(program)
    job = {"image": "node:22", "workingDirectory": "/__w/shop/shop", "registry": LOGIN}
    assert runner.run("prepare_job", {"container": job}) == 0, runner.log.shown
    (runner.work / "_temp" / "_runner_file_commands" / "set_output").write_text("")
    runner.log.shown.clear()
    return runner


def act(runner: Runner, *arguments: str, image: str = "entry:1", **variables: str) -> int:
    """Run a Docker action without an entry point."""
    given = {"image": image, "entryPointArgs": list(arguments), "environmentVariables": variables}
    return runner.run("run_container_step", given)


def output_of(runner: Runner) -> bytes:
    """Return what the program has written, without the lines of the hooks."""
    return b"".join(line for line in runner.log.shown.splitlines(keepends=True) if not line.startswith(b"Copy of"))


def test_program_of_the_image_has_arguments_files_and_an_exit_code(pods: HookPods, tmp_path: Path) -> None:
    program = (
        'echo "$PWD: $*" $COLOUR; cat README.md >&2; echo a=$2 > "$GITHUB_OUTPUT"\n'
        "echo kept > /github/home/.rc; echo made > made; rm README.md; exit 7"
    )
    runner = prepared(Runner(pods, tmp_path), program)

    code = act(runner, "to", "'two words'", COLOUR="$RED", GITHUB_OUTPUT="/github/file_commands/set_output")

    assert code == 7, runner.log.shown
    assert output_of(runner) == b"/github/workspace: to two words $RED\nread me\n"
    assert (runner.work / "_temp" / "_runner_file_commands" / "set_output").read_text() == "a=two words\n"
    assert act(runner, image="entry:2") == 1  # README.md was removed, and entry.sh is still there
    assert runner.run("run_script_step", {"entryPoint": "cat", "entryPointArgs": ["made", "/github/home/.rc"]}) == 1
    step = {"entryPoint": "cat", "entryPointArgs": ["made", "/github/home/.rc"], "workingDirectory": "/__w/shop/shop"}
    runner.log.shown.clear()
    assert runner.run("run_script_step", step) == 0
    assert runner.log.shown == b"made\nkept\n"
    assert runner.run("cleanup_job") == 0
    assert runner.left() == []


def test_program_without_arguments_has_those_of_its_image(pods: HookPods, tmp_path: Path) -> None:
    runner = prepared(Runner(pods, tmp_path), 'printf "%s" "$*"')

    assert act(runner) == 0, runner.log.shown

    # As with containerd, the log of a container ends with a line feed.
    assert output_of(runner) == b"by default\n"
    assert len(runner.left()) == 2  # the Pod of the job, and its login


def test_silent_program_is_not_lost(pods: HookPods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program writes nothing for longer than a connection and the patience of the sidecar last."""
    monkeypatch.setattr(logged, "_SILENCE", 0.5)
    monkeypatch.setattr(logged, "PATIENCE", 3.0)
    runner = prepared(Runner(pods, tmp_path), "sleep 8; echo woken; sleep 5; exit 4")

    assert act(runner) == 4, runner.log.shown

    assert output_of(runner) == b"woken\n"


def test_program_that_does_not_exist_is_one_line(pods: HookPods, tmp_path: Path) -> None:
    runner = prepared(Runner(pods, tmp_path), "")
    (runner.work / "shop" / "shop" / "entry.sh").unlink()

    assert act(runner, image="missing:1") == 1

    assert b"image missing:1 of container job cannot be pulled" in runner.log.shown
    assert runner.log.shown.count(b"::error::") == 1
    assert len(runner.left()) == 2


def test_log_arrives_once_while_its_connections_break(pods: HookPods, tmp_path: Path, proxy: FaultProxy) -> None:
    """Lines with equal beginnings, one of 300 KiB, through connections that end after each second or so."""
    program = (
        'i=0; while [ $i -lt 40 ]; do echo "line $i"; echo line; sleep 0.1; i=$((i + 1)); done\n'
        "head -c 300000 /dev/zero | tr '\\0' x; echo; echo last"
    )
    kubeconfig = str(proxy.kubeconfig(pods.access.kubeconfig))
    with closing(make_client(kubeconfig=kubeconfig, policy=QUICK)) as client:
        runner = prepared(Runner(pods, tmp_path, client), program)
        done = threading.Event()

        def disturb() -> None:
            while not done.wait(0.7):
                # The copies before and after the program are not under test here: each could fail by itself.
                if b"line" in runner.log.shown and b"last" not in runner.log.shown:
                    proxy.disconnect()

        with ThreadPoolExecutor() as threads:
            disturbing = threads.submit(disturb)
            try:
                code = act(runner)
            finally:
                done.set()
                disturbing.result()
    assert code == 0, runner.log.shown
    wanted = b"".join(b"line %d\nline\n" % n for n in range(40)) + b"x" * 300_000 + b"\nlast\n"
    found = re.sub(rb"^Copy of.*\n", b"", runner.log.shown, flags=re.MULTILINE)
    assert hashlib.sha256(found).digest() == hashlib.sha256(wanted).digest(), found[:2000]


@pytest.mark.parametrize("fault", ["reset_before", "reset_after", "status-503", "status-500"])
def test_log_is_read_again_after_a_fault(pods: HookPods, tmp_path: Path, proxy: FaultProxy, fault: str) -> None:
    kind, _, status = fault.partition("-")
    proxy.add(Fault(kind=kind, status=int(status or 503), path_regex=LOGS, times=3))
    kubeconfig = str(proxy.kubeconfig(pods.access.kubeconfig))
    with closing(make_client(kubeconfig=kubeconfig, policy=QUICK)) as client:
        runner = prepared(Runner(pods, tmp_path, client), PRINTS.format(count=300))
        assert act(runner) == 0, runner.log.shown
    assert output_of(runner) == b"".join(b"line %d\n" % n for n in range(300))
    assert proxy.counts[kind] == 3


def test_cancelled_program_is_ended_with_its_pod(pods: HookPods, tmp_path: Path) -> None:
    seconds = f"6{secrets.randbelow(10**6):06}"
    runner = prepared(Runner(pods, tmp_path), f"trap '' TERM; echo begun; sleep {seconds}")
    cancelled = threading.Event()

    def clock() -> float:
        if cancelled.is_set():
            cancelled.clear()  # a command is told once, and its clean-up still reads the clock
            raise CommandCancelled("cancelled")
        return time.monotonic()

    runner.client = pods.client.with_timing(Timing(sleep=time.sleep, clock=clock))
    with ThreadPoolExecutor() as threads:
        code = threads.submit(act, runner)
        eventually(lambda: b"begun" in runner.log.shown, "the program does not run", within=60)
        assert sleepers(seconds)

        cancelled.set()

        assert code.result(30) == 1
    assert len(runner.left()) == 2
    eventually(lambda: not sleepers(seconds), "the program runs on", within=30)


def test_log_of_a_container_has_times_and_begins_at_a_second(pods: HookPods) -> None:
    """The form of a log, which `container_hooks.log_lines` expects."""
    name = pods.create(container(command=["sh", "-c", "echo a; echo b >&2; printf c"]))
    pods.wait_for(name, lambda status: "terminated" in states(status).get("job", {}))
    path = f"/api/v1/namespaces/{pods.namespace}/pods/{name}/log"

    def read(**query: str) -> bytes:
        with closing(pods.client.open(path, query={"container": "job", **query}, read_timeout=20)) as answer:
            return answer.read()

    assert read() == b"a\nb\nc"
    lines = read(timestamps="true").splitlines()
    assert [re.sub(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ", b"", each) for each in lines] == [b"a", b"b", b"c"]
    assert read(timestamps="true", sinceTime=lines[0][:19].decode() + "Z").splitlines() == lines
    assert read(sinceTime="2099-01-01T00:00:00Z") == b""
    eventually(lambda: read(follow="true") == b"a\nb\nc", "a log of a container that has ended does not end")
