"""The output of a step needs little disk in its container, and each byte arrives once: real files and processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_hooks.detached import Place, _Step, run_detached
from container_hooks.spool import Spool, Unmarked, mark_of
from ostler.clock import Timing
from tests.unit.container_hooks.test_detached import Shells
from tests.waiting import eventually

_MIB = 1024 * 1024
NUMBERED = "i=0; while [ $i -lt {count} ]; do i=$((i + 1)); printf '%09d\\n' $i; done"
SMALL = Spool(segments=3, blocks=1)


def numbers(count: int) -> bytes:
    """Return the output of `NUMBERED`."""
    return b"".join(b"%09d\n" % (number + 1) for number in range(count))


def place_in(folder: Path) -> Place:
    return Place(pod="pod", container="job", folder=str(folder / "step"))


def spooled(folder: Path) -> int:
    """Return the bytes that the output of a step needs on the disk now."""
    found = 0
    for each in (folder / "step" / "out").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # its bytes have arrived meanwhile
            found += each.stat().st_size
    return found


class Slow:
    """A reader that stops once, after `stops_after` bytes, until it is released."""

    def __init__(self, stops_after: int) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self.stopped, self.released = threading.Event(), threading.Event()
        self._stops_after = stops_after

    def __call__(self, data: bytes) -> None:
        """Read a piece of the output."""
        self.digest.update(data)
        self.size += len(data)
        if self.size >= self._stops_after and not self.stopped.is_set():
            self.stopped.set()
            self.released.wait(600)


@contextlib.contextmanager
def reading(folder: Path, command: list[str], reader: Slow, size: Spool) -> Iterator[list[int]]:
    """Run a step in a thread, and wait for its end after the block. Yield a list that then has its exit code."""
    codes: list[int] = []

    def run() -> None:
        place = place_in(folder)
        codes.append(
            run_detached(Shells(), place, command, output=reader, why_ended=lambda: None, timing=Timing(), size=size)
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield codes
    finally:
        reader.released.set()
        thread.join(600)


def test_step_waits_for_a_reader_that_stops_and_no_byte_is_lost(tmp_path: Path) -> None:
    reader, ended, size = Slow(200_000), tmp_path / "ended", Spool(segments=4, blocks=4)
    script = f"head -c 4000000 /dev/zero | tr '\\0' x; echo end > {ended}"

    with reading(tmp_path, ["sh", "-c", script], reader, size) as codes:
        assert reader.stopped.wait(30)
        eventually(lambda: spooled(tmp_path) == spooled(tmp_path) > 65_536, "the spool does not fill")
        time.sleep(1)  # the step would end in this time if its output had no limit
        assert spooled(tmp_path) <= 4 * 4 * 16_384
        assert not ended.exists()

    assert (codes, reader.size) == ([0], 4_000_000)
    assert reader.digest.digest() == hashlib.sha256(b"x" * 4_000_000).digest()


def test_output_that_has_arrived_leaves_the_disk(tmp_path: Path) -> None:
    reader = Slow(10**9)

    with reading(tmp_path, ["sh", "-c", NUMBERED.format(count=9000)], reader, SMALL) as codes:
        pass

    assert codes == [0]
    assert reader.digest.digest() == hashlib.sha256(numbers(9000)).digest()
    eventually(lambda: spooled(tmp_path) == 0, "output is left on the disk")


def test_many_small_writes_do_not_fill_the_spool_for_ever(tmp_path: Path) -> None:
    """Each segment has one byte or a few, so all segments together have fewer bytes than an acknowledgement is for."""
    reader = Slow(10**9)
    script = "i=0; while [ $i -lt 30 ]; do i=$((i + 1)); printf x; sleep 0.02; done"

    with reading(tmp_path, ["sh", "-c", script], reader, SMALL) as codes:
        pass

    assert (codes, reader.size) == ([0], 30)


def test_reader_goes_on_when_the_segment_that_it_has_sent_is_deleted(tmp_path: Path) -> None:
    """The segment is deleted as soon as the next one exists, before the reader has seen the next one."""
    folder, shown = tmp_path / "step", bytearray()
    first, second = (folder / "out" / str(10**18 + begin) for begin in (0, 4))
    (folder / "out").mkdir(parents=True)
    (folder / "pid").write_text(f"{os.getpid()} {os.getpid()}\n")
    first.write_bytes(b"one\n")

    def read(data: bytes) -> None:
        shown.extend(data)
        if first.exists():
            (folder / "ended.7").mkdir()
            (tmp_path / "next").write_bytes(b"two\n" + mark_of(str(folder)) + b"\n")
            (tmp_path / "next").rename(second)
            first.unlink()

    assert _Step(Shells(), place_in(tmp_path), read, SMALL).follow() == 7
    assert bytes(shown) == b"one\ntwo\n"


def test_process_in_the_background_neither_delays_the_end_nor_is_killed_by_it(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    script = f"(while sleep 0.1; do echo noise; echo x >> {alive}; done) & echo $! > {tmp_path}/pid; echo step"
    reader, folder = Slow(10**9), tmp_path

    with reading(folder, ["sh", "-c", script], reader, SMALL) as codes:
        pass
    pid = int((tmp_path / "pid").read_text())
    try:
        eventually(alive.exists, "the process in the background does not run")
        before = alive.stat().st_size
        eventually(lambda: alive.stat().st_size > before + 20, "the process in the background was killed")
        assert codes == [0]
        assert spooled(tmp_path) < 20 * len("noise\n"), "only what came at the moment of the end may be left"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_step_that_prints_its_mark_hides_only_its_own_output(tmp_path: Path) -> None:
    reader = Slow(10**9)
    mark = mark_of(place_in(tmp_path).folder).decode()

    with reading(tmp_path, ["sh", "-c", f"echo before; echo '{mark}'; echo after; exit 3"], reader, SMALL) as codes:
        pass

    assert codes == [3]
    assert reader.digest.digest() == hashlib.sha256(b"before\n").digest()


@given(parts=st.lists(st.sampled_from([b"a", b"\x1e", b"\x1es", b"step", b"\x1estep", b"\n", b"\x1estep\n"])))
def test_no_byte_before_the_mark_is_lost(parts: list[bytes]) -> None:
    unmarked, whole, mark = Unmarked("/x/step"), b"".join(parts), b"\x1estep\n"

    shown = b"".join(unmarked.pass_on(part) for part in parts)

    assert unmarked.ended == (mark in whole)
    assert shown + unmarked.rest() == whole.partition(mark)[0]


def continued(folder: Path, script: str, size: Spool) -> None:
    """Follow a step, append its output to the file `received`, and write its exit code into the file `code`."""
    received = folder / "received"
    seen = received.stat().st_size if received.exists() else 0
    with received.open("ab", buffering=0) as file:

        def write(data: bytes) -> None:
            for begin in range(0, len(data), 4096):
                assert file.write(data[begin : begin + 4096]) == len(data[begin : begin + 4096])

        step = _Step(Shells(), place_in(folder), write, size, seen=seen)
        step.start(["sh", "-c", script])
        (folder / "code").write_text(str(step.follow()))


def killed_often(folder: Path, script: str, size: Spool, *, every: int) -> int:
    """Kill the reader whenever it has received `every` further bytes, and start a new one. Return how often."""
    kills = 0
    received, code = folder / "received", folder / "code"
    while not code.exists():
        before = received.stat().st_size if received.exists() else 0
        reader = get_context("fork").Process(target=continued, args=(folder, script, size))
        reader.start()
        while reader.is_alive():
            if received.exists() and received.stat().st_size >= before + every:
                reader.kill()
                kills += 1
                break
            time.sleep(0.01)
        reader.join()
    return kills


def test_no_byte_is_lost_or_doubled_when_the_reader_is_killed_in_the_middle(tmp_path: Path) -> None:
    """The step outlives three readers, and its spool is smaller than what any of them receives."""
    kills = killed_often(tmp_path, NUMBERED.format(count=24_000), SMALL, every=100_000)

    assert kills >= 2
    assert (tmp_path / "code").read_text() == "0"
    assert (tmp_path / "received").read_bytes() == numbers(24_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_gibibytes_pass_through_64_mebibytes_of_disk_to_a_reader_that_stops(tmp_path: Path) -> None:
    """The reader stops for 60 seconds in between. The default size of the spool holds."""
    reader, most = Slow(_MIB * 700), 0
    script = "dd if=/dev/zero bs=1048576 count=2048 2> /dev/null | tr '\\0' y"

    with reading(tmp_path, ["sh", "-c", script], reader, Spool()) as codes:
        assert reader.stopped.wait(300)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            most = max(most, spooled(tmp_path))
            time.sleep(0.1)
        reader.released.set()
        while not codes:
            most = max(most, spooled(tmp_path))
            time.sleep(0.1)

    wanted = hashlib.sha256()
    for _ in range(2048):
        wanted.update(b"y" * _MIB)
    assert (codes, reader.size, reader.digest.digest()) == ([0], 2048 * _MIB, wanted.digest())
    assert most <= 64 * _MIB
