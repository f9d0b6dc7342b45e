"""Steps that continue while the connection to them is broken.

An exec connection ends when the API server is replaced, and a command that has begun must not be repeated. A step
therefore runs detached in its container. A first command starts the step, whose output and exit code are written to
files. A second command follows the output. Both can be repeated after any failure: the first creates a folder that can
be created only once, and the second continues at the byte that arrived last. Output that has arrived is deleted in the
container, so the files stay small (`container_hooks.spool`).

If the command is cancelled or fails, a third command ends the step. Otherwise the step would run at the same time
as the next steps of its job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from container_hooks import spool
from container_hooks.copies import append
from container_hooks.ports import Exec
from container_hooks.spool import Spool
from ostler import logging
from ostler.clock import Timing
from ostler.errors import ExecLost, Gone, OstlerError, RateLimited, Retryable

log = logging.get_logger(__name__)

PATIENCE = 300.0
"""Seconds without any answer from a step's container after which the step counts as lost."""

_PAUSE = 1.0  # seconds between two connections
_STEADY = 30.0  # seconds; a connection that lasted longer restarts the time limit `patience`
_TOLD_AFTER = 0.5  # seconds after which a reader hears what has arrived; also the longest wait for the end of its input
_FULL = b"ostler: a part of the output is missing, because the disk of the container was full\n"


class StepKilled(OstlerError):
    """The step was killed from outside, or its container ended, so the step has no exit code."""


class StepNotStarted(OstlerError):
    """The container could not start a step. The message has the reason."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A step's container, and a folder there that no other step uses."""

    pod: str
    container: str
    folder: str


def run_detached(
    processes: Exec,
    place: Place,
    command: Sequence[str],
    *,
    output: Callable[[bytes], None],
    why_ended: Callable[[], str | None],
    timing: Timing,
    patience: float = PATIENCE,
    size: Spool | None = None,
) -> int:
    """Run a command once and return its exit code. `output` receives each byte of the output once, in order.

    `why_ended` returns the reason if the container has ended, and None otherwise. It is called after each broken
    connection. If `output` blocks, the step waits as soon as the spool, whose size is `size`, is full.

    Raises `StepKilled` if the step has no exit code, and `StepNotStarted` if the container could not start it. Raises
    `ExecLost`, `Retryable` or `RateLimited` if the container did not answer for `patience` seconds, and the errors of
    `Exec.run` that no retry can resolve. Before any error is raised, the step is ended, unless it was killed or its Pod
    is gone. If the attempt to end the step fails, the failure is only logged.
    """
    step = _Step(processes, place, output, size or Spool())
    try:
        return _until_it_ended(step, command, why_ended=why_ended, timing=timing, patience=patience)
    except (StepKilled, Gone):
        raise
    except BaseException:
        step.stop()
        raise


def _until_it_ended(
    step: _Step,
    command: Sequence[str],
    *,
    why_ended: Callable[[], str | None],
    timing: Timing,
    patience: float,
) -> int:
    lost_since: float | None = None
    while True:
        began, seen = timing.clock(), step.seen
        try:
            step.start(command)
            return step.follow()
        except (ExecLost, Retryable, RateLimited) as error:
            if (reason := why_ended()) is not None:
                raise StepKilled(reason) from error
            now = timing.clock()
            held = isinstance(error, ExecLost) and now - began > _STEADY
            if held or step.seen > seen or lost_since is None:
                lost_since = now
            elif now - lost_since > patience:
                raise
            timing.sleep(_PAUSE)


class _Step:
    """A step and its progress. `seen` is the number of bytes that have arrived, with the mark of the end."""

    def __init__(
        self, processes: Exec, place: Place, output: Callable[[bytes], None], size: Spool, *, seen: int = 0
    ) -> None:
        self._processes = processes
        self._place = place
        self._output = output
        self._size = size
        self._started = False
        self._unmarked = spool.Unmarked(place.folder)
        self._arrived = threading.Condition()
        self.seen = seen

    def start(self, command: Sequence[str]) -> None:
        """Start the step unless it has been started."""
        if self._started:
            return
        said = bytearray()
        hears = partial(append, said)
        code = self._run(spool.start(self._place.folder, command, self._size), hears, hears)
        if code != 0:
            reason = said.decode(errors="replace").strip() or f"the shell ended with {code}"
            raise StepNotStarted(reason)
        self._started = True

    def follow(self) -> int:
        """Pass on the output until the step has ended, and return its exit code."""
        said = bytearray()
        code = self._processes.run(
            self._place.pod,
            self._place.container,
            spool.follow(self._place.folder, self.seen, self._size),
            stdin=self._acknowledgements(),
            stdout=self._pass_on,
            stderr=partial(append, said),
            writes_often=True,
        )
        *_, before, last = ["", "", *said.decode(errors="replace").splitlines()]
        if code != 0 or not (last.isdigit() or last in {"killed", "absent"}):
            raise ExecLost(f"the output of the step could not be read: exit code {code}, {last[-200:]!r}")
        if (rest := self._unmarked.rest()) or before == "full":
            self._output(rest + (_FULL if before == "full" else b""))
        if last == "killed":
            raise StepKilled("it was killed; its container might have used up its memory")
        if last == "absent":
            raise StepNotStarted(
                "its shell did not start within 10 seconds; check the free disk space of the container"
            )
        return int(last)

    def stop(self) -> None:
        """End the step. A failure is logged, and the step might then go on."""
        hears = partial(append, bytearray())
        try:
            self._run(spool.stop(self._place.folder), hears, hears)
        except OstlerError as error:
            log.warning("hooks.step_not_ended", pod=self._place.pod, error=type(error).__name__, detail=str(error))
        else:
            log.info("hooks.step_ended", pod=self._place.pod)

    def _pass_on(self, data: bytes) -> None:
        if known := self._unmarked.pass_on(data):
            self._output(known)
        with self._arrived:
            self.seen += len(data)
            self._arrived.notify_all()

    def _acknowledgements(self) -> Iterator[bytes]:
        """Yield what the spool may delete, and the end after the mark. Empty pieces let the thread of the input end.

        A byte has arrived when `output` has accepted it.
        """
        told = self.seen
        while not self._unmarked.ended:
            with self._arrived:
                self._arrived.wait_for(self._must_tell(told), _TOLD_AFTER)
                seen = self.seen
            # A full spool can have few bytes, if the step wrote them one by one.
            yield spool.acknowledgement(seen) if seen > told else b""
            told = seen
        yield spool.END

    def _must_tell(self, told: int) -> Callable[[], bool]:
        return lambda: self._unmarked.ended or self.seen - told >= self._size.acknowledged_every

    def _run(self, command: Sequence[str], stdout: Callable[[bytes], None], stderr: Callable[[bytes], None]) -> int:
        return self._processes.run(self._place.pod, self._place.container, command, stdout=stdout, stderr=stderr)
