"""Supervisor of the demo: restarts programs that end, as Kubernetes would.

The lab's GitHub, kubelet and cluster cannot be restarted, because their state is in memory. If one of them ends, no
verdict is possible and the demo ends.
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
"""Seconds between the end of a process and its next start. The wait doubles after each start that did not last."""

LASTS = 10.0
"""Seconds after which a start counts as lasting."""

TRIES = 5
"""Number of failed starts in a row after which the demo gives up."""


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
        """Restart the processes that have ended. Raises `StartError` if the demo cannot go on."""
        if lost := liveness.lost(self._system):
            raise StartError(f"{lost} ended; what it knew is gone, so the demo cannot go on")
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
        except StartError:  # the next check finds that it ended, and counts this
            return
        self.restarts[name] += 1


def how(status: int) -> str:
    """Describe in words how a process ended."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
