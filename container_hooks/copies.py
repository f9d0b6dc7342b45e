"""Copies of files between the runner, the job's container and the container of a step.

A copy into a Pod is verified: the number and the total bytes of the files that arrived must equal those of the files
that were sent. The Pod unpacks an archive into a staging folder and then moves the files to their place. A copy to the
runner is complete if the whole archive was read and `tar` succeeded. Each copy can be repeated from its start. If the
connection is lost during a copy, the copy is repeated up to four times.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from container_hooks.archives import Entry, Tally, is_whole, passed
from container_hooks.failures import HookFailed, failure_of, one_line
from container_hooks.ports import World
from ostler.errors import ExecLost, OstlerError

JOB = "job"
"""Name of the container in which steps run: the job's container, or the container of a step."""

_ATTEMPTS = 5
_PAUSE = 1.0  # seconds before a call is repeated, multiplied by the number of the attempt
_AHEAD = 16  # maximum number of chunks that wait between the two ends of a copy
_SILENT_FOR = 300.0  # seconds without a chunk after which a copy fails
_CHECKED = 1.0  # seconds between two checks whether a command that waits for a chunk was cancelled
_LONGEST_LINE = 256  # bytes of a line of a listing
_STOPS_WITHIN = 10.0  # seconds to wait, at the end of a copy, for the thread that reads the archive
_LONGEST_STDERR = 2000
_MIB = 1024 * 1024
_NOT_FOUND = 127
_TOOLS = "check `find` and `stat` in the image of the container"

T = TypeVar("T")
Keep = Callable[[Entry], bool]


def everything(_entry: Entry) -> bool:
    """Accept each entry of an archive."""
    return True


def from_runner(
    world: World,
    pod: str,
    *,
    folder: str,
    command: Sequence[str],
    what: str,
    keep: Keep = everything,
    extra: dict[str, bytes] | None = None,
    container: str = JOB,
) -> Tally:
    """Copy a folder of the runner into a Pod. `command` unpacks an archive and prints the listing of its files.

    `keep` selects the entries, and `extra` adds files. `what` describes the copy in the log. Raises `HookFailed` if the
    copy fails or is not complete.
    """

    def attempt() -> Tally:
        return _unpack(world, (pod, container), world.files.send(folder), command, what, keep, extra)

    return repeated(world, attempt, what)


def between(
    world: World,
    *,
    source: str,
    pack: Sequence[str],
    pod: str,
    command: Sequence[str],
    what: str,
    keep: Keep,
    source_container: str = JOB,
    container: str = JOB,
) -> Tally:
    """Copy files from Pod `source` into another Pod. `pack` is the command that writes the archive.

    The archive is passed on in pieces and is not stored between the two Pods.
    """

    def attempt() -> Tally:
        with _Packing(world, (source, source_container), pack, what) as chunks:
            return _unpack(world, (pod, container), chunks, command, what, keep, None)

    return repeated(world, attempt, what)


def to_runner(
    world: World, *, source: str, pack: Sequence[str], folder: str, what: str, keep: Keep, container: str = JOB
) -> Tally:
    """Copy files from Pod `source` into a folder of the runner.

    Links, devices, and entries that would be unpacked outside the folder are not copied.
    """

    def attempt() -> Tally:
        tally = Tally()
        with _Packing(world, (source, container), pack, what) as chunks:
            wanted = passed(chunks, keep=lambda entry: entry.is_plain and keep(entry), tally=tally)
            archive = _Guarded(_reported(world, wanted, tally, what))
            world.files.receive(folder, archive)
            if archive.error is not None:
                raise archive.error
            if not tally.complete:
                raise HookFailed(f"{what}: the runner did not accept the whole archive; run the job again")
        return tally

    return repeated(world, attempt, what)


def repeated(world: World, attempt: Callable[[], T], what: str) -> T:
    """Return the result of `attempt`. If it loses its connection, call it again, up to five times in all.

    `attempt` must be safe to repeat. Raises `HookFailed` if `attempt` fails in another way, or loses its connection
    five times.
    """
    for number in range(1, _ATTEMPTS + 1):
        try:
            return attempt()
        except ExecLost as error:
            if number == _ATTEMPTS:
                raise failure_of(what, error) from error
            world.log.line(f"{what}: the connection was lost, and the call is repeated")
            world.timing.sleep(_PAUSE * number)
        except HookFailed:
            raise
        except OstlerError as error:
            raise failure_of(what, error) from error
    raise AssertionError("unreachable")


def _unpack(
    world: World,
    place: tuple[str, str],
    chunks: Iterable[bytes],
    command: Sequence[str],
    what: str,
    keep: Keep,
    extra: dict[str, bytes] | None,
) -> Tally:
    tally, errors = Tally(), bytearray()
    listing = Listing(most=lambda: tally.files)
    source = _Guarded(_reported(world, passed(chunks, keep=keep, tally=tally, extra=extra), tally, what))
    code = world.exec.run(*place, command, stdin=source, stdout=listing.read, stderr=lambda data: append(errors, data))
    if source.error is not None:
        raise source.error
    if code != 0:
        raise command_failed(what, code, errors)
    listing.end()
    if (listing.files, listing.content) != (tally.files, tally.content):
        raise HookFailed(
            f"{what}: {tally.files} files with {tally.content} bytes were sent, but {listing.files} files with "
            f"{listing.content} bytes arrived; run the job again"
        )
    return tally


@dataclass
class Listing:
    """Parser of the listing of the files that arrived. It counts the files and their bytes.

    Each line of the listing has the link count, the inode and the size of a file. A file with several links counts
    once. The archive also contains the content of such a file only once. A listing with more files than `most` returns
    is an error, because the container could otherwise fill the memory with inodes.
    """

    most: Callable[[], int]
    files: int = 0
    content: int = 0
    _rest: bytes = b""
    _seen: set[bytes] = field(default_factory=set)

    def read(self, data: bytes) -> None:
        """Read a piece of the listing."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in (*lines, self._rest):
            if len(line) > _LONGEST_LINE:
                raise HookFailed(
                    f"the listing of the copied files is wrong: a line has more than {_LONGEST_LINE} bytes; {_TOOLS}"
                )
        for line in lines:
            self._count(line)

    def end(self) -> None:
        """Read the last line, which might not end with a line feed."""
        if self._rest.strip():
            self._count(self._rest)
        self._rest = b""

    def _count(self, line: bytes) -> None:
        links, inode, size = [*line.split(), b"", b"", b""][:3]
        if not (links.isdigit() and size.isdigit()):
            raise HookFailed(f"the listing of the copied files is wrong: {one_line(repr(line), longest=80)}; {_TOOLS}")
        if links != b"1":
            if inode in self._seen:
                return
            self._seen.add(inode)
        self.files += 1
        self.content += int(size)
        if self.files > self.most():
            raise HookFailed(f"the listing of the copied files has more than the {self.most()} files that were sent")


class _Guarded(Iterator[bytes]):
    """Iterator that stores the error of its source, because the code that uses the iterator might hide the error."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self.error: Exception | None = None

    def __next__(self) -> bytes:
        if self.error is not None:
            raise StopIteration
        try:
            return next(self._source)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Close the source."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


def _reported(world: World, chunks: Iterator[bytes], tally: Tally, what: str) -> Iterator[bytes]:
    """Yield the chunks, and write a line to the log every `progress_every` seconds."""
    clock, every = world.timing.clock, world.settings.progress_every
    told = clock()
    for chunk in chunks:
        yield chunk
        if clock() - told >= every:
            told = clock()
            world.log.line(f"{what}: {tally.files} files, {tally.seen / _MIB:.1f} MiB so far")


class _Abandoned(OstlerError):
    """The other end of a copy has stopped."""


class _Packing:
    """Archive that a container writes, as an iterator of chunks. A thread reads it from the connection.

    If the container's `tar` failed, its error is raised at the end of the context, even in place of another error.
    """

    def __init__(self, world: World, place: tuple[str, str], pack: Sequence[str], what: str) -> None:
        self._world, self._place, self._pack, self._what = world, place, pack, what
        self._chunks: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="hook-copy", daemon=True)

    def __enter__(self) -> Iterator[bytes]:
        self._thread.start()
        return self._yielded()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._stopped.set()
        self._thread.join(_STOPS_WITHIN)
        own = self._error
        # If `tar` failed, the archive is truncated. The error at the other end is then only a consequence.
        if own is not None and not isinstance(own, _Abandoned):
            raise own from error

    def _yielded(self) -> Iterator[bytes]:
        silent = 0.0
        while True:
            try:
                chunk = self._chunks.get(timeout=_CHECKED)
            except queue.Empty:
                self._world.timing.clock()  # raises an error if the command was cancelled
                if self._stopped.is_set():
                    return
                silent += _CHECKED
                if silent >= _SILENT_FOR:
                    raise HookFailed(
                        f"{self._what}: tar in the container sent nothing for {silent:.0f} s; run the job again"
                    ) from None
                continue
            if chunk is None:
                return
            silent = 0.0
            yield chunk

    def _read(self) -> None:
        errors = bytearray()
        try:
            code = self._world.exec.run(
                *self._place, self._pack, stdout=self._put, stderr=lambda data: append(errors, data)
            )
            if not is_whole(code, errors):
                self._error = command_failed(self._what, code, errors)
        except BaseException as error:  # noqa: BLE001  raised in the thread that uses the archive
            self._error = error
        finally:
            self._put_end()

    def _put(self, chunk: bytes) -> None:
        while not self._stopped.is_set():
            try:
                self._chunks.put(chunk, timeout=0.2)
            except queue.Full:
                continue
            return
        raise _Abandoned("the other end of the copy has stopped")

    def _put_end(self) -> None:
        while not self._stopped.is_set():
            try:
                self._chunks.put(None, timeout=0.2)
            except queue.Full:
                continue
            return


def append(said: bytearray, data: bytes) -> None:
    """Append output of a process, and discard all but the last 2000 bytes. A container might send output endlessly."""
    said += data
    del said[:-_LONGEST_STDERR]


def command_failed(what: str, code: int, errors: bytearray) -> HookFailed:
    """Return the failure of a command in a container, with the end of its error output."""
    said = one_line(errors.decode("utf-8", "replace"), longest=300)
    advice = (
        "the image of the container must contain sh, tar, find and stat"
        if code == _NOT_FOUND
        else "check the free disk space and the file permissions of the container"
    )
    return HookFailed(
        f"{what}: the command in the container ended with code {code}{': ' if said else ''}{said}; {advice}"
    )
