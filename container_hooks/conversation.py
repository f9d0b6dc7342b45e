"""One running command of container hooks, and its conversation with `hook.sh`.

The thread of the command uses `files`, `log` and `timing`. Threads of the socket call `next`, `upload`, `download` and
`log_chunks` for `hook.sh`. The program `hook.sh` asks for one instruction after the other, and reports whether it
carried out the previous instruction. If `hook.sh` stops asking, the command is cancelled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from container_hooks.pipes import Pipe, PipeBroken
from ostler.clock import Timing
from ostler.errors import OstlerError

_KIB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of the socket. Times are in seconds, and sizes in bytes.

    - `input`: size of the JSON of one command.
    - `connections`: connections that are served at the same time. A running command has up to three.
    - `inputs`: commands whose JSON is read at the same time.
    - `commands`: commands that run, wait, or have ended recently.
    - `at_once`: steps that run at the same time. The runner of GitHub starts at most ten.
    - `told`: time that a command waits for others before its log says so.
    - `request`: maximum time between two packets of a request.
    - `poll`: time that `hook.sh` waits for an instruction before it asks again.
    - `silent`: time without a request of `hook.sh` after which its command is cancelled.
    - `silent_when_wanted`: time that replaces `silent` while another command waits.
    - `stall`: time without progress after which a copy fails, or a command is cancelled because its log is not read.
    - `busy`: time that `prepare_job` waits for earlier commands, and a step for `prepare_job` or `cleanup_job`. After
      this time the waiting command fails.
    - `cleanup`: time that `cleanup_job` waits before it cancels the earlier commands.
    - `stuck`: time that a command waits for a cancelled command to end. After this time the sidecar restarts.
    """

    input: int = 4 * _KIB * _KIB
    connections: int = 48
    inputs: int = 8
    commands: int = 24
    at_once: int = 10
    told: float = 5
    request: float = 10
    poll: float = 2
    silent: float = 30
    silent_when_wanted: float = 5
    stall: float = 300
    busy: float = 30
    cleanup: float = 10
    stuck: float = 90


_PIPE = 1024 * _KIB


class CommandCancelled(OstlerError):
    """The command must stop, because it was cancelled."""


class Unexpected(OstlerError):
    """`hook.sh` sent a request that does not fit the present instruction."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction for `hook.sh`: a verb and its argument."""

    verb: str
    argument: str = ""

    def __str__(self) -> str:
        """Return the instruction as `hook.sh` reads it."""
        return f"{self.verb} {self.argument}" if self.argument else self.verb


WAIT = Instruction("wait")


class Conversation:
    """One command, from its start until `hook.sh` receives the exit code."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = threading.Event()
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._pending: Instruction | None = None
        self._doing: Instruction | None = None
        self._report: tuple[Instruction, int] | None = None
        self._pipe: Pipe | None = None
        self._code: int | None = None
        self._cancelled: str | None = None
        self._told = False
        self._requests = 0
        self._heard = clock()
        self._log = Pipe(most=_PIPE, stall=limits.stall)
        self._thread: int | None = None
        self.files = RunnerFiles(self)
        self.log = JobLog(self._log, self.cancel)
        self.timing = Timing(sleep=self._sleep, clock=self._now)

    # Methods for the thread of the command.

    def run(self, command: Callable[[], int]) -> int:
        """Wait for the first request of `hook.sh`, run the command in the calling thread, and return its exit code."""
        self._thread = threading.get_ident()
        code = 1
        self.started.wait()
        try:
            self.check()
            code = command()
        finally:
            self._log.end()
            with self._changed:
                self._code = code
                self._changed.notify_all()
        return code

    def check(self) -> None:
        """Raise `CommandCancelled` if the command was cancelled."""
        if self._cancelled is not None:
            raise CommandCancelled(self._cancelled)

    def carry_out(self, instruction: Instruction, pipe: Pipe) -> None:
        """Give an instruction to `hook.sh`. The bytes of the instruction go through `pipe`."""
        if "\n" in instruction.argument or "\0" in instruction.argument:
            raise OstlerError(f"a path with a line break or a NUL byte cannot be copied: {instruction.argument!r}")
        with self._changed:
            self.check()
            self._pending, self._pipe = instruction, pipe
            self._changed.notify_all()

    def reported(self, instruction: Instruction) -> None:
        """Wait until `hook.sh` has carried out the instruction.

        Raises `OstlerError` if `hook.sh` failed, and `CommandCancelled` if the command was cancelled.
        """
        with self._changed:
            # An upload that the command did not read to its end might be reported after the next instruction began.
            self._changed.wait_for(lambda: self._report_of(instruction) is not None or self._cancelled is not None)
            self.check()
            report, self._pipe = self._report_of(instruction), None
        if report != 0:
            what = {"send": "packed", "receive": "unpacked", "write": "written"}[instruction.verb]
            raise OstlerError(
                f"{instruction.argument} cannot be {what} in container `runner`; the lines above show the error of tar"
            )

    def _report_of(self, instruction: Instruction) -> int | None:
        return self._report[1] if self._report is not None and self._report[0] is instruction else None

    def pipe(self) -> Pipe:
        """Return a pipe for the bytes of one instruction."""
        return Pipe(most=_PIPE, stall=self._limits.stall)

    @contextmanager
    def cut_by_cancel(self) -> Iterator[None]:
        """Raise `CommandCancelled` instead of `PipeBroken` if the command was cancelled."""
        try:
            yield
        except PipeBroken:
            self.check()
            raise

    def _now(self) -> float:
        if threading.get_ident() == self._thread:
            self._raise_once()
        return self._clock()

    def _sleep(self, seconds: float) -> None:
        self._raise_once()
        with self._changed:
            self._changed.wait_for(self._must_raise, seconds)
        self._raise_once()

    def _raise_once(self) -> None:
        """Raise `CommandCancelled` if the command was cancelled. In the thread of the command, raise it only once.

        The code that cleans up after this error can therefore still sleep and read the clock. Other threads only copy
        files, possibly for an earlier attempt of a copy. In such a thread, every call raises the error, so that the
        thread ends. The thread of the command still gets its own error.
        """
        with self._changed:
            if not self._must_raise():
                return
            self._told = self._told or threading.get_ident() == self._thread
        self.check()

    def _must_raise(self) -> bool:
        own = threading.get_ident() == self._thread
        return self._cancelled is not None and not (own and self._told)

    # Methods for the threads that serve `hook.sh`.

    def next(self, *, report: int, within: float) -> Instruction:
        """Return the next instruction, or `WAIT` if there is none after `within` seconds.

        `report` is 0 if `hook.sh` carried out the previous instruction. The first call starts the command. If `hook.sh`
        ends before this call, the command is never executed. Raises `CommandCancelled` if the command was cancelled.
        """
        self.started.set()
        with self._listening(), self._changed:
            if self._doing is not None:
                self._report = (self._doing, report)
                self._doing = None
                if report != 0 and self._pipe is not None and self._pending is None:
                    self._pipe.abort("hook.sh could not copy the files")
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._pending is not None or self._code is not None or self._cancelled is not None, within
            )
            if self._code is not None and self._cancelled is None:
                return Instruction("exit", str(self._code))
            self.check()
            if self._pending is None:
                return WAIT
            self._doing, self._pending = self._pending, None
            return self._doing

    def upload(self, chunks: Iterable[bytes]) -> None:
        """Pass an archive from `hook.sh` to the command. Raises `Unexpected` if no instruction asks for an archive."""
        pipe = self._pipe_of("send")
        with self._listening():
            try:
                for chunk in chunks:
                    pipe.put(chunk)
            except PipeBroken:
                raise
            except Exception:
                pipe.abort("the upload of the archive was interrupted")
                raise
            pipe.end()

    def download(self) -> Iterator[bytes]:
        """Return the bytes for the present instruction. Raises `Unexpected` if there is no such instruction."""
        return self._download(self._pipe_of("receive", "write"))

    def _download(self, pipe: Pipe) -> Iterator[bytes]:
        with self._listening():
            try:
                yield from pipe.chunks()
            except GeneratorExit:
                pipe.abort("the download was interrupted")
                raise

    def log_chunks(self, *, every: float) -> Iterator[bytes]:
        """Yield the log of the command until the command has ended.

        After `every` seconds without output, yield an empty chunk.
        """
        return self._log.chunks(every=every)

    def cancel(self, why: str) -> None:
        """Cancel the command. Its next use of files, of the clock or of a sleep raises `CommandCancelled`."""
        with self._changed:
            if self._code is not None or self._cancelled is not None:
                return
            self._cancelled = why
            self.started.set()
            pipe = self._pipe
            self._changed.notify_all()
        if pipe is not None:
            pipe.abort(why)
        self._log.abort(why)

    @property
    def ended(self) -> bool:
        """Return whether the thread of the command has ended."""
        return self._code is not None

    @property
    def cancelled(self) -> bool:
        """Return whether the command was cancelled."""
        return self._cancelled is not None

    def silence(self) -> float:
        """Return the seconds since the last request of `hook.sh`, or 0 while a request is served."""
        with self._changed:
            return 0.0 if self._requests else self._clock() - self._heard

    def wait_ended(self, within: float) -> bool:
        """Wait until the command has ended. Return False if it has not ended after `within` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._code is not None, within)

    def _pipe_of(self, *verbs: str) -> Pipe:
        with self._changed:
            if self._pipe is None or self._doing is None or self._doing.verb not in verbs:
                raise Unexpected(f"the present instruction is not {' or '.join(verbs)}")
            return self._pipe

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with self._changed:
            self._requests += 1
        try:
            yield
        finally:
            with self._changed:
                self._requests -= 1
                self._heard = self._clock()


class RunnerFiles:
    """Files of the container `runner`, which `hook.sh` packs and unpacks."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def send(self, folder: str) -> Iterator[bytes]:
        """Yield the chunks of a tar archive of the content of `folder`."""
        instruction = Instruction("send", folder)
        pipe = self._conversation.pipe()
        self._conversation.carry_out(instruction, pipe)
        try:
            with self._conversation.cut_by_cancel():
                yield from pipe.chunks()
        except PipeBroken:  # an error that hook.sh reported explains the cause better
            self._conversation.reported(instruction)
            raise
        except GeneratorExit:
            pipe.abort("the archive was not read to its end")
            raise
        self._conversation.reported(instruction)

    def receive(self, folder: str, chunks: Iterable[bytes]) -> None:
        """Unpack a tar archive into `folder`."""
        self._give(Instruction("receive", folder), chunks)

    def write(self, path: str, content: bytes) -> None:
        """Write one file."""
        self._give(Instruction("write", path), (content,))

    def _give(self, instruction: Instruction, chunks: Iterable[bytes]) -> None:
        pipe = self._conversation.pipe()
        self._conversation.carry_out(instruction, pipe)
        try:
            with self._conversation.cut_by_cancel():
                for chunk in chunks:
                    pipe.put(chunk)
        except PipeBroken:  # an error that hook.sh reported explains the cause better
            self._conversation.reported(instruction)
            raise
        except BaseException:
            pipe.abort("the archive is incomplete")
            raise
        pipe.end()
        self._conversation.reported(instruction)


class JobLog:
    """The log of the job, which `hook.sh` prints. Nothing is written after the command was cancelled.

    If the log is full and nobody reads it, the command is cancelled. Otherwise the command would wait forever
    for a `hook.sh` whose connection for the log failed.
    """

    def __init__(self, pipe: Pipe, cancel: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._cancel = cancel

    def line(self, text: str) -> None:
        """Write one line."""
        self.raw(f"{text}\n".encode(errors="replace"))

    def raw(self, data: bytes) -> None:
        """Write the output of a process, unchanged."""
        if not data:
            return
        try:
            self._pipe.put(data)
        except PipeBroken as error:
            self._cancel(f"the log of the command is not read: {error}")
