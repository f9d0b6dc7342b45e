"""Log of a container in the format of the container runtime interface."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from lab.kubelet.container_logs import LogWriter, read_log

LONG = b"x" * 40_000


def write(path: Path, *pieces: bytes) -> bytes:
    """Write pieces of output into a log, and return its content."""

    async def run() -> None:
        writer = LogWriter(path)
        copying = asyncio.create_task(writer.copy())
        for piece in pieces:
            await asyncio.to_thread(os.write, writer.pipe, piece)
        os.close(writer.pipe)
        await copying

    asyncio.run(run())
    return path.read_bytes()


def read(path: Path, *, times: bool = False, since: str | None = None) -> bytes:
    async def run() -> bytes:
        return b"".join([piece async for piece in read_log(path, times=times, since=since, follow=None)])

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("pieces", "output"),
    [
        ((b"a\nb", b"c\n"), b"a\nbc\n"),
        ((b"a\n\n", b"last"), b"a\n\nlast"),
        ((LONG[:30_000], LONG[30_000:] + b"\nend\n"), LONG + b"\nend\n"),
        ((), b""),
    ],
)
def test_output_is_read_as_it_was_written(tmp_path: Path, pieces: tuple[bytes, ...], output: bytes) -> None:
    entries = write(tmp_path / "log", *pieces)

    assert read(tmp_path / "log") == output
    assert all(re.match(rb"\S+Z stdout [FP] ", each) for each in entries.splitlines())
    times = [each.split(b" ")[0] for each in entries.splitlines()]
    assert times == sorted(set(times))


def test_each_line_has_one_time_and_older_lines_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "log", LONG + b"\nb\n")

    lines = read(tmp_path / "log", times=True).splitlines()

    assert [re.sub(rb"^\S+Z ", b"", each) for each in lines] == [LONG, b"b"]
    assert read(tmp_path / "log", since="2099-01-01T00:00:00Z") == b""


def test_part_that_is_left_out_takes_the_time_of_its_line_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"2026-11-30T10:00:00.9Z stdout P a\n2026-11-30T10:00:01.1Z stdout F b\n")
    assert read(log, times=True, since="2026-11-30T10:00:01Z") == b"b\n"
