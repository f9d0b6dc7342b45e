"""Ailments of a runner, read from the tag of its image. Tests use them to make the runners of one pool fail.

The tag is the ailment, alone or after other words (`runner:too-old`, `runner:7-too-old`). A RunnerPool sets the image
in `spec.image`. With another image, the ailment ends. A tag that is a version (`runner:2.330.0`) is the version that
the runner reports to GitHub. With any other tag the runner reports `CURRENT`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CURRENT = "2.336.0"
"""Version of a runner whose image tag is no version."""

TOO_OLD = "2.300.0"
"""Version that the lab's GitHub always refuses."""

DEPRECATED_EXIT_CODE = 7
NO_SUCH_SCRIPT = 2
"""Exit code of dash, the shell of Debian and Ubuntu, for a script that does not exist."""
NO_CLIENT, NO_RUNNER, WRONG_USER = 21, 22, 23
"""Exit codes of the product's scripts for an image that they cannot use."""
NO_SHELL = 128
"""Exit code that containerd reports for a container whose command does not exist."""
START_ERROR = "StartError"
"""Reason that containerd reports for a container that did not start."""

UPDATE_SECONDS = 5.0
"""Default duration of a self-update in seconds, if the tag has no number."""

_AILMENT = re.compile(r"(?:.*-)?(too-old|updates|no-egress|crashes|no-client|no-runner|wrong-user|no-shell)(?:-(\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Ailment(StrEnum):
    """Defect of a runner.

    - `too-old`: GitHub refuses its version. It exits with 7 if the environment asks for that exit code, otherwise with
      0.
    - `updates`: it is online for a moment, then offline for `updates-<seconds>` while it replaces itself. Then it
      starts again with the same JIT.
    - `no-egress`: it never reaches GitHub, and runs until its Pod is deleted.
    - `crashes`: it exits with `crashes-<exit code>`, by default 1, before it reaches GitHub.
    - `no-client`: the image has neither curl nor wget, so the poller exits with 21 at once.
    - `no-runner`: the image lacks the runner, so both containers exit with 22 at once.
    - `wrong-user`: the Pod's user cannot use the runner, so both containers exit with 23 at once.
    - `no-shell`: the image lacks a shell, so both containers fail to start. They are reported with exit code 128.
    """

    NONE = "none"
    TOO_OLD = "too-old"
    UPDATES = "updates"
    NO_EGRESS = "no-egress"
    CRASHES = "crashes"
    NO_CLIENT = "no-client"
    NO_RUNNER = "no-runner"
    WRONG_USER = "wrong-user"
    NO_SHELL = "no-shell"


UNUSABLE: Mapping[Ailment, tuple[int, int]] = {
    Ailment.NO_CLIENT: (NO_CLIENT, 0),
    Ailment.NO_RUNNER: (NO_RUNNER, NO_RUNNER),
    Ailment.WRONG_USER: (WRONG_USER, WRONG_USER),
}
"""Exit codes of poller and runner in an image that the scripts find unusable."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a runner: its ailment, the number in the tag, and its version."""

    ailment: Ailment = Ailment.NONE
    number: int | None = None
    version: str = CURRENT

    @property
    def update_seconds(self) -> float:
        """Return the seconds that an update keeps it offline."""
        return UPDATE_SECONDS if self.number is None else float(self.number)

    @property
    def crash_code(self) -> int:
        """Return the exit code of a runner that crashes."""
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
    """Return the condition of the runners of an image."""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if _VERSION.fullmatch(tag):
        return Condition(version=tag)
    found = _AILMENT.fullmatch(tag)
    if found is None:
        return Condition()
    ailment = Ailment(found[1])
    number = None if found[2] is None else int(found[2])
    return Condition(ailment, number, TOO_OLD if ailment is Ailment.TOO_OLD else CURRENT)
