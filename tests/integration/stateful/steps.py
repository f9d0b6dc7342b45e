"""Steps that can be halted before and after each of their outside calls.

A step is the real body of a task in a separate thread, and only one thread runs at a time. The step halts where it
calls the cluster or GitHub, and the machine decides the outcome of the call. In this way a reply is lost, a call is
applied long after its timeout, a process dies, or a finish comes after everything else has continued.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from models.db.engine import in_transaction
from ostler.errors import Retryable

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds that a step may run until its next call. A longer run means that it waits for a lock of a halted step."""


class CallOutcome(Enum):
    """Outcome of an outside call."""

    ANSWERED = "answered"
    HELD = "applied, and the answer waits"
    LOST = "applied, and the answer is lost"
    FAILED = "never applied, and no answer comes"
    LATE = "no answer comes, and it is applied later"
    KILLED = "the process dies before it is applied"


class Killed(BaseException):
    """The process of a step is gone. No code of the step may handle this exception."""


_running = threading.local()


class Step:
    """One execution of a body. `call` names the outside call at which it is halted, or is None before and after."""

    def __init__(self, what: str, body: Callable[[], None]) -> None:
        self.what = what
        self.call: str | None = None
        self.over = False
        self.error: BaseException | None = None
        self._body = body
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._fate = CallOutcome.ANSWERED
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    def advance(self, outcome: CallOutcome = CallOutcome.ANSWERED) -> None:
        """Run to the next outside call or to the end. `outcome` applies to the call at which the step is halted."""
        self._fate = outcome
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        assert self._stopped.acquire(timeout=PATIENCE), f"{self.what} waits for a lock that a stopped step holds"
        if self.over:
            self._thread.join()

    def pause(self, call: str) -> CallOutcome:
        """Halt here until the machine continues the step. The step's thread calls this method."""
        self.call = call
        self._stopped.release()
        self._go.acquire()
        self.call = None
        return self._fate

    def _run(self) -> None:
        _running.step = self
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  the machine judges it
            self.error = error
        self.over = True
        self._stopped.release()


def outside(call: str, apply: Callable[[], T], *, late: Callable[[Callable[[], object]], None]) -> T:
    """Make an outside call of the running step. `late` gets a call that is applied after its timeout.

    Code outside of any step makes the call directly. Fails if a transaction is open (law L15).
    """
    assert not in_transaction(), f"{call} while a transaction is open"
    step: Step | None = getattr(_running, "step", None)
    if step is None:
        return apply()
    outcome = step.pause(call)
    if outcome is CallOutcome.KILLED:
        raise Killed(call)
    if outcome is CallOutcome.LATE:
        late(apply)
    if outcome in {CallOutcome.LATE, CallOutcome.FAILED}:
        raise Retryable(f"{call}: no answer")
    result = apply()
    if outcome is CallOutcome.HELD:
        outcome = step.pause(f"{call} (applied)")
        if outcome is CallOutcome.KILLED:
            raise Killed(call)
    if outcome in {CallOutcome.LOST, CallOutcome.LATE, CallOutcome.FAILED}:
        raise Retryable(f"{call}: the answer is lost")
    return result
