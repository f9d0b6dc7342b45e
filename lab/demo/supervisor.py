"""Supervisor of the demo: restarts programs that end, as Kubernetes would, or ends the demo if one cannot be restarted.

The lab's GitHub and kubelet, and the cluster, cannot be restarted, because their state would be lost. If one of them
ends, no verdict is possible.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

from lab import liveness
from lab.processes import StartError
from lab.system import System

PAUSE = 1.0
"""Seconds between the end of a process and its restart. The pause doubles after each start that did not last."""

LASTS = 10.0
"""Seconds after which a start counts as lasting."""

TRIES = 5
"""Number of consecutive starts that did not last after which the demo fails."""


class Supervisor:
    """Restarts the processes of a running system. `restarts` counts the restarts by name."""

    def __init__(
        self, system: System, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.restarts: Counter[str] = Counter()
        self._system = system
        self._say = say
        self._clock = clock
        self._due: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._failed: Counter[str] = Counter()

    def check(self) -> None:
        """Restart programs that have ended. Raises `StartError` if the demo cannot continue."""
        if lost := liveness.lost(self._system):
            raise StartError(f"{lost} ended and its state is lost, so the demo cannot continue: see the log of {lost}")
        for name, status in liveness.ended(self._system).items():
            now = self._clock()
            if name not in self._due:
                self._notice(name, status, now)
            elif now >= self._due[name]:
                self._start(name, now)

    def _notice(self, name: str, status: int, now: float) -> None:
        lasted = now - self._started.get(name, 0) >= LASTS
        self._failed[name] = 0 if lasted else self._failed[name] + 1
        if self._failed[name] >= TRIES:
            raise StartError(
                f"{name} ended {TRIES} times in a row ({how(status)}):\n{liveness.tail(self._system, name)}"
            )
        self._due[name] = now + PAUSE * 2 ** self._failed[name]
        self._say(f"{name} ended ({how(status)}); starting it again, as Kubernetes would")

    def _start(self, name: str, now: float) -> None:
        del self._due[name]
        self._started[name] = now
        try:
            liveness.start_again(self._system, name)
        except StartError:  # the next check finds the process ended and counts the failure
            return
        self.restarts[name] += 1


def how(status: int) -> str:
    """Describe the end of a process: the name of a signal, or the exit status."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
