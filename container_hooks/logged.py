"""Programs of images: the output of a container is its log, and its exit code is in the status of its Pod.

The log is followed until the container has ended. Each connection might break, so the log is read again, and only what
has not arrived is passed on (`container_hooks.log_lines`). The output is complete if a read that began after the end of
the container has brought nothing new.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from container_hooks.cluster import Made
from container_hooks.detached import PATIENCE
from container_hooks.failures import HookFailed, failure_of
from container_hooks.log_lines import LogLines
from container_hooks.pipes import Pipe, PipeBroken
from container_hooks.pod_state import container_end
from container_hooks.ports import World
from container_hooks.steps import KILLED, killed_line, reason_of_end
from k8s_adapters.calls.client import Json, object_path
from k8s_adapters.calls.logs import LogStream
from ostler.errors import Forbidden, Gone, RateLimited, Retryable, UpstreamError

_PAUSE = 1.0  # seconds between two reads
_SILENCE = 60.0  # seconds without output after which the connection is replaced
_CHECKED = 1.0  # seconds between two checks whether the command was cancelled
_AHEAD = 1024 * 1024  # bytes that wait for the log of the job
_MOST_READS = 20  # of the end of a log: one brings the rest, the others are for lost connections


def follow_program(world: World, made: Made, *, container: str) -> int:
    """Pass on the log of a container until it has ended, and return its exit code.

    Raises `HookFailed` if the container has no exit code, or if its log was unreadable for five minutes.
    """
    lines = LogLines(world.log.raw)
    try:
        return _follow(world, made, container, lines)
    finally:
        if lines.open:
            world.log.raw(b"\n")  # the next line of the job's log might be a command for the runner


def _follow(world: World, made: Made, container: str, lines: LogLines) -> int:
    clock = world.timing.clock
    read_at, follow, reads = clock(), True, 0
    while True:
        ended = _end_of(world, made, container)
        before = lines.passed
        follow = follow and ended is None
        try:
            silent = _read(world, made, container, lines, follow=follow)
        except Forbidden as error:
            raise failure_of("the log of the step cannot be read", error) from error
        except UpstreamError as error:
            if lines.passed > before:
                read_at = clock()
            elif clock() - read_at > PATIENCE:
                if ended is None:
                    raise HookFailed(
                        "the result of the step is unknown: the log of its container could not be read for several "
                        f"minutes ({error}); run the job again"
                    ) from error
                world.log.line("The end of the step's output is missing, because its log could not be read")
                return _exit_code(world, made, container, ended)
            follow = True
        else:
            if not silent or lines.passed > before:
                read_at = clock()
            reads += ended is not None and not silent
            if ended is not None and not silent and (lines.passed == before or reads == _MOST_READS):
                return _exit_code(world, made, container, ended)
            # The program might have nothing to say, or the node might be gone. A read without follow shows which.
            follow = not silent
        world.timing.sleep(_PAUSE)


def _end_of(world: World, made: Made, container: str) -> Json | None:
    """Return how the container ended, or None if it has not ended or the API server does not answer."""
    try:
        pod = world.client.request("GET", object_path("pods", namespace=world.namespace, name=made.name))
    except Gone:
        raise HookFailed(
            f"the step has no exit code: Pod {made.name} no longer exists; it was deleted, or its node was lost",
            code=KILLED,
        ) from None
    except (Retryable, RateLimited):
        return None
    if pod["metadata"]["uid"] != made.uid:
        raise HookFailed(f"the step has no exit code: Pod {made.name} was replaced by another Pod", code=KILLED)
    if (ended := container_end(pod, container)) is not None:
        return ended
    if (reason := reason_of_end(pod, container)) is not None:
        raise HookFailed(f"the step has no exit code: {reason}", code=KILLED)
    return None


def _read(world: World, made: Made, container: str, lines: LogLines, *, follow: bool) -> bool:
    """Read the log once, and return whether the read ended by silence.

    Raises `UpstreamError` if the log cannot be read, or if the connection breaks.
    """
    lines.begin()
    stream = LogStream(
        world.client,
        namespace=world.namespace,
        pod=made.name,
        container=container,
        since=lines.since,
        follow=follow,
        silence=_SILENCE,
    )
    with _pieces(stream) as pieces:
        for piece in pieces:
            world.timing.clock()  # raises an error if the command was cancelled
            lines.read(piece)
    if stream.silent and not follow:
        raise Retryable(f"the node of Pod {made.name} does not answer")
    return stream.silent


@contextmanager
def _pieces(stream: LogStream) -> Iterator[Iterator[bytes]]:
    """Yield the pieces of a stream, with an empty piece every second, so that a cancelled command ends at once.

    A thread reads the stream. If the caller does not continue, the thread waits, and so does the API server.
    """
    pipe, failure = Pipe(most=_AHEAD, stall=None), list[Exception]()

    def read() -> None:
        try:
            for piece in stream.pieces():
                pipe.put(piece)
        except Exception as error:  # noqa: BLE001  raised by the reader of the pieces
            failure.append(error)
        finally:
            pipe.end()

    def pieces() -> Iterator[bytes]:
        yield from pipe.chunks(every=_CHECKED)
        if failure:
            raise failure[0]

    thread = threading.Thread(target=read, name="hook-log", daemon=True)
    thread.start()
    try:
        yield pieces()
    finally:
        with suppress(PipeBroken):
            pipe.abort("the log is not read any more")
        stream.stop()
        thread.join(_CHECKED)


def _exit_code(world: World, made: Made, container: str, ended: Json) -> int:
    code = ended.get("exitCode")
    if not isinstance(code, int):
        raise HookFailed("the step has no exit code: the node reported none", code=KILLED)
    if (number := ended.get("signal") or None) is not None:
        code = code or 128 + int(number)
    if (line := killed_line(world, made.name, container, code)) is not None:
        world.log.line(line)
    return code
