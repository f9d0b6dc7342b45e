"""`ostler top` shows the fleet on a terminal, without one, and for scripts."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lab.processes import default_signals
from tests.integration.cli.test_operator import Operator, count_pods, operator
from tests.integration.cli.test_stats import history

__all__ = ["history", "operator"]

Terminal = tuple[subprocess.Popen[bytes], Callable[[str], str], int]
"""A process on a terminal, a wait for a text on the terminal, and the terminal."""

AWAY = "postgresql+psycopg2://u:hunter2@127.0.0.1:1/x"


def test_top_without_a_terminal_prints_the_screen_once(history: Operator) -> None:
    for arguments in ((), ("--once",)):
        done = history.run("top", *arguments, COLUMNS="80")
        assert done.returncode == 0, done.stderr
        shown = done.stdout.splitlines()
        assert max(map(len, shown)) <= 80
        assert "\x1b" not in done.stdout
        words = [line.split() for line in shown]
        assert ["linux", "1", "3", "2", "0", "1", "3", "1", "0"] in [line[:9] for line in words]
        assert ["acme", "1/20", "1", "0", "0"] in [line[:5] for line in words]
        assert next(line for line in words if line[:1] == ["acme"])[-2:] == ["30s", "30s"]
        assert shown[-2:] == ["claims: 1 delivered", "repairs in the last hour: resume 2 (1 failed)"]


def test_top_prints_one_json_object_with_the_units_of_the_api(history: Operator) -> None:
    found = history.json("top")
    assert list(found) == ["at", "problems", "pools", "accounts", "claims", "repairs_of_last_hour"]
    (pool,) = found["pools"]
    assert (pool["name"], pool["queued"], pool["pods"]["warm"], pool["problem"]) == ("linux", 1, 2, None)
    acme = next(each for each in found["accounts"] if each["login"] == "acme")
    (listed,) = history.json("account", "list", "--login", "acme")
    assert {name: acme[name] for name in ("budget", "usage")} == {name: listed[name] for name in ("budget", "usage")}
    assert (acme["waits_of_last_hour"]["p50_seconds"], acme["waits_of_last_hour"]["runner_minutes"]) == (30, 10)
    assert found["claims"] == [{"purpose": "job", "state": "delivered", "count": 1}]
    assert found["repairs_of_last_hour"] == [
        {"sweep": "resume", "outcome": "failed", "count": 1},
        {"sweep": "resume", "outcome": "verified", "count": 1},
    ]


def test_top_begins_with_the_freeze_and_the_closed_gates(operator: Operator) -> None:
    operator.execute("UPDATE epochs SET older_since = now(), why = 'Postgres is at epoch 1'")
    operator.execute("INSERT INTO gates (upstream, closed_at, why) VALUES ('github', now(), '9 of 9 calls failed')")
    frozen, gate = operator.json("top")["problems"]
    assert frozen.startswith("no job is matched and no Pod is retired: Postgres is older than the cluster")
    assert gate.startswith("the autoscaler changes no pool: the gate of github has been tripped since")
    shown = operator.run("top").stdout.splitlines()
    assert shown[1].startswith("no job is matched and no Pod is retired: Postgres is older")


def test_top_of_an_empty_database_and_of_none(operator: Operator) -> None:
    away = operator.run("top", "--once", OSTLER_DATABASE_URL=AWAY)
    assert (away.returncode, away.stderr.count("\n")) == (3, 1)
    operator.execute("UPDATE pools SET deleted_at = now()")
    assert "no pools" in operator.run("top").stdout


@contextmanager
def on_a_terminal(environment: dict[str, str], *arguments: str) -> Iterator[Terminal]:
    """Run `ostler` on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "ostler", *arguments],
        env=environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=default_signals,  # noqa: PLW1509  it calls one function of libc
    )
    seen = ""

    def until(text: str) -> str:
        nonlocal seen
        end = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < end, f"the terminal did not show {text!r} but {seen!r}"
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536).decode(errors="replace")
        found, seen = seen, ""
        return found

    try:
        yield process, until, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_top_on_a_terminal_changes_its_order_and_ends_with_q(operator: Operator) -> None:
    count_pods(operator)
    with on_a_terminal(operator.environment(), "top", "--every", "60") as (process, until, terminal):
        assert "linux" in until("repairs in the last hour")
        before = termios.tcgetattr(terminal)
        os.write(terminal, b"s")
        until("ordered by queue age")
        os.write(terminal, b"q")
        assert process.wait(timeout=60) == 0
        assert termios.tcgetattr(terminal)[3] & termios.ECHO > before[3] & termios.ECHO


def test_top_opens_the_queued_jobs_one_after_the_other(operator: Operator) -> None:
    with on_a_terminal(operator.environment(), "top", "--every", "60") as (process, until, terminal):
        until("repairs in the last hour")
        (first,) = operator.json("jobs", "--state", "queued", "--sort", "oldest", "--limit", "1")
        os.write(terminal, b"j")
        assert f"(job {first['id']})" in until("evidence")
        os.write(terminal, b"j" * 50)
        until("no further job is queued")
        os.write(terminal, b"f")
        until("repairs in the last hour")
        os.write(terminal, b"q")
        assert process.wait(timeout=60) == 0


def test_top_on_a_terminal_ends_with_ctrl_c(operator: Operator) -> None:
    count_pods(operator)
    with on_a_terminal(operator.environment(), "top", "--every", "60") as (process, until, terminal):
        until("repairs in the last hour")
        os.write(terminal, b"\x03")
        assert process.wait(timeout=60) == 130


def test_top_on_a_terminal_continues_while_postgres_does_not_answer(operator: Operator) -> None:
    away = operator.environment() | {"OSTLER_DATABASE_URL": AWAY}
    with on_a_terminal(away, "top", "--every", "0.5") as (process, until, terminal):
        for _ in range(2):
            assert "hunter2" not in until("Postgres at 127.0.0.1:1 does not answer")
        os.write(terminal, b"q")
        assert process.wait(timeout=60) == 0
