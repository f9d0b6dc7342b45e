"""`ostler.ask_owner()`: asks GitHub who owns the App, and allows that account.

Unless OSTLER_NEW_ACCOUNTS is `serve`, the jobs of a new account are held until an operator allows the account. This
task allows the owner of the App without an operator. Celery repeats a failed request. If it still fails, or if the
message is lost, the sweep `rematch` sends this task again.
"""

from __future__ import annotations

import structlog

from models.routing import accounts
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from ostler.task_names import ASK_OWNER, REMATCH
from tasks.worker.base import QUESTION, Again, task, wait_for_retry
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

AT_ONCE = 1000
"""Upper bound on accounts that one run compares with the owner. The next run compares the remaining accounts."""


@task(ASK_OWNER, policy=QUESTION)
def ask_owner() -> None:
    """Ask GitHub who owns the App, if any held account was not compared with the owner yet.

    One request to GitHub serves all these accounts. A failed request changes nothing (law L8), and is repeated.
    """
    rt = runtime()
    with rt.waker.single_flight("ask_owner") as alone:  # each batch of webhooks might send this task
        if alone:
            ask(rt)


def ask(rt: Runtime) -> None:
    """Ask GitHub for the owner of the App and record the answer."""
    held = rt.transaction(accounts.unasked_accounts, limit=AT_ONCE)
    if not held:
        return
    try:
        owner = rt.github.get_app(deadline_seconds=QUESTION.call_seconds).owner_id
    except UpstreamError as error:
        log.warning("app_owner.not_read", error=meaning_of(error))
        if (soon := wait_for_retry(error)) is None:
            return
        raise Again(error, after=soon) from error
    if owner is None:
        log.warning("app_owner.not_read", error="GitHub does not name the owner of the App")
        return
    if rt.transaction(accounts.record_owner, held, owner_id=owner, now=NOW):
        log.info("account.allowed", account=owner, why="the account owns the App")
        rt.waker.send(REMATCH)
