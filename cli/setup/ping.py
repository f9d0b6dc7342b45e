"""End-to-end test of webhooks: request a redelivery of the App's ping until web answers it with 2xx.

GitHub sends a ping when an App is created, and stores the ping for three days. After that time, the test uses the
newest delivery of any event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ostler.errors import Forbidden, RateLimited, Retryable, UpstreamError
from rules.upstream.retry import ONCE

if TYPE_CHECKING:
    from github_adapters.client import GitHub
    from github_adapters.endpoints.deliveries import DeliverySeen

CHECK_EVERY = 2.0
SEND_EVERY = 12.0
"""Seconds between two requests for a redelivery. GitHub waits ten seconds for an answer to each delivery."""
CALL, LAST_CALL = 10.0, 2.0
"""Maximum seconds for a call. If less time is left for the test, a call can still take `LAST_CALL` seconds."""


def see_ping(
    github: GitHub,
    *,
    within: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return None if web answers a webhook with 2xx within `within` seconds; otherwise the problem and its cure.

    `say` prints progress. Raises `Retryable`, with problem and cure in the message, if GitHub itself does not answer.
    """
    began, sent_at, told = clock(), -SEND_EVERY, ""
    before: int | None = None
    problem = "GitHub has not been asked"
    while True:
        away = False
        try:
            newest = _newest(github, within=_call_within(within - (clock() - began)))
            if newest is None:
                problem = (
                    "GitHub has sent no webhook: check on the App's page that the webhook is active and has the right "
                    "URL"
                )
            elif newest.accepted and (before is None or newest.id != before):
                return None
            else:
                problem = meaning(newest.status_code)
                if clock() - sent_at >= SEND_EVERY:
                    before, sent_at = newest.id, clock()
                    github.redeliver(delivery_id=newest.id, deadline_seconds=_call_within(within - (clock() - began)))
        except Forbidden as error:
            return (
                f"GitHub does not accept the App's id and key ({error}): check OSTLER_GITHUB_APP_ID and this machine's "
                "clock"
            )
        except UpstreamError as error:
            away, problem = isinstance(error, Retryable), _trouble(error)
        if problem != told:
            say(f"   waiting: {problem}")
            told = problem
        if clock() - began >= within:
            return _late(problem, within=within, away=away)
        sleep(max(0.0, min(CHECK_EVERY, within - (clock() - began))))


def _trouble(error: UpstreamError) -> str:
    """Return a description of a failed call to GitHub."""
    match error:
        case RateLimited():
            return f"GitHub asks to wait: {error}"
        case Retryable():
            return f"GitHub does not answer: {error}"
        case _:
            return f"GitHub refuses to redeliver the ping: {error}"


def _late(problem: str, *, within: float, away: bool) -> str:
    """Return the message for a test that exceeded its time. If `away` is true, raise `Retryable` with this message.

    `away` is true if GitHub does not answer.
    """
    cure = ". Check OSTLER_GITHUB_API_URL, and that this machine reaches GitHub" if away else ""
    told = f"no webhook arrived within {within:.0f} s: {problem}{cure}. Then run `ostler setup ping`."
    if away:
        raise Retryable(told)
    return told


def _call_within(left: float) -> float:
    return max(LAST_CALL, min(CALL, left))


def _newest(github: GitHub, *, within: float) -> DeliverySeen | None:
    """Return the latest delivery of the ping. If there is no ping, return the latest delivery of any event, or None."""
    listed = github.list_deliveries(policy=replace(ONCE, deadline=within)).deliveries
    return next((each for each in listed if each.event == "ping"), next(iter(listed), None))


def meaning(status: int) -> str:
    """Return the meaning of web's status for a webhook, with a cure. Status 0 means that GitHub got no answer."""
    match status:
        case 0:
            return "GitHub cannot reach the webhook URL: check its host, port and certificate, and that web runs"
        case 401:
            return "web answers 401: it runs with another webhook secret; restart it with OSTLER_WEBHOOK_SECRETS"
        case 404 | 405:
            return f"another server answers {status}, not Ostler's web: the URL must end in /webhooks/github"
        case 502 | 503 | 504:
            return f"the answer is {status}: web behind the proxy does not run yet, or is not ready (GET /readyz)"
        case _:
            return f"the answer is {status}: check the log of web"
