"""The socket of container hooks: steps at the same time, limits, refusals, and the death of either side."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from container_hooks.conversation import CommandCancelled, Conversation, Limits
from container_hooks.desk import Session
from ostler.errors import Forbidden
from tests.unit.container_hooks.sidecar import QUICK, SHELLS, Hook, Json, Sidecar, serving
from tests.waiting import eventually

CLEANUP: Json = {"command": "cleanup_job", "args": {}}
STEP: Json = {"command": "run_script_step", "args": {}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the socket."""
    (tmp_path / "hooks").mkdir()
    return tmp_path / "hooks"


class Waiting:
    """A stand-in for the commands: `run_script_step` waits until it is released or cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.cancelled = threading.Event()
        self.cleaned_up = threading.Event()

    def __call__(self, given: Json, session: Session) -> int:
        """Execute a command."""
        if given["command"] != "run_script_step":
            return 0
        self.began.set()
        try:
            while not self.release.is_set():
                session.conversation.timing.sleep(0.05)
        except CommandCancelled:
            self.cancelled.set()
            session.conversation.timing.sleep(0.01)  # cleaning up must be able to sleep
            session.conversation.log.line("nobody reads this")
            self.cleaned_up.set()
            raise
        return 0

    def start(self, sidecar: Sidecar) -> Hook:
        """Start the waiting step, and return its `hook.sh` when the step has begun."""
        hook = sidecar.start(STEP)
        assert self.began.wait(30)
        return hook


@pytest.fixture
def waiting() -> Waiting:
    """Return a stand-in with a step that waits."""
    return Waiting()


def test_socket_and_script_can_be_used_by_the_user_and_group_of_the_pod(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting) as sidecar:
        assert stat.S_IMODE(sidecar.socket.stat().st_mode) == 0o660
        assert stat.S_IMODE((folder / "hook.sh").stat().st_mode) == 0o555
        assert sorted(path.name for path in folder.iterdir()) == ["hook.sh", "hooks.sock"]


def test_restarted_sidecar_replaces_the_socket_that_a_killed_one_left(folder: Path, waiting: Waiting) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "hooks.sock"))
    left.close()

    with serving(folder, waiting) as sidecar:
        assert sidecar.run(CLEANUP).code == 0


def test_folders_of_the_runner_reach_the_command(folder: Path) -> None:
    found: dict[str, str] = {}

    def execute(_: Json, session: Session) -> int:
        found.update(session.environment)
        return 0

    with serving(folder, execute) as sidecar:
        sidecar.run(STEP, RUNNER_WORKSPACE="/home/runner/_work/ü shop", GITHUB_WORKSPACE="")

    assert found == {
        "RUNNER_WORKSPACE": "/home/runner/_work/ü shop",
        "GITHUB_WORKSPACE": "",
        "RUNNER_TEMP": "/home/runner/_work/_temp",
    }


def test_error_of_a_command_is_one_line_of_the_log_of_the_job(folder: Path) -> None:
    def execute(_: Json, __: Session) -> int:
        raise Forbidden("POST pods: a quota\nis used up")

    with serving(folder, execute) as sidecar:
        ended = sidecar.run(STEP)

    assert (ended.code, ended.output) == (1, "ostler: POST pods: a quota is used up\n")


def test_bug_of_a_command_is_one_line_without_a_traceback(folder: Path) -> None:
    def execute(_: Json, __: Session) -> int:
        raise KeyError("secret")

    with serving(folder, execute) as sidecar, capture_logs() as logs:
        ended = sidecar.run(STEP)

    assert ended.code == 1
    assert "has a bug (KeyError)" in ended.output
    assert ended.output.count("\n") == 1
    assert "secret" not in ended.output
    assert "hooks.command_failed" in {each["event"] for each in logs}


# Bad input.


def test_input_above_the_limit_is_refused_before_it_is_parsed(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, input=1000)) as sidecar:
        ended = sidecar.run({**STEP, "args": {"entryPointArgs": ["x" * 3_000_000]}})

        assert ended.code == 1
        assert "bytes; at most 1000 are allowed" in ended.output
        assert sidecar.run(CLEANUP).code == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "not a JSON object"),
        ("{", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "must be one of prepare_job, run_script_step, run_container_step, cleanup_job"),
        ('{"command": "delete_everything"}', "not 'delete_everything'"),
        ('{"command": {"a": 1}}', "must be one of"),
        ('{"command": "prepare_job", "args": ' + "[" * 100_000, "not a JSON object"),
        ('{"command": "prepare_job", "args": {}', "not a JSON object"),
    ],
)
def test_input_that_is_no_command_is_refused_with_one_line(
    folder: Path, waiting: Waiting, given: str, says: str
) -> None:
    with serving(folder, waiting) as sidecar:
        ended = sidecar.run(given)

    assert ended.code == 1
    assert says in ended.output
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/api/v1/namespaces/x/pods", []),
        ("/run", ["--request", "GET"]),
        ("/run", ["--request", "PATCH"]),
        ("/next?id=guess&status=0", []),
        ("/next", []),
        ("/log?id=", []),
        ("/body?id=guess", []),
        ("/files?id=guess", ["--upload-file", "/dev/null"]),
        ("/run?id=guess", ["--request", "DELETE"]),
        ("/run", ["--request", "POST", "--header", "Content-Length:"]),
        ("/run", ["--request", "POST", "--header", "Content-Length: many"]),
        ("/" + "x" * 100_000, []),
    ],
)
def test_request_that_is_no_command_is_refused_and_counted(
    folder: Path, waiting: Waiting, path: str, options: list[str]
) -> None:
    with serving(folder, waiting) as sidecar, capture_logs() as logs:
        assert sidecar.ask(path, *options).startswith("refused ")
        assert sidecar.server is not None
        assert sidecar.server.desk.refused() == 1

    assert [each["refusals_since_start"] for each in logs if each["event"] == "hooks.request_refused"] == [1]


def test_refusals_are_shown_in_the_log_of_the_job_but_do_not_flood_it(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting) as sidecar:
        sidecar.ask("/before")
        first = waiting.start(sidecar)
        for number in range(10):
            sidecar.ask(f"/strange/{number}")
        waiting.release.set()
        ended = first.end()
        after = sidecar.run(CLEANUP)

    assert ended.code == 0
    assert "before this command: 1\n" in ended.output
    assert (
        ended.output.count("ostler: refused a request at the socket of container jobs: there is no GET /strange/") == 3
    )
    assert "before this command: 7\n" in after.output


def test_instruction_of_another_kind_is_no_way_to_upload(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting) as sidecar:
        hook = waiting.start(sidecar)
        assert sidecar.server is not None
        (known,) = sidecar.server.desk._commands
        assert "the present instruction is not send" in sidecar.ask(f"/files?id={known}", "--upload-file", "-")
        assert "the present instruction is not receive or write" in sidecar.ask(f"/body?id={known}")
        waiting.release.set()
        assert hook.end().code == 0


@pytest.mark.parametrize("fields", ['"args": %s', '"args": {}, "state": {"x": %s}', '"command": %s'])
def test_many_large_inputs_at_once_need_little_memory(folder: Path, waiting: Waiting, fields: str) -> None:
    """The waiting step is a command that runs, so that the inputs wait for its end."""
    content = '{"command": "prepare_job", ' + fields % f"[{'[],' * 300_000}[]]" + "}"
    with serving(folder, waiting, limits=replace(QUICK, busy=3)) as sidecar:
        first = waiting.start(sidecar)
        tracemalloc.start()
        hooks = [sidecar.start(content) for _ in range(10)]
        codes = [each.end().code for each in hooks]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        waiting.release.set()
        first.end()

    assert codes == [1] * 10
    assert peak < 4 * 10 * len(content)


def test_idle_connections_do_not_prevent_a_command(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, connections=4)) as sidecar:
        idle = [socket.socket(socket.AF_UNIX) for _ in range(12)]
        for each in idle:
            each.connect(str(sidecar.socket))
            each.send(b"POST /run HTTP/1.1\r\nContent-Length: 1000\r\n")
        assert sidecar.run(CLEANUP).code == 0
        for each in idle:
            each.close()


# Several commands.


class Steps:
    """A stand-in for the commands: a step prints its number, and ends when its number is released."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.cancelled: set[int] = set()
        self.released: set[int] = set()
        self.most = 0

    def __call__(self, given: Json, session: Session) -> int:
        """Execute a command."""
        if not given["command"].startswith("run_"):
            return 0
        number = int(given["args"]["number"])
        session.conversation.log.line(f"step {number}")
        self.running.add(number)
        self.most = max(self.most, len(self.running))
        try:
            while number not in self.released:
                session.conversation.timing.sleep(0.05)
        except CommandCancelled:
            self.cancelled.add(number)
            raise
        finally:
            self.running.discard(number)
        return number

    def start(self, sidecar: Sidecar, number: int, *, command: str = "run_script_step") -> Hook:
        """Start a step, and return its `hook.sh` when the step runs."""
        hook = sidecar.start({"command": command, "args": {"number": number}})
        eventually(lambda: number in self.running, f"step {number} does not run")
        return hook


@pytest.fixture
def steps() -> Steps:
    """Return a stand-in with numbered steps."""
    return Steps()


def test_ten_steps_run_at_once_and_the_eleventh_waits_and_says_so(folder: Path, steps: Steps) -> None:
    assert (Limits().at_once, Limits().told) == (10, 5)
    with serving(folder, steps, limits=replace(QUICK, told=0.5, busy=0.5, silent=60)) as sidecar:
        hooks = [steps.start(sidecar, number) for number in range(10)]
        eleventh = sidecar.start({**STEP, "args": {"number": 10}})
        assert eleventh.process.stdout is not None
        assert eleventh.process.stdout.readline() == (
            "ostler: run_script_step waits for 10 earlier commands to end (run_script_step)\n"
        )
        assert 10 not in steps.running
        steps.released |= {3, 10}
        codes = {3: hooks[3].end().code, 10: eleventh.end().code}
        steps.released |= set(range(10))
        ended = [hook.end() for hook in hooks if hook is not hooks[3]]

    assert codes == {3: 3, 10: 10}
    assert steps.most == 10
    assert [(each.code, each.output) for each in ended] == [(n, f"step {n}\n") for n in range(10) if n != 3]


def test_cancelled_step_leaves_the_others_running(folder: Path, steps: Steps) -> None:
    with serving(folder, steps, limits=replace(QUICK, silent=600)) as sidecar:
        hooks = [steps.start(sidecar, number) for number in range(3)]
        os.kill(hooks[1].process.pid, signal.SIGTERM)
        assert hooks[1].end().code == 143
        eventually(lambda: steps.cancelled == {1}, "the step was not cancelled")
        later = steps.start(sidecar, 4)
        assert steps.running == {0, 2, 4}
        steps.released |= {0, 2, 4}

        assert [hook.end().code for hook in (hooks[0], hooks[2], later)] == [0, 2, 4]


def test_step_of_a_killed_script_leaves_the_others_running(folder: Path, steps: Steps) -> None:
    with serving(folder, steps, limits=replace(QUICK, silent_when_wanted=60)) as sidecar:
        hooks = [steps.start(sidecar, number) for number in range(2)]
        os.kill(hooks[0].process.pid, signal.SIGKILL)
        eventually(lambda: steps.cancelled == {0}, "the step of the killed script was not cancelled", within=20)
        assert steps.running == {1}
        steps.released.add(1)

        assert hooks[1].end().code == 1
        hooks[0].end()


def test_cleanup_job_ends_all_steps(folder: Path, steps: Steps) -> None:
    with serving(folder, steps) as sidecar:
        hooks = [steps.start(sidecar, number) for number in range(3)]

        assert sidecar.run(CLEANUP).code == 0
        assert steps.cancelled == {0, 1, 2}
        assert [hook.end().code for hook in hooks] == [1, 1, 1]


def test_one_step_in_a_container_of_its_own_runs_at_a_time(folder: Path, steps: Steps) -> None:
    with serving(folder, steps, limits=replace(QUICK, told=0.5, busy=0.5)) as sidecar:
        first = steps.start(sidecar, 1, command="run_container_step")
        second = sidecar.start({"command": "run_container_step", "args": {"number": 2}})
        third = steps.start(sidecar, 3)
        assert second.process.stdout is not None
        assert "waits for 1 earlier commands to end (run_container_step)" in second.process.stdout.readline()
        assert steps.running == {1, 3}
        steps.released |= {1, 2, 3}

        assert [hook.end().code for hook in (first, second, third)] == [1, 2, 3]


def test_command_that_waits_does_not_count_as_running(folder: Path, steps: Steps) -> None:
    """A second Docker action waits for the first, so the first may replace the whole workspace of the job."""
    alone: list[bool] = []
    replacing, replaced = threading.Event(), threading.Event()

    def execute(given: Json, session: Session) -> int:
        code = steps(given, session)
        if code == 1:
            alone.append(session.alone())
            replacing.set()
            assert replaced.wait(30)
        return code

    with serving(folder, execute, limits=replace(QUICK, told=0.5, silent_when_wanted=60)) as sidecar:
        first = steps.start(sidecar, 1, command="run_container_step")
        second = sidecar.start({"command": "run_container_step", "args": {"number": 2}})
        assert second.process.stdout is not None
        assert "waits for" in second.process.stdout.readline()
        steps.released |= {1, 2, 3}
        assert replacing.wait(30)
        third = sidecar.start({**STEP, "args": {"number": 3}})
        assert third.process.stdout is not None
        assert "waits for" in third.process.stdout.readline()  # its files would be lost
        replaced.set()

        assert [hook.end().code for hook in (first, second, third)] == [1, 2, 3]
    assert alone == [True]


def test_step_that_runs_beside_a_docker_action_keeps_its_files(folder: Path, steps: Steps) -> None:
    alone: list[bool] = []

    def execute(given: Json, session: Session) -> int:
        code = steps(given, session)
        alone.append(session.alone())
        return code

    with serving(folder, execute) as sidecar:
        first = steps.start(sidecar, 1, command="run_container_step")
        beside = steps.start(sidecar, 2)
        steps.released |= {1}
        assert first.end().code == 1
        steps.released |= {2}
        assert beside.end().code == 2

    assert alone == [False, True]


def test_command_cannot_be_read_or_cancelled_without_its_whole_id(folder: Path, tmp_path: Path, steps: Steps) -> None:
    """A hostile job knows the id of its own step, and of a step in another Pod. It guesses those of the others."""
    elsewhere = tmp_path / "another Pod"
    elsewhere.mkdir()
    with serving(folder, steps, limits=replace(QUICK, silent=600)) as sidecar, serving(elsewhere, steps) as other:
        hooks = [steps.start(sidecar, number) for number in (1, 2)]
        assert sidecar.server is not None
        ids = list(sidecar.server.desk._commands)
        foreign = other.ask("/run", "--data-binary", json.dumps(STEP)).removeprefix("run ")
        guesses = ["", "0" * 16, ids[0][:-1], ids[0] + "0", ids[0].upper() + "x", foreign, "%00", "*"]
        for guess in guesses:
            for path, options in (
                (f"/next?id={guess}&status=0", ()),
                (f"/log?id={guess}", ()),
                (f"/body?id={guess}", ()),
                (f"/files?id={guess}", ("--upload-file", "/dev/null", "--header", "Transfer-Encoding: chunked")),
                (f"/run?id={guess}", ("--request", "DELETE")),
            ):
                assert sidecar.ask(path, *options).startswith("refused the sidecar of container jobs was restarted")
        assert steps.cancelled == set()
        assert sidecar.server.desk.refused() == 5 * len(guesses)
        steps.released |= {1, 2}
        ended = [hook.end() for hook in hooks]

    assert [each.code for each in ended] == [1, 2]
    assert not any(known in each.output for each in ended for known in ids)


def test_files_of_two_steps_do_not_mix(folder: Path, tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=30)

    def execute(given: Json, session: Session) -> int:
        source = tmp_path / given["args"]["name"]
        together.wait()
        chunks = list(session.conversation.files.send(str(source)))
        together.wait()
        session.conversation.files.receive(str(tmp_path / f"copy of {source.name}"), chunks)
        return 0

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"file of {name}").write_bytes(name.encode() * 3_000_000)
    with serving(folder, execute) as sidecar:
        hooks = [sidecar.start({**STEP, "args": {"name": name}}) for name in ("a", "b")]
        assert [hook.end().code for hook in hooks] == [0, 0]

    for name in ("a", "b"):
        (copied,) = (tmp_path / f"copy of {name}").iterdir()
        assert (copied.name, copied.read_bytes()) == (f"file of {name}", name.encode() * 3_000_000)


def test_commands_that_wait_are_limited_and_the_next_is_refused(folder: Path, steps: Steps) -> None:
    with serving(folder, steps, limits=replace(QUICK, at_once=1, commands=3, told=0.2, silent=60)) as sidecar:
        first = steps.start(sidecar, 0)
        waiting = [sidecar.start({**STEP, "args": {"number": number}}) for number in (1, 2)]
        for each in waiting:
            assert each.process.stdout is not None
            assert "waits for" in each.process.stdout.readline()
        refused = sidecar.run({**STEP, "args": {"number": 3}})
        steps.released |= {0, 1, 2, 4}
        codes = [each.end().code for each in (first, *waiting)]
        after = sidecar.run({**STEP, "args": {"number": 4}})

    assert refused.code == 1
    assert "still running in this Pod" in refused.output
    assert (codes, after.code) == ([0, 1, 2], 4)


def test_stuck_step_holds_no_other_step(folder: Path) -> None:
    never, restarted, began = threading.Event(), threading.Event(), threading.Event()
    release = threading.Event()

    def execute(given: Json, session: Session) -> int:
        if given["args"].get("stuck"):
            began.set()
            never.wait(60)
        while given["args"].get("waits") and not release.is_set():
            session.conversation.timing.sleep(0.05)
        return 0

    with serving(folder, execute, limits=replace(QUICK, stuck=0.5), restart=restarted.set) as sidecar:
        living = sidecar.start({**STEP, "args": {"waits": True}})
        stuck = sidecar.start({**STEP, "args": {"stuck": True}})
        assert began.wait(30)
        os.kill(stuck.process.pid, signal.SIGTERM)
        stuck.end()

        assert sidecar.run(STEP).code == 0
        assert not restarted.is_set()
        release.set()
        assert living.end().code == 0
        never.set()


def test_second_command_is_refused_while_the_first_runs(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting) as sidecar:
        first = waiting.start(sidecar)
        second = sidecar.run({"command": "prepare_job", "args": {}})
        waiting.release.set()
        ended = first.end()

    assert (second.code, ended.code) == (1, 0)
    assert "another command of container hooks is still running" in second.output
    assert ended.output == ""


def test_second_command_is_served_when_the_first_ends_in_time(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, busy=30)) as sidecar:
        first = waiting.start(sidecar)
        second = sidecar.start({"command": "prepare_job", "args": {}})
        waiting.release.set()

        assert (first.end().code, second.end().code) == (0, 0)


def test_cleanup_job_ends_a_command_whose_script_still_waits(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting) as sidecar:
        first = waiting.start(sidecar)

        assert sidecar.run(CLEANUP).code == 0
        assert waiting.cleaned_up.wait(10)
        assert first.end().code == 1


def test_sidecar_restarts_when_a_cancelled_command_does_not_end(folder: Path) -> None:
    began, never, restarted = threading.Event(), threading.Event(), threading.Event()

    def execute(given: Json, _: Session) -> int:
        if given["command"] == "run_script_step":
            began.set()
            never.wait(60)
        return 0

    limits = replace(QUICK, stuck=0.5)
    with serving(folder, execute, limits=limits, restart=restarted.set) as sidecar:
        first = sidecar.start(STEP)
        assert began.wait(30)
        first.kill_group()
        sidecar.run(CLEANUP)

        assert restarted.is_set()
        never.set()


# A killed hook.sh.


def test_killed_script_cancels_its_command_and_the_next_one_is_served(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, silent=60, silent_when_wanted=60)) as sidecar:
        waiting.start(sidecar).kill_group()

        assert waiting.cancelled.wait(20)
        assert sidecar.run(CLEANUP).code == 0
        assert waiting.cleaned_up.is_set()


def test_script_killed_without_its_curl_is_noticed_by_its_silence(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, silent_when_wanted=60)) as sidecar:
        hook = waiting.start(sidecar)
        os.kill(hook.process.pid, signal.SIGKILL)

        assert waiting.cancelled.wait(20)
        hook.end()
        assert sidecar.run(CLEANUP).code == 0


def test_next_command_ends_the_command_of_a_killed_script(folder: Path, waiting: Waiting) -> None:
    with serving(folder, waiting, limits=replace(QUICK, silent=600, busy=30)) as sidecar:
        hook = waiting.start(sidecar)
        os.kill(hook.process.pid, signal.SIGKILL)

        assert sidecar.run({"command": "prepare_job", "args": {}}).code == 0
        assert waiting.cancelled.is_set()
        hook.end()


def test_cut_log_cancels_the_command_instead_of_blocking_it(folder: Path, waiting: Waiting) -> None:
    def speaks(given: Json, session: Session) -> int:
        session.conversation.log.line("it waits")
        return waiting(given, session)

    with serving(folder, speaks, limits=replace(QUICK, silent=600)) as sidecar:
        hook = waiting.start(sidecar)
        assert hook.process.stdout is not None
        assert "it waits" in hook.process.stdout.readline()  # a connection that was never made cannot be cut
        os.kill(eventually(lambda: curl_of_the_log(hook)), signal.SIGKILL)

        assert waiting.cancelled.wait(20)
        assert hook.end().code == 1


def test_command_whose_log_nobody_reads_ends_with_a_line(folder: Path) -> None:
    """The connection for the log was never made, and the command has more output than the log stores."""

    def execute(given: Json, session: Session) -> int:
        for _ in range(3 if given["command"] == "run_script_step" else 0):
            session.conversation.log.raw(bytes(1024 * 1024))
            session.conversation.timing.clock()
        return 0

    with serving(folder, execute, limits=replace(QUICK, stall=1)) as sidecar:
        known = sidecar.ask("/run", "--data", json.dumps(STEP)).removeprefix("run ")
        answers = (sidecar.ask(f"/next?id={known}&status=0") for _ in range(100))

        assert next(each for each in answers if each != "wait") == (
            "refused the command was cancelled: the log of the command is not read: no bytes were read for 1 s"
        )
        assert sidecar.run(CLEANUP).code == 0


def curl_of_the_log(hook: Hook) -> int | None:
    """Return the process id of the curl that prints the log of a command."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"/log?id=" in path.read_bytes() and os.getpgid(int(path.parent.name)) == hook.process.pid:
                return int(path.parent.name)
    return None


@pytest.mark.parametrize("shell", ["dash", "runner"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signal_to_the_script_cancels_its_command(
    folder: Path, waiting: Waiting, shell: str, number: signal.Signals, code: int
) -> None:
    limits = replace(QUICK, silent=600, silent_when_wanted=600)
    with serving(folder, waiting, shell=shell, limits=limits) as sidecar:
        hook = waiting.start(sidecar)
        os.kill(hook.process.pid, number)

        assert hook.end().code == code
        assert waiting.cancelled.wait(20)


def test_script_killed_during_a_copy_cancels_its_command(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(os.urandom(10_000_000))
    copying, cancelled = threading.Event(), threading.Event()

    def execute(given: Json, session: Session) -> int:
        if given["command"] == "cleanup_job":
            return 0
        try:
            for _ in session.conversation.files.send(str(tmp_path / "source")):
                copying.set()
                session.conversation.timing.sleep(0.2)
        except CommandCancelled:
            cancelled.set()
            raise
        return 0

    with serving(folder, execute) as sidecar:
        hook = sidecar.start(STEP)
        assert copying.wait(30)
        hook.kill_group()

        assert cancelled.wait(20)
        assert sidecar.run(CLEANUP).code == 0


# A killed sidecar.


def start_alone(folder: Path) -> subprocess.Popen[bytes]:
    """Start a sidecar in a process of its own, and return it when it serves the socket."""
    (folder / "hooks.sock").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "tests.unit.container_hooks.stand_in", str(folder)])
    eventually((folder / "hooks.sock").exists, "the sidecar did not start")
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and collect it."""
    process.kill()
    process.wait(10)


@pytest.mark.parametrize("shell", ["dash", "runner"])
def test_killed_sidecar_fails_the_command_with_one_line(folder: Path, tmp_path: Path, shell: str) -> None:
    process = start_alone(folder)
    hook = Sidecar(folder, SHELLS[shell]).start({**STEP, "args": {"until": str(tmp_path / "never")}})
    assert hook.process.stdout is not None
    assert hook.process.stdout.readline() == "run_script_step began\n"

    kill(process)
    ended = hook.end()

    assert ended.code == 1
    assert "the sidecar of container jobs did not finish this command" in ended.output
    assert ended.output.count("\n") == 1


def test_restarted_sidecar_refuses_the_lost_command_and_serves_cleanup_job(folder: Path, tmp_path: Path) -> None:
    process = start_alone(folder)
    sidecar = Sidecar(folder, SHELLS["dash"])
    hook = sidecar.start({**STEP, "args": {"until": str(tmp_path / "never")}})
    assert hook.process.stdout is not None
    hook.process.stdout.readline()
    os.kill(hook.process.pid, signal.SIGSTOP)
    kill(process)
    process = start_alone(folder)
    os.kill(hook.process.pid, signal.SIGCONT)

    assert hook.end().code == 1
    (tmp_path / "now").touch()
    assert sidecar.run({**CLEANUP, "args": {"until": str(tmp_path / "now")}}).code == 0
    kill(process)


def test_command_waits_for_a_sidecar_that_restarts(folder: Path, tmp_path: Path) -> None:
    kill(start_alone(folder))
    (tmp_path / "now").touch()
    hook = Sidecar(folder, SHELLS["dash"]).start({**CLEANUP, "args": {"until": str(tmp_path / "now")}})
    assert hook.process.stdout is not None
    assert "waiting for the sidecar of container jobs" in hook.process.stdout.readline()
    process = start_alone(folder)

    assert hook.end().code == 0
    kill(process)


def test_script_gives_up_when_no_sidecar_answers(folder: Path) -> None:
    kill(start_alone(folder))

    ended = Sidecar(folder, SHELLS["dash"]).run(CLEANUP, OSTLER_HOOKS_WAIT="1")

    assert ended.code == 1
    assert "does not answer" in ended.output
    assert "Check the log of container `hooks` of this Pod" in ended.output


# The end of the Pod. The kubelet sends SIGTERM to the sidecar when the container `runner` has ended.


@pytest.mark.parametrize("killed", [True, False], ids=["runner was killed", "runner lives"])
def test_sidecar_that_is_ended_during_a_command_cleans_up(folder: Path, tmp_path: Path, *, killed: bool) -> None:
    process = start_alone(folder)
    hook = Sidecar(folder, SHELLS["dash"]).start({**STEP, "args": {"until": str(tmp_path / "never")}})
    assert hook.process.stdout is not None
    hook.process.stdout.readline()
    if killed:
        hook.kill_group()

    process.terminate()

    assert process.wait(20) == 0
    assert (folder / "cleaned-up").exists()
    if not killed:
        assert hook.end().code == 1


@pytest.mark.parametrize("commands", [[], [STEP], [STEP, CLEANUP]], ids=len)
def test_sidecar_cleans_up_at_its_end_only_if_the_runner_did_not(
    folder: Path, tmp_path: Path, commands: list[Json]
) -> None:
    process = start_alone(folder)
    (tmp_path / "now").touch()
    for each in commands:
        assert Sidecar(folder, SHELLS["dash"]).run({**each, "args": {"until": str(tmp_path / "now")}}).code == 0

    process.terminate()

    assert process.wait(20) == 0
    assert (folder / "cleaned-up").exists() == (len(commands) == 1)


def test_thread_of_an_earlier_attempt_does_not_take_the_cancel_from_the_command() -> None:
    conversation = Conversation(QUICK)
    told: list[str] = []

    def sleeps() -> None:
        with suppress(CommandCancelled):
            conversation.timing.sleep(60)

    def command() -> int:
        leftover = threading.Thread(target=sleeps)
        leftover.start()
        conversation.cancel("hook.sh ended")
        leftover.join(10)
        assert not leftover.is_alive()
        try:
            conversation.timing.sleep(0)
        except CommandCancelled:
            told.append("told")
        conversation.timing.sleep(0)  # cleaning up can sleep
        return 0

    conversation.started.set()
    assert conversation.run(command) == 0
    assert told == ["told"]
