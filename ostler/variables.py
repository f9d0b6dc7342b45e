"""Names of the `OSTLER_…` variables, and what is set that nothing reads.

A misspelt variable is a warning and not an error: during a rolling deploy or a rollback, a process may be given
variables of a newer version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIX = "OSTLER_"
TIMINGS = "OSTLER_TIMINGS"
"""The developer variable that overrides timings."""

OTHERS = frozenset(
    {
        "OSTLER_HALT_DIR",  # read by ostler.halt, for fault tests only
        "OSTLER_IMAGE",  # compose
        "OSTLER_RUNNER_HOME",
        "OSTLER_JIT_DIR",
        "OSTLER_TOKEN_FILE",
        "OSTLER_WAIT_SECONDS",
        "OSTLER_TERMINATION_LOG",
    }
)
"""Variables that are no settings: of tests, of compose, of the poller in a runner Pod."""

_CLOSE = 0.7
_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)\Z")
"""What Kubernetes sets in each Pod for a Service whose name begins with `ostler-`."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A variable that is set and that nothing reads. `near`: the variable or timing that was probably meant."""

    name: str
    near: str | None

    def __str__(self) -> str:
        """Return the warning, in one line."""
        meant = "docs/configuration.md lists those that are" if self.near is None else f"did you mean {self.near}?"
        return f"{self.name} is set, and no setting has this name; {meant}"


def variable(field: str) -> str:
    """Return the variable that sets a field."""
    return f"{PREFIX}{field.upper()}"


def nearest(name: str, among: Iterable[str]) -> str | None:
    """Return the name that one is probably a misspelling of."""
    return next(iter(difflib.get_close_matches(name, sorted(among), n=1, cutoff=_CLOSE)), None)


def strangers(environment: Mapping[str, str], known: Iterable[str], *, timings: Iterable[str] = ()) -> list[Stranger]:
    """Return the variables with our prefix that nothing reads, in order.

    `known`: the variables of the settings. `timings`: the names of the timings, as some of them were settings earlier.
    """
    names = {*known, *OTHERS}
    unread = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in names and not _SERVICE.search(name)
    )
    moved = {variable(timing): f"{timing} in {TIMINGS}" for timing in timings}
    return [Stranger(name, moved.get(name) or nearest(name, names - OTHERS)) for name in unread]
