"""Names of the `OSTLER_…` variables, and detection of variables that no setting reads.

A misspelt variable causes only a warning. During a rolling deploy or a rollback, the environment of a process might
contain variables of a newer version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIX = "OSTLER_"
TIMINGS = "OSTLER_TIMINGS"
"""The developer variable that overrides timings."""
CLOCK_OFFSET = "OSTLER_CLOCK_OFFSET"
"""The developer variable that moves the clock of a process (`ostler.clock.offset_of`)."""

OTHERS = frozenset(
    {
        "OSTLER_HALT_DIR",  # read by ostler.halt, only in fault tests
        CLOCK_OFFSET,  # read by every command at its start, only in tests and chaos runs
        "OSTLER_IMAGE",  # read by Docker Compose
        "OSTLER_REDIS_PASSWORD",  # this and the next three are read by `ostler redis-users`
        "OSTLER_REDIS_PASSWORD_BEAT",
        "OSTLER_REDIS_PASSWORD_FLOWER",
        "OSTLER_REDIS_PASSWORD_WATCH",
        "OSTLER_RUNNER_HOME",
        "OSTLER_JIT_DIR",
        "OSTLER_TOKEN_FILE",
        "OSTLER_WAIT_SECONDS",
        "OSTLER_TERMINATION_LOG",
        "OSTLER_HOOKS_SOCKET",
        "OSTLER_HOOKS_WAIT",
        "OSTLER_HOOKS_POD_UID",
        "OSTLER_HOOKS_POOL",
        "OSTLER_HOOKS_VCPU",
        "OSTLER_HOOKS_MEMORY_MIB",
        "OSTLER_HOOKS_DISK_MIB",
    }
)
"""Variables that are not settings. Tests, Docker Compose, a command, or the containers of a runner Pod read them."""

_CLOSE = 0.7
_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)\Z")
"""Pattern of the variables that Kubernetes sets in each Pod for a Service whose name begins with `ostler-`."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A variable that is set although no setting has its name.

    `near` is the variable or timing that the operator probably meant, or None if no name is similar.
    """

    name: str
    near: str | None

    def __str__(self) -> str:
        """Return a warning about this variable in one line."""
        meant = "docs/configuration.md lists all variables" if self.near is None else f"did you mean {self.near}?"
        return f"{self.name} is set, but no setting has this name; {meant}"


def variable(field: str) -> str:
    """Return the name of the environment variable for a field of a settings class."""
    return f"{PREFIX}{field.upper()}"


def nearest(name: str, among: Iterable[str]) -> str | None:
    """Return the name in `among` that `name` probably misspells, or None if no name is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(among), n=1, cutoff=_CLOSE)), None)


def strangers(environment: Mapping[str, str], known: Iterable[str], *, timings: Iterable[str] = ()) -> list[Stranger]:
    """Return the variables in `environment` with the prefix `OSTLER_` that no code reads, sorted by name.

    `known` has the variables of the settings. `timings` has the names of the timings. Some timings were settings in
    earlier versions, and the result then names the timing that replaced the variable.
    """
    names = {*known, *OTHERS}
    unread = sorted(
        name for name in environment if name.startswith(PREFIX) and name not in names and not _SERVICE.search(name)
    )
    moved = {variable(timing): f"{timing} in {TIMINGS}" for timing in timings}
    return [Stranger(name, moved.get(name) or nearest(name, names - OTHERS)) for name in unread]
