"""Ailments of a runner, read from the tag of its image: how a test makes the runners of one pool fail.

The tag is the ailment, alone or behind other words (`runner:too-old`, `runner:7-too-old`), so that a RunnerPool says it
in `spec.image`, and another image mends it. A tag that is a version (`runner:2.330.0`) is the version that the runner
tells GitHub; every other one tells `CURRENT`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

CURRENT = "2.336.0"
"""The version of a runner whose image names none."""

TOO_OLD = "2.300.0"
"""A version that the lab's GitHub always refuses."""

DEPRECATED_EXIT_CODE = 7
NO_SUCH_COMMAND = 127

UPDATE_SECONDS = 5.0
"""How long a self-update takes where the tag says no other time."""

_AILMENT = re.compile(r"(?:.*-)?(too-old|updates|no-egress|crashes|no-scripts)(?:-(\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Ailment(StrEnum):
    """What is wrong with a runner.

    - `too-old`: GitHub refuses its version. It ends with 7 where the environment asks for that exit code, else with 0.
    - `updates`: it is online for a moment, then offline for `updates-<seconds>` while it replaces itself, and starts
      again with the same JIT.
    - `no-egress`: it never reaches GitHub, and runs on until its Pod is deleted.
    - `crashes`: it ends with `crashes-<exit code>`, else with 1, before it reaches GitHub.
    - `no-scripts`: the image lacks the project's scripts: both containers end with 127 at once.
    """

    NONE = "none"
    TOO_OLD = "too-old"
    UPDATES = "updates"
    NO_EGRESS = "no-egress"
    CRASHES = "crashes"
    NO_SCRIPTS = "no-scripts"


@dataclass(frozen=True, slots=True)
class Condition:
    """How a runner is: its ailment, the number behind it, and its version."""

    ailment: Ailment = Ailment.NONE
    number: int | None = None
    version: str = CURRENT

    @property
    def update_seconds(self) -> float:
        """How long it is offline for an update."""
        return UPDATE_SECONDS if self.number is None else float(self.number)

    @property
    def crash_code(self) -> int:
        """The exit code of one that crashes."""
        return 1 if self.number is None else self.number

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the runner process."""
        found = {"LAB_RUNNER_VERSION": self.version}
        if self.ailment is Ailment.UPDATES:
            found["LAB_RUNNER_UPDATE_SECONDS"] = str(self.update_seconds)
        elif self.ailment is Ailment.NO_EGRESS:
            found["LAB_RUNNER_EGRESS"] = "none"
        elif self.ailment is Ailment.CRASHES:
            found["LAB_RUNNER_CRASHES"] = str(self.crash_code)
        return found


def condition_of(image: str) -> Condition:
    """Return how the runners of an image are."""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if _VERSION.fullmatch(tag):
        return Condition(version=tag)
    found = _AILMENT.fullmatch(tag)
    if found is None:
        return Condition()
    ailment = Ailment(found[1])
    number = None if found[2] is None else int(found[2])
    return Condition(ailment, number, TOO_OLD if ailment is Ailment.TOO_OLD else CURRENT)
