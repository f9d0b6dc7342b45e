"""`ostler worker` with a number that no setting gives: the size of its mint bucket, which is never refilled.

Nothing else of the command is changed, unless `GOVERNOR_SEED` names a known bug.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cli import main
from github_adapters.calls import governor as governing
from github_adapters.calls.governor import CallClass, Pace

SLOW = 1 / 1000
"""Tokens per second. No token comes back during a test."""


def narrow(burst: float) -> None:
    """Set the size of the mint bucket. The worker imports its modules later, and so uses this size."""
    usual = governing.paces
    pace = Pace(rate=SLOW, burst=burst, at_once=90, quota="actions_runner_registration")
    governing.paces = lambda **given: usual(**given) | {CallClass.MINT: pace}


def seed(name: str) -> None:
    """Install a known bug: a worker does not share the limits that it learns."""
    if name == "a bucket per worker":
        keys = governing._keys
        governing._keys = lambda installation_id: keys(installation_id * 100_000 + os.getpid())
    if name in {"a bucket per worker", "a flush forgets"}:
        make: Callable[..., governing.Governor] = governing.Governor

        def forgetful(*arguments: Any, **given: Any) -> governing.Governor:
            return make(*arguments, **(given | {"recall": lambda _: {}}))

        governing.Governor = forgetful  # type: ignore[assignment,misc]


if __name__ == "__main__":
    narrow(float(os.environ["GOVERNOR_BURST"]))
    seed(os.environ.get("GOVERNOR_SEED", ""))
    main()
