"""Steps that continue while the connection to them is broken.

An exec connection ends when the API server is replaced, and a command that has begun must not be repeated. A step
therefore runs detached in its container. A first command starts the step and writes its output and its exit code to
files. A second command follows the output. Both can be repeated after any failure: the first creates a folder that can
be created only once, and the second continues at the byte that arrived last.

If the command is cancelled or fails, a third command ends the step. Otherwise the step would run at the same time
as the next steps of its job.

The container needs `sh`, `cat`, `dd`, `head`, `mkdir`, `mv`, `sleep`, `stat` and `tail`, as in BusyBox, and a Linux
`/proc`. If the container has `setsid`, a cancelled step is ended together with the processes that it has started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from container_hooks.copies import append
from container_hooks.ports import Exec
from ostler import logging
from ostler.clock import Timing
from ostler.errors import ExecLost, Gone, OstlerError, RateLimited, Retryable

log = logging.get_logger(__name__)

PATIENCE = 300.0
"""Seconds without any answer from a step's container after which the step counts as lost."""

_PAUSE = 1.0  # seconds between two connections
_STEADY = 30.0  # seconds; a connection that lasted longer restarts the time limit `patience`

# The exit code is part of the name of a folder, because a folder can be renamed even on a full disk.
_START = """\
folder=$1; shift
[ -d "$folder/begun" ] && exit 0
mkdir -p "$folder" || exit 1
$(command -v setsid) sh -c '
  folder=$1; shift
  mkdir "$folder/begun" 2>/dev/null || exit 0
  mkdir "$folder/running" && : > "$folder/output" && echo "$$" > "$folder/pid" || exit 0
  "$@" >> "$folder/output" 2>&1 < /dev/null
  mv "$folder/running" "$folder/ended.$?"
' sh "$folder" "$@" > /dev/null 2>&1 < /dev/null &
exit 0
"""
# The script uses `stat` and `dd`, because `wc -c` and `tail -c +N` of BusyBox read the whole file in each round. For 1
# GiB, `wc` takes 30 s and `tail` 0.4 s.
_FOLLOW = """\
folder=$1 seen=$2 absent=0 rounds=0 end=
ended() { for each in "$folder"/ended.*; do [ ! -d "$each" ] || end=${each##*.}; done; }
while :; do
  ended
  if [ -n "$end" ]; then
    :
  elif [ -s "$folder/pid" ]; then
    case $(cat "/proc/$(cat "$folder/pid")/stat" 2>/dev/null) in
      "" | *") Z "*) ended; end=${end:-killed} ;;
    esac
  else
    absent=$((absent + 1))
    [ "$absent" -gt 50 ] && end=absent
  fi
  size=$(stat -c %s "$folder/output" 2>/dev/null) || size=0
  if [ "$size" -gt "$seen" ]; then
    dd if="$folder/output" bs=65536 skip="$((seen / 65536))" 2>/dev/null |
      tail -c "+$((seen % 65536 + 1))" | head -c "$((size - seen))"
    seen=$size
  fi
  [ -n "$end" ] && break
  rounds=$((rounds + 1))
  [ "$((rounds % 25))" -ne 0 ] || echo alive >&2
  sleep 0.2
done
echo "$end" >&2
"""
# If the step has not begun, this script creates the folder `begun`, so that the step can never begin.
_STOP = """\
mkdir -p "$1" && mkdir "$1/begun" 2>/dev/null && exit 0
tries=0
until [ -s "$1/pid" ] || [ "$tries" -ge 20 ]; do tries=$((tries + 1)); sleep 0.1; done
pid=$(cat "$1/pid") || exit 0
send() { kill -s "$1" -- "-$pid" || kill -s "$1" "$pid"; }
send TERM && sleep 2 && send KILL
exit 0
"""


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
) -> int:
    """Run a command once and return its exit code. `output` receives each byte of the output once, in order.

    `why_ended` returns the reason if the container has ended, and None otherwise. It is called after each broken
    connection.

    Raises `StepKilled` if the step has no exit code, and `StepNotStarted` if the container could not start it. Raises
    `ExecLost`, `Retryable` or `RateLimited` if the container did not answer for `patience` seconds, and the errors of
    `Exec.run` that no retry can resolve. Before any error is raised, the step is ended, unless it was killed or its Pod
    is gone. If the attempt to end the step fails, the failure is only logged.
    """
    step = _Step(processes, place, output)
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
    """A step and its progress. `seen` is the number of bytes of output that were passed on."""

    def __init__(self, processes: Exec, place: Place, output: Callable[[bytes], None]) -> None:
        self._processes = processes
        self._place = place
        self._output = output
        self._started = False
        self.seen = 0

    def start(self, command: Sequence[str]) -> None:
        """Start the step unless it has been started."""
        if self._started:
            return
        said = bytearray()
        hears = partial(append, said)
        code = self._run(["sh", "-c", _START, "sh", self._place.folder, *command], hears, hears)
        if code != 0:
            reason = said.decode(errors="replace").strip() or f"the shell ended with {code}"
            raise StepNotStarted(reason)
        self._started = True

    def follow(self) -> int:
        """Pass on the output until the step has ended, and return its exit code."""
        said = bytearray()
        command = ["sh", "-c", _FOLLOW, "sh", self._place.folder, str(self.seen)]
        code = self._run(command, self._pass_on, partial(append, said), writes_often=True)
        *_, last = ["", *said.decode(errors="replace").splitlines()]
        match last:
            case "killed":
                raise StepKilled("it was killed; its container might have used up its memory")
            case "absent":
                raise StepNotStarted(
                    "its shell did not start within 10 seconds; check the free disk space of the container"
                )
            case end if code == 0 and end.isdigit():
                return int(end)
            case words:
                raise ExecLost(f"the output of the step could not be read: exit code {code}, {words[-200:]!r}")

    def stop(self) -> None:
        """End the step. A failure is logged, and the step might then go on."""
        hears = partial(append, bytearray())
        try:
            self._run(["sh", "-c", _STOP, "sh", self._place.folder], hears, hears)
        except OstlerError as error:
            log.warning("hooks.step_not_ended", pod=self._place.pod, error=type(error).__name__, detail=str(error))
        else:
            log.info("hooks.step_ended", pod=self._place.pod)

    def _pass_on(self, data: bytes) -> None:
        self.seen += len(data)
        self._output(data)

    def _run(
        self,
        command: Sequence[str],
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        *,
        writes_often: bool = False,
    ) -> int:
        pod, container = self._place.pod, self._place.container
        return self._processes.run(pod, container, command, stdout=stdout, stderr=stderr, writes_often=writes_often)
