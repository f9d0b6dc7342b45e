"""Steps continue while the connection to them is broken: real shells, and connections cut after any byte."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from container_hooks.conversation import CommandCancelled
from container_hooks.detached import Place, StepKilled, StepNotStarted, _Step, run_detached
from container_hooks.spool import Spool, mark_of
from ostler.clock import Timing
from ostler.errors import ExecLost, Gone, Retryable
from tests.waiting import eventually

FAST = Timing(clock=time.monotonic, sleep=lambda _seconds: time.sleep(0.01))
IGNORED = bytearray().extend
NUMBERS = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i + 1)); done"
ALL_LINES = "".join(f"line {number}\n" for number in range(40)).encode()


class Shells:
    """Processes of this machine behind connections that break after the given numbers of bytes.

    None is a connection that does not break. A number below zero refuses the command before it begins.
    """

    def __init__(self, cuts: Iterable[int | None] = (), *, shell: Sequence[str] = ("sh",)) -> None:
        self._cuts: Iterator[int | None] = itertools.chain(cuts, itertools.repeat(None))
        self._shell = shell
        self.connections = 0

    def run(
        self,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: Iterable[bytes] | None = None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        writes_often: bool = False,
    ) -> int:
        del writes_often
        assert (pod, container) == ("pod", "job")
        self.connections += 1
        left = next(self._cuts)
        if left is not None and left < 0:
            raise Retryable("503", status=503)
        words = [*self._shell, *command[1:]]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            feeder = threading.Thread(target=_feed, args=(process, stdin))
            feeder.start()
            try:
                while data := os.read(process.stdout.fileno(), 65_536 if left is None else max(1, left)):
                    if left is not None and left < len(data):
                        raise ExecLost("cut")  # noqa: TRY301
                    stdout(data)
                    left = None if left is None else left - len(data)
            except BaseException:
                process.kill()
                raise
            finally:
                if left is not None:
                    process.kill()
                process.wait()
                feeder.join()
            if left is not None:
                raise ExecLost("cut before the status")
            stderr(process.stderr.read())
            return process.returncode


def _feed(process: subprocess.Popen[bytes], stdin: Iterable[bytes] | None) -> None:
    """Write the input of a process until its end, as a connection does."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        for piece in stdin or ():
            process.stdin.write(piece)
            if process.poll() is not None:
                break
    process.stdin.close()


def run(
    tmp_path: Path, script: str, shells: Shells, *, patience: float = 60, size: Spool | None = None
) -> tuple[int, bytes]:
    """Run a script as a step, and return its exit code and its output."""
    output = bytearray()
    place = Place(pod="pod", container="job", folder=str(tmp_path / "step"))
    code = run_detached(
        shells,
        place,
        ["sh", "-ec", script],
        output=output.extend,
        why_ended=lambda: None,
        timing=FAST,
        patience=patience,
        size=size,
    )
    return code, bytes(output)


@pytest.mark.parametrize("shell", [("dash",), ("busybox", "sh"), ("bash",)], ids=lambda words: words[0])
def test_step_returns_its_output_and_its_exit_code(tmp_path: Path, shell: tuple[str, ...]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")

    assert run(tmp_path, f"{NUMBERS}; echo oops >&2; exit 7", Shells(shell=shell)) == (7, ALL_LINES + b"oops\n")


def busybox_in(folder: Path) -> str:
    """Return a folder for PATH in which each program that a step needs is BusyBox's."""
    found = shutil.which("busybox")
    if found is None:
        pytest.skip("busybox is not installed")
    for name in ("sh", "cat", "dd", "head", "mkdir", "mv", "rm", "sleep", "stat", "tail"):
        (folder / name).symlink_to(found)
    return str(folder)


def test_output_of_any_size_is_followed_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has 1 TiB, which no program can read in the time of a test."""
    (tmp_path / "bin").mkdir()
    folder = tmp_path / "step"
    (folder / "ended.4").mkdir(parents=True)
    (folder / "out").mkdir()
    with (folder / "out" / str(10**18)).open("wb") as output:
        output.seek(2**40)
        output.write(b"the last line\n" + mark_of(str(folder)) + b"\n")
    monkeypatch.setenv("PATH", busybox_in(tmp_path / "bin"))
    place, shown = Place(pod="pod", container="job", folder=str(folder)), bytearray()
    step = _Step(Shells(), place, shown.extend, Spool(), seen=2**40 + 4)

    assert (step.follow(), bytes(shown)) == (4, b"last line\n")


def test_step_needs_only_programs_of_busybox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", busybox_in(tmp_path / "bin"))

    assert run(tmp_path, f"{NUMBERS}; exit 7", Shells([None, 30, 70_000])) == (7, ALL_LINES)


def test_step_that_fills_the_disk_has_its_exit_code(tmp_path: Path) -> None:
    """No process can write beyond 512 bytes of a file: the limit of the file size answers as a full disk does."""
    words = ("sh", "-c", "trap '' XFSZ; ulimit -f 1; exec sh \"$@\"", "sh")

    code, output = run(tmp_path, "head -c 2000 /dev/zero; exit 5", Shells(shell=words))

    assert code == 5
    assert output.startswith(bytes(512))
    assert output.endswith(b"a part of the output is missing, because the disk of the container was full\n")


def test_step_that_meets_a_full_disk_is_not_started(tmp_path: Path) -> None:
    words = ("sh", "-c", "trap '' XFSZ; ulimit -f 0; exec sh \"$@\"", "sh")
    shells = Shells(shell=words)

    with pytest.raises(StepNotStarted, match="free disk space"):
        run(tmp_path, f"echo begun > {tmp_path}/begun", shells)

    assert not (tmp_path / "begun").exists()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.one_of(st.integers(-1, 400), st.none()), max_size=6))
def test_each_byte_arrives_once_wherever_connections_break(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int | None]
) -> None:
    folder = tmp_path_factory.mktemp("steps")

    small = Spool(segments=2, blocks=1)
    assert run(folder, f"echo begun >> {folder}/begun; {NUMBERS}", Shells(cuts), size=small) == (0, ALL_LINES)

    assert (folder / "begun").read_text() == "begun\n"


def test_step_goes_on_without_a_connection_and_is_not_repeated(tmp_path: Path) -> None:
    script = f"echo begun >> {tmp_path}/begun; echo one; sleep 0.5; echo two; {NUMBERS}"

    assert run(tmp_path, script, Shells([None, 1, -1, -1, -1, 2])) == (0, b"one\ntwo\n" + ALL_LINES)

    assert (tmp_path / "begun").read_text() == "begun\n"


def test_step_whose_process_is_killed_has_no_exit_code(tmp_path: Path) -> None:
    with pytest.raises(StepKilled, match="memory"):
        run(tmp_path, "kill -9 $PPID; sleep 1", Shells())


def test_step_that_ends_by_a_signal_has_its_code(tmp_path: Path) -> None:
    assert run(tmp_path, "kill -TERM $$", Shells())[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & wait", "trap '' TERM; while :; do sleep 0.1; done"])
def test_cancelled_step_is_ended_with_its_processes(tmp_path: Path, script: str) -> None:
    def cancelled(_data: bytes) -> None:
        raise CommandCancelled("hook.sh was ended by a signal")

    place = Place(pod="pod", container="job", folder=str(tmp_path / "step"))
    words = ["env", f"STEP={tmp_path}", "sh", "-c", f"echo begun; {script}"]

    with pytest.raises(CommandCancelled):
        run_detached(Shells(), place, words, output=cancelled, why_ended=lambda: None, timing=FAST)

    eventually(lambda: not living(f"STEP={tmp_path}"), "the step still runs", within=5)


def living(variable: str) -> list[int]:
    """Return the processes that have a variable in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if variable.encode() in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
    return found


def test_step_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "step").write_text("a file where a folder is expected")

    with pytest.raises(StepNotStarted, match="exist"):
        run(tmp_path, "true", Shells())


def test_endless_words_of_a_shell_are_not_stored(tmp_path: Path) -> None:
    class Chatty(Shells):
        def run(self, *_args: object, **streams: Any) -> int:
            for _ in range(64):
                streams["stderr"](bytes(1024 * 1024))
            return 1

    with pytest.raises(StepNotStarted) as caught:
        run(tmp_path, "true", Chatty())

    assert len(str(caught.value)) <= 4096


def test_container_that_answers_no_more_ends_the_step_after_the_patience(tmp_path: Path) -> None:
    shells = Shells(itertools.chain([None], itertools.repeat(-1)))

    with pytest.raises(Retryable):
        run(tmp_path, "sleep 3", shells, patience=0.2)

    assert shells.connections > 2


@pytest.mark.parametrize("refusals", [1, 1000], ids=["is reached again", "is never reached again"])
def test_step_is_ended_when_its_container_did_not_answer_for_the_patience(tmp_path: Path, refusals: int) -> None:
    """The connection is away for longer than the patience, which is one refused connection here."""
    clock = itertools.count(0, 100)
    timing = Timing(clock=lambda: float(next(clock)), sleep=lambda _seconds: None)
    place = Place(pod="pod", container="job", folder=str(tmp_path / "step"))
    cuts = [None, 0, *[-1] * refusals]
    words = ["env", f"STEP={tmp_path}", "sh", "-c", "echo begun; sleep 60"]

    with pytest.raises(Retryable), capture_logs() as logs:
        run_detached(Shells(cuts), place, words, output=IGNORED, why_ended=lambda: None, timing=timing, patience=10)

    [event] = [each for each in logs if each["event"].startswith("hooks.step")]
    if refusals == 1:
        assert event["event"] == "hooks.step_ended"
        eventually(lambda: not living(f"STEP={tmp_path}"), "the step still runs", within=5)
    else:
        assert (event["event"], event["error"]) == ("hooks.step_not_ended", "Retryable")
        for pid in living(f"STEP={tmp_path}"):
            os.kill(pid, signal.SIGKILL)


def test_quiet_step_shows_that_its_container_lives(tmp_path: Path) -> None:
    """The connection to a node that is gone can stay open for a long time, so silence must mean something."""
    heard = bytearray()

    class Watched(Shells):
        def run(self, *words: Any, **streams: Any) -> int:
            stderr = streams["stderr"]

            def hears(data: bytes) -> None:
                heard.extend(data)
                stderr(data)

            return super().run(*words, **{**streams, "stderr": hears})

    assert run(tmp_path, "sleep 6; exit 3", Watched()) == (3, b"")

    assert heard.splitlines()[0] == b"alive"
    assert heard.splitlines()[-1] == b"3"


def test_step_that_is_ended_before_it_begins_never_begins(tmp_path: Path) -> None:
    """Its start is lost, and the first connection is delayed until the step was ended."""
    delayed: list[Sequence[str]] = []

    class Delayed(Shells):
        def run(self, pod: str, container: str, command: Sequence[str], **streams: Any) -> int:
            if not delayed:
                delayed.append(command)
                raise CommandCancelled("hook.sh was ended by a signal")
            return super().run(pod, container, command, **streams)

    shells = Delayed()
    with pytest.raises(CommandCancelled):
        run(tmp_path, f"echo begun > {tmp_path}/begun", shells)

    assert shells.run("pod", "job", delayed[0], stdout=IGNORED, stderr=IGNORED) == 0

    time.sleep(0.5)
    assert not (tmp_path / "begun").exists()


def test_long_silence_before_a_broken_connection_is_no_reason_to_give_up(tmp_path: Path) -> None:
    """The connection lasted longer than the patience, and then broke."""
    clock = itertools.count(0, 100)
    place = Place(pod="pod", container="job", folder=str(tmp_path / "step"))
    timing = Timing(clock=lambda: float(next(clock)), sleep=lambda _seconds: None)

    assert (
        run_detached(
            Shells([None, 0, 0, 0]),
            place,
            ["true"],
            output=IGNORED,
            why_ended=lambda: None,
            timing=timing,
            patience=150,
        )
        == 0
    )


def test_step_whose_container_ended_is_not_waited_for(tmp_path: Path) -> None:
    place = Place(pod="pod", container="job", folder=str(tmp_path / "step"))

    with pytest.raises(StepKilled, match="OOMKilled"):
        run_detached(Shells([-1]), place, ["true"], output=IGNORED, why_ended=lambda: "OOMKilled", timing=FAST)


def test_container_that_is_gone_ends_the_step_at_once(tmp_path: Path) -> None:
    class Deleted(Shells):
        def run(self, *_args: object, **_kwargs: object) -> int:
            raise Gone("pods not found")

    with pytest.raises(Gone):
        run(tmp_path, "true", Deleted())


def test_detached_step_leaves_no_process_when_it_ends(tmp_path: Path) -> None:
    run(tmp_path, f"echo $$ > {tmp_path}/pid", Shells())

    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists() or os.getpid() == pid, "the step still runs", within=5)
