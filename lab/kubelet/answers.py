"""Answers of the dispatch endpoint, as a poller that accepts JSON interprets them. Pure, no I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

LONGEST_WAIT = 60
FIRST_STEP = 1.0
LONGEST_STEP = 30.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Content of a 200."""

    jit_config: str
    runner_name: str
    claim: str

    def __repr__(self) -> str:
        return f"Work(claim={self.claim!r}, runner_name={self.runner_name!r})"


@dataclass(frozen=True, kw_only=True)
class End:
    """The poller exits with `code` (never 0) and this termination message."""

    code: int
    message: str


@dataclass(frozen=True, kw_only=True)
class PollAgain:
    """The poller polls again after `wait` seconds.

    `failed`: the answer counts as a failure and lengthens the next wait.
    """

    wait: float
    failed: bool


def decide(
    *, status: int, retry_after: str | None, body: Any, failures: int, chance: random.Random
) -> Work | End | PollAgain:
    """Return the action after an answer.

    `status` is the HTTP status, or 0 if there was no answer. `failures` is the number of consecutive failures before
    this answer.
    """
    delay = _seconds(retry_after)
    if status == HTTPStatus.OK and isinstance(body, dict) and body.get("jit_config"):
        return Work(
            jit_config=str(body["jit_config"]),
            runner_name=str(body.get("runner_name", "")),
            claim=str(body.get("claim_id", "")),
        )
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return End(code=1, message=f"refused: status {status}")
    if status == HTTPStatus.GONE:
        return End(code=10, message=f"replaced: status {status}")
    if status == HTTPStatus.NO_CONTENT:
        wait = chance.uniform(0.5, 1.5) if delay is None else _spread(delay, chance)
        return PollAgain(wait=wait, failed=False)
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE} and delay is not None:
        return PollAgain(wait=_spread(delay, chance), failed=True)
    step = min(FIRST_STEP * 2 ** min(failures, 10), LONGEST_STEP)
    return PollAgain(wait=chance.uniform(step / 2, step), failed=True)


def _seconds(raw: str | None) -> int | None:
    if raw is None or not (raw.isascii() and raw.isdigit()):
        return None
    return LONGEST_WAIT if len(raw.lstrip("0")) > 2 else min(int(raw), LONGEST_WAIT)  # noqa: PLR2004 - digits of 60


def _spread(delay: int, chance: random.Random) -> float:
    return delay + chance.uniform(0, delay / 4 + 0.25)
