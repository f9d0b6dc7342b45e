"""Calls of GitHub's page "REST API endpoints for check runs".

A check run of Ostler is always completed and neutral: it informs about a job, and must not block a pull request.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session
from github_adapters.endpoints.pages import home_of
from ostler.server_words import without_controls

LONGEST_NAME = 100
LONGEST_TITLE = 250
LONGEST_TEXT = 5000

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&])")


class CheckRuns:
    """The check runs of the commits of a repository."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def tell(
        self,
        *,
        installation_id: int,
        repository: str,
        commit: str,
        check_id: int | None,
        name: str,
        title: str,
        text: str,
    ) -> int:
        """Create a check run, or change the check run with this id, and return its id.

        `name`, `title` and `text` are shown as plain text. They are cut if they are too long. The call is made once.
        When the quota runs low, it is among the first to be refused. Raises `Forbidden` if the App lacks the permission
        `checks`.
        """
        content = {
            "name": plain(f"Ostler: {name}", LONGEST_NAME),
            "status": "completed",
            "conclusion": "neutral",
            "output": {"title": plain(title, LONGEST_TITLE), "summary": escaped(plain(text, LONGEST_TEXT))},
        }
        new = check_id is None
        answer = self._session.call(
            installation_id=installation_id,
            call_class=CallClass.CATCH_UP,
            method="POST" if new else "PATCH",
            path=f"{home_of(repository)}/check-runs" + ("" if new else f"/{check_id}"),
            deadline=Deadline(None),
            body=json.dumps(content | ({"head_sha": commit} if new else {})).encode(),
        )
        status = HTTPStatus.CREATED if new else HTTPStatus.OK
        return self._session.read(answer, _id, what="check run", status=status)


def plain(given: str, longest: int) -> str:
    """Return the beginning of a text in one line, without characters that control layout or direction."""
    return " ".join(without_controls(given).split())[:longest]


def escaped(given: str) -> str:
    """Return a text so that Markdown shows it as it is, without links, images, HTML and mentions."""
    return _MARKDOWN.sub(r"\\\1", given).replace("@", "@\u2060")


def _id(answer: Answer) -> int:
    return fields.number(fields.decode(answer.body), "id")
