"""Changes from the dashboard: a page that asks for a confirmation, and the form that makes the change.

A change needs a token with the scopes `read` and `write` for all accounts, and the value of the hidden field `csrf`,
which is valid for one session only. Each change is recorded with the name of the token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs, quote

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from models.browse.accounts import account_story
from models.browse.jobs import job_name
from models.pools.pool_mirror import pool_ref
from models.routing.accounts import set_access
from models.routing.usage import pools_with_work
from models.sweeps import sweep_runs
from ostler.clock import utcnow
from ostler.task_names import REMATCH, SWEEPS
from rules.changes import Author, Via
from rules.routing.access import Access
from web.api.database import Database
from web.api.gate import read_body
from web.api.jobs import queue_again
from web.api.pools import ask_pause
from web.api.problems import Refusal
from web.process.publisher import Publisher
from web.ui.rendering import HOLDER, may_write, number, page
from web.ui.sessions import Sessions, is_from_own_page

LARGEST = 4096
LONGEST_WHY = 200


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a page offers: the kind of its object, and the texts of its confirmation."""

    kind: str
    title: str
    effect: str
    has_reason: bool = False


CHANGES: Mapping[str, Change] = {
    "requeue": Change(
        "job",
        "Queue the job again",
        "The hold and the backoff of a queued job are cleared. For a claimed job, the release of its claim begins; "
        "GitHub must first remove the runner. A job that runs is not touched.",
    ),
    "allow": Change("account", "Allow the account", "Its held jobs continue within its budget."),
    "hold": Change(
        "account", "Hold the account", "It gets no further Pods, and its queued jobs wait. Running jobs go on."
    ),
    "pause-pool": Change(
        "pool",
        "Pause the pool",
        "The reconciler creates no Pods and retires no Pods that work. Warm Pods still serve jobs.",
    ),
    "resume-pool": Change("pool", "Resume the pool", "The reconciler creates and retires Pods again."),
    "pause": Change(
        "sweep",
        "Pause the sweep",
        "A tick that runs stops before its next repair. Lost work is not repaired.",
        has_reason=True,
    ),
    "resume": Change("sweep", "Resume the sweep", "The sweep runs again at its usual interval."),
}


class Forms:
    """The confirmation of a change, and the change. Every request has a valid session."""

    def __init__(
        self, *, sessions: Sessions, database: Callable[[], Database], publisher: Callable[[], Publisher]
    ) -> None:
        self._sessions = sessions
        self._database = database
        self._publisher = publisher

    async def confirm(self, request: Request) -> Response:
        """Answer with the page that asks for the confirmation of a change."""
        _need_write(request)
        what, given = request.query_params.get("what", ""), request.query_params.get("object", "")
        change = _change(what)
        name = await self._database().run(lambda db: _named(db, change.kind, given))
        return page(
            request,
            "change.html",
            change=change,
            what=what,
            object=given,
            name=name,
            back=_page_of(change.kind, given),
            csrf=self._sessions.form_token(request),
        )

    async def make(self, request: Request) -> Response:
        """Make a change, and lead to the page of its object."""
        if not is_from_own_page(request):
            raise foreign()
        _need_write(request)
        form = await read_form(request)
        if not self._sessions.is_own_form(request, form.get("csrf", "")):
            raise foreign()
        what, given = form.get("what", ""), form.get("object", "")
        change = _change(what)
        by = Author(request.scope[HOLDER].name, Via.DASHBOARD, utcnow())
        if change.kind == "job":
            await queue_again(self._database(), self._publisher(), number(given), by=by)
        elif change.kind == "pool":
            paused = what == "pause-pool"
            await ask_pause(self._database(), self._publisher(), number(given), paused=paused, by=by)
        else:
            why = form.get("why", "").replace("\x00", "")[:LONGEST_WHY]
            pools = await self._database().run(lambda db: _make(db, what, given, by=by, why=why))
            self._publisher().wake(pools)
            if change.kind == "account":
                self._publisher().send(REMATCH)
        return RedirectResponse(_page_of(change.kind, given), HTTPStatus.SEE_OTHER)


def _make(db: Connection, what: str, given: str, *, by: Author, why: str) -> list[int]:
    """Change an account or a sweep. Return the pools whose matcher must be woken."""
    _named(db, CHANGES[what].kind, given)
    match what:
        case "pause":
            sweep_runs.pause(db, given, by=by, why=why)
        case "resume":
            sweep_runs.resume(db, given, by=by)
        case _:
            access = Access.ALLOWED if what == "allow" else Access.HELD
            set_access(db, number(given), access, by=by)
            return pools_with_work(db, [number(given)])
    return []


def _named(db: Connection, kind: str, given: str) -> str:
    """Return the name of an object. Raises Refusal (404) if it does not exist."""
    if kind == "sweep":
        found = given if given in SWEEPS else None
    elif kind == "account":
        story = account_story(db, number(given))
        found = None if story is None else story.account.login
    elif kind == "pool":
        pool = pool_ref(db, number(given))
        found = pool.name if pool is not None and pool.exists else None
    else:
        found = job_name(db, number(given))
    if found is None:
        raise _missing(kind)
    return found


def _page_of(kind: str, given: str) -> str:
    return "/ui/sweeps" if kind == "sweep" else f"/ui/{kind}s/{quote(given, safe='')}"


def _change(what: str) -> Change:
    found = CHANGES.get(what)
    if found is None:
        raise Refusal(
            HTTPStatus.NOT_FOUND, "not-found", "There is no such change", "Go back to the page of the object."
        )
    return found


def _missing(what: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, "not-found", f"There is no {what} at this address")


def _need_write(request: Request) -> None:
    if not may_write(request):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "insufficient-scope",
            "Your token cannot change anything",
            "Log in with a token that an operator created with `ostler token create NAME --scope read --scope write`.",
        )


def foreign() -> Refusal:
    """Return the refusal (403) of a form that another site or another session might have sent."""
    return Refusal(
        HTTPStatus.FORBIDDEN,
        "foreign-form",
        "The form was not sent by this site",
        "Open the dashboard by its own address, and send the form again.",
    )


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. A form with too many fields counts as empty. Raises Refusal as `read_body` does."""
    body = (await read_body(request, largest=LARGEST)).decode("utf-8", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(body, max_num_fields=8).items()}
    except ValueError:
        return {}
