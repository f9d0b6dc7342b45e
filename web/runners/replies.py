"""Replies to the runners' polls: the JIT of a delivered claim, or a status without a body.

The reason of a refusal is only written to Ostler's log.
"""

from __future__ import annotations

from hashlib import sha256

from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, PlainTextResponse, Response

from models.claims.deliver import Delivery
from ostler.secrets import Secret

RETRY_AFTER = 1
"""Seconds in the `Retry-After` header. The poller adds a random time."""


class Refusal(Exception):
    """An exception that ends a poll with a status. `why` is the reason, which is only written to the log."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def bare(status: int, *, retry_after: int = RETRY_AFTER) -> Response:
    """Return a reply without a body.

    `retry_after` is the number of seconds in the `Retry-After` header of 204, 429 and 503. Other replies have no such
    header.
    """
    headers = {"Retry-After": str(retry_after)} if status in {204, 429, 503} else None
    return Response(status_code=status, headers=headers)


def work(delivery: Delivery, jit: Secret, *, accept: str, after: BackgroundTask | None) -> Response:
    """Return the answer 200, with a JIT as JSON.

    If the client accepts plain text, the body is only the JIT, and a header has the digest of the JIT. With the digest,
    the poller detects an answer that is cut off.
    """
    headers = {
        "X-Ostler-Claim": str(delivery.claim_id),
        "X-Ostler-Runner": delivery.runner_name,
        "Cache-Control": "no-store",
    }
    if "text/plain" in accept:
        digest = sha256(jit.reveal().encode()).hexdigest()
        return PlainTextResponse(jit.reveal(), headers={**headers, "X-Ostler-Sha256": digest}, background=after)
    owner = "" if delivery.account_id is None else str(delivery.account_id)
    return JSONResponse(
        {
            "jit_config": jit.reveal(),
            "runner_name": delivery.runner_name,
            "claim_id": delivery.claim_id,
            "owner": owner,
        },
        headers=headers,
        background=after,
    )
