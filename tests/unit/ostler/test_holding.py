"""A held connection to a local server that is cut, becomes silent, or ends connections itself."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cli.holding import Report, Target, hold, parse_target, reaches

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
Script = Callable[[socket.socket, int], bool]
"""A function of a request and the number of earlier requests. It returns whether the connection stays open."""


@contextmanager
def server(script: Script) -> Iterator[Target]:
    """A server that answers each request by a script."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.2)
    stop = threading.Event()

    def serve() -> None:
        count = 0
        while not stop.is_set():
            try:
                link, _ = listener.accept()
            except OSError:
                continue
            with link:
                link.settimeout(30)
                going = True
                while going and not stop.is_set():
                    try:
                        if not link.recv(4096):
                            break
                        going = script(link, count)
                    except OSError:
                        break
                    count += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Target("127.0.0.1", listener.getsockname()[1], tls=False, path="/")
    finally:
        stop.set()
        thread.join(30)
        listener.close()


def held(
    target: Target, rounds: int, *, patience: float = 10.0, connected: Callable[[], None] = lambda: None
) -> Report:
    """Hold for `rounds` rounds. The clock advances with each pause, and by nothing else."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return hold(
        target, seconds=rounds, every=1, patience=patience, connected=connected, clock=lambda: now[0], sleep=sleep
    )


def answer(link: socket.socket, _count: int) -> bool:
    link.sendall(ANSWER)
    return True


def reset(link: socket.socket) -> bool:
    """End a connection by a reset, as a network does."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def test_a_connection_that_holds_is_one_connection_without_breaks() -> None:
    links: set[int] = set()
    marks: list[int] = []

    def script(link: socket.socket, count: int) -> bool:
        links.add(link.getpeername()[1])
        return answer(link, count)

    with server(script) as target:
        report = held(target, 5, connected=lambda: marks.append(1))
    assert (report.connected, report.answers, report.broken, report.closed) == (True, 5, 0, 0)
    assert (len(links), marks) == (1, [1])


def test_a_cut_is_a_break_and_is_told_when_it_was() -> None:
    with server(lambda link, count: reset(link) if count == 2 else answer(link, count)) as target:
        report = held(target, 6)
    assert (report.answers, report.broken) == (5, 1)
    assert report.breaks[0]["at"] == 2.0
    assert "reset" in str(report.breaks[0]["how"]).lower()


def test_half_an_answer_is_a_break() -> None:
    def script(link: socket.socket, count: int) -> bool:
        if count != 1:
            return answer(link, count)
        link.sendall(ANSWER[:10])
        return False

    with server(script) as target:
        report = held(target, 4)
    assert report.broken == 1
    assert "middle" in str(report.breaks[0]["how"])


def test_silence_is_a_break() -> None:
    with server(lambda link, count: True if count == 1 else answer(link, count)) as target:
        report = held(target, 3, patience=0.5)
    assert report.broken == 1
    assert report.breaks[0]["how"] == "no answer in time"


def test_a_server_that_ends_connections_itself_breaks_nothing() -> None:
    def script(link: socket.socket, count: int) -> bool:
        if count == 1:
            link.sendall(ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            return False
        return answer(link, count)

    with server(script) as target:
        report = held(target, 5)
    assert (report.answers, report.broken, report.closed) == (5, 0, 1)


def test_a_connection_that_the_server_is_done_with_is_not_used_again() -> None:
    done = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    over: set[int] = set()

    def script(link: socket.socket, count: int) -> bool:
        if link.getpeername()[1] in over:
            return True  # it answers nothing any more, and waits for the other end to close
        if count == 1:
            over.add(link.getpeername()[1])
            link.sendall(done)
            return True
        return answer(link, count)

    with server(script) as target:
        report = held(target, 4, patience=0.5)
    assert (report.answers, report.broken, report.closed) == (4, 0, 1)


def test_each_break_counts_and_only_the_first_are_told() -> None:
    with server(lambda link, count: answer(link, count) if count == 0 else reset(link)) as target:
        report = held(target, 31)
    assert report.answers == 1
    assert report.broken == 30
    assert len(report.breaks) == 10


def test_nobody_there_is_no_connection_rather_than_breaks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert reaches(f"127.0.0.1:{port}")
    assert not reaches(f"127.0.0.1:{port}")
    report = held(Target("127.0.0.1", port, tls=False, path="/"), 3)
    assert (report.connected, report.broken, report.answers) == (False, 0, 0)


@pytest.mark.parametrize("url", ["github.com", "ftp://github.com/", "https://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not a URL"):
        parse_target(url)


def test_an_address_has_port_and_path_of_its_own_or_the_usual() -> None:
    assert parse_target("https://github.com") == Target("github.com", 443, tls=True, path="/")
    assert parse_target("http://10.0.0.1:81/a") == Target("10.0.0.1", 81, tls=False, path="/a")
