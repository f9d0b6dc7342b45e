"""Exec in a container: frames, exit codes, failures of the connection, and repeated handshakes."""

from __future__ import annotations

import contextlib
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.http11 import Request

from k8s_adapters.calls.client import make_client
from k8s_adapters.calls.exec_stream import LARGEST_FRAME, LARGEST_STATUS, V4, V5, WINDOW, Heartbeat
from k8s_adapters.calls.execs import ExecClient
from ostler.clock import Timing
from ostler.errors import ExecLost, Forbidden, Gone, Invalid, RateLimited, Retryable, UpstreamError
from tests.private_ca import PrivateCa
from tests.unit.k8s_adapters.exec_server import Connection, ExecServer, Story, status_of
from tests.unit.k8s_adapters.test_proxies import kubeconfig

MIB = 1024 * 1024
QUICK = Heartbeat(period=0.05, deadline=0.3)


class Run:
    """One exec on a server, and its results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.waits: list[float] = []
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.requests: list[Request] = []

    def __call__(
        self,
        *stories: Story,
        stdin: Any = None,
        stdout: Callable[[bytes], None] | None = None,
        writes_often: bool = False,
        ca: PrivateCa | None = None,
        command: tuple[str, ...] = ("true",),
        after_request: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> int:
        """Run a command against a server with these stories."""
        with ExecServer(*stories, tls=ca.issue("127.0.0.1").context() if ca else None) as server:
            more = {"certificate-authority": str(ca.bundle)} if ca else {}
            client = make_client(
                kubeconfig=kubeconfig(self._folder, server.url, **more), timing=Timing(sleep=self._sleep(after_request))
            )
            try:
                return ExecClient(client, "ns", **options).run(
                    "pod-workflow",
                    "job",
                    command,
                    stdin=stdin,
                    stdout=stdout or self.stdout.extend,
                    stderr=self.stderr.extend,
                    writes_often=writes_often,
                )
            finally:
                client.close()
                self.requests = server.requests

    def _sleep(self, then: Callable[[], object]) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            then()

        return sleep


def until_gone(connection: Connection) -> None:
    """Read until the client has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while connection.read() is not None:
            pass


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    before = set(threading.enumerate())
    yield Run(tmp_path)
    left = {each for each in threading.enumerate() if each.name == "exec-stdin"} - before
    assert not left, "a thread is left"


def ends(code: int, version: str = V5) -> Story:
    """Return the story of a process that ends with an exit code."""

    def story(connection: Connection) -> None:
        connection.accept(version)
        connection.end(code)

    return story


@pytest.mark.parametrize("version", [V5, V4])
@pytest.mark.parametrize("code", [0, 3, 137])
def test_exit_code_is_returned(run: Run, version: str, code: int) -> None:
    assert run(ends(code, version)) == code


def test_both_versions_are_offered_and_the_request_names_the_command(run: Run) -> None:
    asked: dict[str, Any] = {}

    def story(connection: Connection) -> None:
        asked.update(connection.query, offered=connection.offered, path=connection.request.path.partition("?")[0])
        asked["token"] = connection.request.headers["Authorization"]
        connection.accept()
        connection.end()

    run(story, command=("echo", "a b", "ü&c=$1"), shell=False)

    assert asked["offered"] == [V5, V4]
    assert asked["path"] == "/api/v1/namespaces/ns/pods/pod-workflow/exec"
    assert (asked["command"], asked["container"]) == (["echo", "a b", "ü&c=$1"], ["job"])
    assert "stdin" not in asked
    assert asked["token"] == "Bearer t"


def test_output_goes_to_its_callback_whatever_its_fragments(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(1, b"")
        connection.send(1, b"one ")
        connection.send_in_parts(2, b"err", b"", b"or")
        connection.send(1, b"two")
        connection.send_in_parts(3, status_of(4)[:20], status_of(4)[20:])
        connection.close()

    assert run(story) == 4
    assert (bytes(run.stdout), bytes(run.stderr)) == (b"one two", b"error")


def test_output_after_the_status_is_delivered(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(3, status_of(0))
        connection.send(1, b"late")
        connection.close()

    run(story)

    assert bytes(run.stdout) == b"late"


def test_version_5_closes_the_input_after_its_last_byte(run: Run) -> None:
    received = bytearray()

    def story(connection: Connection) -> None:
        connection.accept()
        for piece in connection.read_input():
            received.extend(piece)
        connection.end()

    run(story, stdin=[b"abc", b"", b"def"])

    assert received == b"stream\nabcdef"


def test_version_4_sends_blocks_with_their_lengths(run: Run) -> None:
    received = bytearray()

    def story(connection: Connection) -> None:
        connection.accept(V4)
        for piece in connection.read_input():
            received.extend(piece)
            if received.endswith(b"\n0\n"):
                break
        connection.end()

    run(story, stdin=[b"abc", b"x" * 300_000 + b"\n"])

    assert received == b"blocks\n3\nabc262144\n" + b"x" * 262144 + b"37857\n" + b"x" * 37856 + b"\n0\n"


def test_command_without_input_gets_none(run: Run) -> None:
    received = bytearray()

    def story(connection: Connection) -> None:
        connection.accept()
        for piece in connection.read_input():
            received.extend(piece)
        connection.end()

    run(story)

    assert received == b"closed\n"


def test_process_that_ends_before_its_input_does_ends_the_exec(run: Run) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    assert run(ends(2), stdin=endless()) == 2


def test_failure_of_the_input_ends_the_exec_and_is_raised(run: Run) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise FileNotFoundError("no such folder")

    def story(connection: Connection) -> None:
        connection.accept()
        until_gone(connection)

    with pytest.raises(FileNotFoundError, match="no such folder"):
        run(story, stdin=broken())


def test_failure_of_a_callback_ends_the_exec_and_is_raised(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(1, b"text")
        until_gone(connection)

    def refuses(_data: bytes) -> None:
        raise BrokenPipeError("the log is closed")

    with pytest.raises(BrokenPipeError, match="the log is closed"):
        run(story, stdout=refuses)


STATUS_500 = b"""{"status":"Failure","code":500,"reason":"InternalError","message":"exec: \\"bash\\":\\n not found"}"""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (STATUS_500, UpstreamError),
        (STATUS_500.replace(b"500", b"404"), Gone),
        (STATUS_500.replace(b"500", b"403"), Forbidden),
        (STATUS_500.replace(b"500", b"400"), Invalid),
    ],
)
def test_process_that_cannot_be_started_is_reported_with_the_reason(
    run: Run, status: bytes, kind: type[UpstreamError]
) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(3, status)
        connection.close()

    with pytest.raises(kind) as found:
        run(story)

    assert type(found.value) is kind
    assert found.value.words == 'exec: "bash": not found'
    assert "bash" not in str(found.value)
    assert "container job of Pod pod-workflow" in str(found.value)


@pytest.mark.parametrize(
    "status", [b"no JSON", b"[]", b"{}", b'{"status":"Failure","reason":"NonZeroExitCode"}', b'{"status":1,"code":"x"}']
)
def test_status_that_cannot_be_parsed_is_a_lost_exit_code(run: Run, status: bytes) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(3, status)
        connection.close()

    with pytest.raises(ExecLost, match="the exit code is unknown"):
        run(story)


def close(connection: Connection) -> None:
    """End the WebSocket in the regular way."""
    connection.close()


def end_of_stream(_connection: Connection) -> None:
    """End the TCP connection in the regular way."""


def reset(connection: Connection) -> None:
    """Reset the TCP connection."""
    connection.reset()


@pytest.mark.parametrize("ending", [close, end_of_stream, reset])
def test_connection_that_ends_without_a_status_is_lost_and_not_repeated(run: Run, ending: Story) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        assert next(connection.read_input()) == b"closed\n"
        connection.send(1, b"begun")
        ending(connection)

    with pytest.raises(ExecLost, match="the command might still run"):
        run(story, ends(0))

    assert len(run.requests) == 1


def test_server_that_is_silent_for_longer_than_the_deadline_is_lost(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.answers_pings = False
        until_gone(connection)

    with pytest.raises(ExecLost, match="neither data nor a pong"):
        run(story, heartbeat=QUICK)


def test_server_that_answers_pings_is_not_lost(run: Run) -> None:
    released = threading.Event()

    def story(connection: Connection) -> None:
        connection.accept()
        threading.Timer(3 * QUICK.deadline, released.set).start()
        reading = threading.Thread(target=lambda: until_gone(connection), daemon=True)
        reading.start()  # it answers the pings
        released.wait()
        connection.send(3, status_of(5))
        connection._link.shutdown(socket.SHUT_WR)
        reading.join()

    assert run(story, heartbeat=QUICK) == 5


def test_callback_that_blocks_for_longer_than_the_deadline_loses_nothing(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(1, b"text")
        reading = threading.Thread(target=until_gone, args=(connection,), daemon=True)
        reading.start()
        blocked.wait()
        connection.send(3, status_of(6))
        connection._link.shutdown(socket.SHUT_WR)
        reading.join()

    blocked = threading.Event()

    def block(_data: bytes) -> None:
        blocked.wait(2 * QUICK.deadline)
        threading.Timer(QUICK.period, blocked.set).start()

    assert run(story, stdout=block, heartbeat=QUICK) == 6


def test_server_that_answers_pings_without_output_is_lost_after_the_deadline(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(2, b"alive")
        until_gone(connection)

    with pytest.raises(ExecLost, match="wrote nothing"):
        run(story, writes_often=True, heartbeat=QUICK)

    assert run.stderr == b"alive"


@pytest.mark.parametrize(("channel", "size"), [(1, LARGEST_FRAME + 1), (3, LARGEST_STATUS + 1)])
def test_too_large_frame_is_refused(run: Run, channel: int, size: int) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection.send(channel, b"x" * size)
        until_gone(connection)

    with pytest.raises(ExecLost):
        run(story)


def test_answer_that_is_no_websocket_is_lost(run: Run) -> None:
    def story(connection: Connection) -> None:
        connection.accept()
        connection._link.sendall(b"HTTP/1.1 500 no\r\n\r\n" * 10)
        until_gone(connection)

    with pytest.raises(ExecLost, match="violated"):
        run(story)


def test_input_of_50_mib_is_sent_with_bounded_memory(run: Run, tmp_path: Path) -> None:
    received = pulled = most = 0

    def pieces() -> Iterator[bytes]:
        nonlocal pulled, most
        for _ in range(200):
            pulled += MIB // 4
            most = max(most, pulled - received)
            yield b"x" * (MIB // 4)

    def story(connection: Connection) -> None:
        nonlocal received
        connection.accept()
        for piece in connection.read_input():
            received += len(piece)
        connection.end()

    tracemalloc.start()
    try:
        assert run(story, stdin=pieces(), ca=PrivateCa(tmp_path)) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert received == 50 * MIB + len(b"stream\n")
    assert most <= WINDOW + 2 * MIB
    assert peak < 20 * MIB


def test_input_stops_while_the_server_confirms_none_of_it(run: Run) -> None:
    received = 0

    def story(connection: Connection) -> None:
        nonlocal received
        connection.accept()
        connection.answers_pings = False
        for piece in connection.read_input():
            received += len(piece)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    with pytest.raises(ExecLost, match="neither data nor a pong"):
        run(story, stdin=endless(), heartbeat=QUICK)

    assert WINDOW <= received < WINDOW + 128 * 1024


def test_output_of_50_mib_is_received_with_bounded_memory(run: Run, tmp_path: Path) -> None:
    received = 0

    def count(data: bytes) -> None:
        nonlocal received
        received += len(data)

    def story(connection: Connection) -> None:
        connection.accept()
        for _ in range(1600):
            connection.send(1, b"x" * 32768)
        connection.end()

    tracemalloc.start()
    try:
        assert run(story, stdout=count, ca=PrivateCa(tmp_path)) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert received == 50 * MIB
    assert peak < 20 * MIB


# Handshakes


def refuses(status: int, **headers: str) -> Story:
    """Return the story of a server that refuses the upgrade."""
    return lambda connection: connection.refuse(status, **headers)


def test_new_token_is_used_after_a_401(run: Run, tmp_path: Path) -> None:
    def story(connection: Connection) -> None:
        file = tmp_path / "kubeconfig"
        file.write_text(file.read_text().replace("token: t", "token: fresh"))
        connection.refuse(401)

    assert run(story, ends(0)) == 0
    assert [each.headers["Authorization"] for each in run.requests] == ["Bearer t", "Bearer fresh"]


def test_401_for_the_only_token_is_forbidden(run: Run) -> None:
    with pytest.raises(Forbidden):
        run(refuses(401))


@pytest.mark.parametrize("shell", [True, False])
@pytest.mark.parametrize("status", [429, 503])
def test_handshake_is_repeated_after_the_requested_wait(run: Run, status: int, *, shell: bool) -> None:
    assert run(refuses(status, Retry_After="7"), ends(0), shell=shell) == 0
    assert run.waits == [7]


def test_429_that_stays_is_a_rate_limit(run: Run) -> None:
    with pytest.raises(RateLimited) as found:
        run(*[refuses(429, Retry_After="2")] * 4)

    assert (found.value.after, len(run.requests)) == (2, 4)


@pytest.mark.parametrize(("status", "kind"), [(400, Invalid), (403, Forbidden), (404, Gone)])
def test_refusal_is_raised_by_its_meaning(run: Run, status: int, kind: type[UpstreamError]) -> None:
    with pytest.raises(kind):
        run(refuses(status))

    assert len(run.requests) == 1


def test_502_starts_no_command_behind_the_shell_and_is_repeated(run: Run) -> None:
    assert run(refuses(502), ends(0)) == 0


def test_502_is_not_repeated_without_the_shell(run: Run) -> None:
    with pytest.raises(Retryable):
        run(refuses(502), shell=False)

    assert len(run.requests) == 1


def test_reset_instead_of_an_answer_is_repeated_behind_the_shell(run: Run) -> None:
    assert run(reset, end_of_stream, ends(0)) == 0


@pytest.mark.parametrize("ending", [reset, end_of_stream])
def test_reset_instead_of_an_answer_is_not_repeated_without_the_shell(run: Run, ending: Story) -> None:
    with pytest.raises(ExecLost, match="no answer to the handshake"):
        run(ending, shell=False)

    assert len(run.requests) == 1


def test_refused_connection_is_repeated_without_the_shell(tmp_path: Path) -> None:
    server = ExecServer()
    url = server.url
    server._listener.close()
    waits: list[float] = []
    client = make_client(kubeconfig=kubeconfig(tmp_path, url), timing=Timing(sleep=waits.append))

    with pytest.raises(Retryable, match="refused"):
        ExecClient(client, "ns", shell=False).run("p", "c", ["true"], stdout=print, stderr=print)

    assert len(waits) == 3


@pytest.mark.parametrize("version", [None, "base64.channel.k8s.io"])
def test_server_without_a_known_version_is_invalid(run: Run, version: str | None) -> None:
    def story(connection: Connection) -> None:
        connection.accept(version)
        until_gone(connection)

    with pytest.raises(Invalid, match=r"neither v5.channel.k8s.io nor v4.channel.k8s.io; a proxy between Ostler"):
        run(story)
