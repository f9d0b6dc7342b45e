"""Position in a log: each byte is passed on once, wherever the connections to the log break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_hooks.log_lines import LogLines
from ostler.errors import Retryable

SECOND = 10**9


def stamp(nanoseconds: int, zone: str = "Z") -> bytes:
    second, rest = divmod(nanoseconds, SECOND)
    return f"2026-11-30T10:{second // 60:02}:{second % 60:02}.{rest:09}{zone}".encode()


def log_of(entries: list[tuple[int, bytes]], since: int | None) -> bytes:
    """Return a log as a kubelet returns it, from a second on.

    The times of `entries` are nanoseconds after 10 o'clock. An entry without a line feed is a part of a line. A part
    that is left out takes the time of its line with it.
    """
    first, begins, log = 0 if since is None else (since - START) * SECOND, True, b""
    for at, text in entries:
        if at >= first:
            log += (stamp(at) + b" " if begins else b"") + text
        begins = text.endswith(b"\n")
    return log


START = 1796032800  # 2026-11-30, 10 o'clock UTC, in seconds since 1970


def test_start_is_ten_o_clock() -> None:
    lines = LogLines(lambda _data: None)
    assert lines.since is None
    lines.read(stamp(SECOND) + b" x\n")
    assert lines.since == START + 1


TEXT = st.binary(max_size=12).map(lambda text: text.replace(b"\n", b""))
ENTRIES = st.lists(st.tuples(st.integers(0, 3), TEXT, st.sampled_from([b"\n", b"\n", b""])))


@given(
    steps=ENTRIES,
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=4),
    pieces=st.integers(1, 40),
)
def test_each_byte_arrives_once_wherever_connections_break(
    steps: list[tuple[int, bytes, bytes]], cuts: list[tuple[int, int]], pieces: int
) -> None:
    """The times of two entries differ by nothing, one nanosecond or seconds. The log grows between two connections."""
    at, entries = 0, list[tuple[int, bytes]]()
    for step, text, feed in steps:
        at += (0, 1, 7 * 10**8, 2 * SECOND)[step]
        entries.append((at, text + feed))
    heard = bytearray()
    reader = LogLines(heard.extend)
    for cut, later in [*cuts, (10**6, 0)]:
        reader.begin()
        log = log_of(entries[: len(entries) - later], reader.since)[:cut]
        for begin in range(0, len(log), pieces):
            reader.read(log[begin : begin + pieces])
    assert bytes(heard) == b"".join(text for _, text in entries)
    assert reader.passed == len(heard)
    assert reader.open == (bool(heard) and not heard.endswith(b"\n"))


def test_rest_of_a_line_that_began_before_the_second_is_skipped() -> None:
    entries = [(9 * SECOND - 1, b"first part, "), (9 * SECOND + 1, b"rest of it\n"), (9 * SECOND + 2, b"b\n")]
    heard = bytearray()
    reader = LogLines(heard.extend)
    for _ in range(3):
        reader.begin()
        reader.read(log_of(entries, reader.since))
    assert heard == b"first part, rest of it\nb\n"


def test_two_streams_whose_last_times_are_exchanged_are_not_repeated_for_ever() -> None:
    entries = [(2 * SECOND, b"a\n"), (2 * SECOND + 9, b"out\n"), (2 * SECOND + 8, b"err\n")]
    heard = bytearray()
    reader = LogLines(heard.extend)
    for _ in range(5):
        reader.begin()
        reader.read(log_of(entries, reader.since))
    assert heard == b"a\nout\nerr\n"


def test_output_of_the_step_is_in_no_error() -> None:
    reader = LogLines(lambda _data: None)
    reader.read(stamp(0) + b" a\n")
    with pytest.raises(Retryable) as caught:
        reader.read(b"a token of the step\n")
    assert "token" not in str(caught.value)


@pytest.mark.parametrize("cut", range(70))
def test_line_that_was_cut_off_is_continued(cut: int) -> None:
    log = stamp(0) + b" one\n" + stamp(0) + b" two\n"
    heard = bytearray()
    reader = LogLines(heard.extend)
    reader.read(log[:cut])
    reader.begin()
    reader.read(log)
    assert heard == b"one\ntwo\n"


def test_other_zone_is_the_same_time() -> None:
    heard = bytearray()
    reader = LogLines(heard.extend)
    reader.read(b"2026-11-30T12:00:01.5+02:00 a\n")
    reader.begin()
    reader.read(b"2026-11-30T10:00:01.500000000Z a\n2026-11-30T10:00:02Z b\n")
    assert heard == b"a\nb\n"


def test_clock_that_is_set_back_loses_no_line_of_one_connection() -> None:
    heard = bytearray()
    reader = LogLines(heard.extend)
    reader.read(stamp(9 * SECOND) + b" a\n" + stamp(SECOND) + b" b\n" + stamp(9 * SECOND) + b" c\n")
    assert heard == b"a\nb\nc\n"


@pytest.mark.parametrize(
    "text", [b"failed to create fsnotify watcher: too many open files", b"x" * 100, b"2026-13-40T10:00:00Z a\n", b"\n"]
)
def test_line_without_a_time_is_no_output(text: bytes) -> None:
    heard = bytearray()
    reader = LogLines(heard.extend)
    reader.read(stamp(0) + b" a\n")
    with pytest.raises(Retryable, match="a line without a time"):
        reader.read(text)
    assert heard == b"a\n"


def test_long_line_is_passed_on_in_pieces() -> None:
    largest = 0

    def hear(data: bytes) -> None:
        nonlocal largest
        largest = max(largest, len(data))

    reader = LogLines(hear)
    reader.read(stamp(0) + b" ")
    for _ in range(1000):
        reader.read(b"x" * 1000)
    assert (reader.passed, largest) == (1_000_000, 1000)
