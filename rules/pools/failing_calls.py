"""Writes to the API server that keep failing: when the status of a pool shows them, and their text.

A write is a POST, PUT, PATCH or DELETE. All writes of one method to one kind of object count as one *call*, for example
`POST pods`. These failures do not count as failed starts, and they delay no later write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

REPEATED = 3
"""Consecutive runs with a failure after which the status of the pool shows a call."""

FORGOTTEN_AFTER = timedelta(minutes=2)
"""Time after the last failure of a call until the call is forgotten, if no later write of the call is made.

A reconcile comes at least every 10 seconds, and a retirement is repeated at least once a minute.
"""

_VERBS = MappingProxyType({"POST": "create", "DELETE": "delete"})
_REASONS = MappingProxyType({"POST": "FailedCreate", "DELETE": "FailedDelete"})


@dataclass(frozen=True, slots=True)
class FailingCall:
    """A call that failed in `failures` consecutive runs, first at `since` and last at `at`.

    `call` is the method and the kind of object, for example `POST pods`. `words` is the text of the API server.
    """

    call: str
    failures: int
    since: datetime
    at: datetime
    words: str

    @property
    def lasts(self) -> bool:
        """Return whether the status of the pool shows the call."""
        return self.failures >= REPEATED

    @property
    def creates(self) -> bool:
        """Return whether the call creates objects."""
        return self.call.startswith("POST ")

    @property
    def reason(self) -> str:
        """Return the reason of the condition and of the Event: `FailedCreate`, `FailedDelete` or `FailedUpdate`."""
        return _REASONS.get(self.call.partition(" ")[0], "FailedUpdate")

    def describe(self) -> str:
        """Return a sentence with the kind of object, the start of the failures, and the text of the API server."""
        method, _, kind = self.call.partition(" ")
        since = self.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"Calls to {_VERBS.get(method, 'update')} {kind} have failed since {since}: {self.words}"


def after_run(
    known: Iterable[FailingCall], outcomes: Mapping[str, str | None], *, began: datetime, now: datetime
) -> tuple[FailingCall, ...]:
    """Return the failing calls after a run that began at `began`.

    `outcomes`: for each call of the run, the text of its last failure, or None if no write of the call failed. The same
    run may be recorded several times, and counts once. A run that overlaps a recorded run counts with that run.
    """
    found = {each.call: each for each in known if now - each.at < FORGOTTEN_AFTER}
    for call, words in outcomes.items():
        before = found.pop(call, None)
        if words is None:
            continue
        counted = before is not None and before.at >= began
        failures = 0 if before is None else before.failures
        since = now if before is None else before.since
        found[call] = FailingCall(call, failures + (not counted), since, now, words)
    return tuple(sorted(found.values(), key=lambda each: (not each.creates, each.since, each.call)))


def lasting(calls: Sequence[FailingCall]) -> list[FailingCall]:
    """Return the calls that the status of the pool shows. Calls that create objects come first."""
    return [each for each in calls if each.lasts]
