"""The call "Get runner version deprecation info" of GitHub's page on self-hosted runners."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from urllib.parse import quote

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session
from rules.routing.scopes import Scope

DEPRECATIONS = "2026-03-10"
"""The version of GitHub's API that shows the end date of a runner version."""


class RunnerVersions:
    """The versions of the runner application that GitHub allows to register."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def runner_ends(
        self, *, installation_id: int, login: str, version: str, deadline_seconds: float | None = None
    ) -> datetime | None:
        """Return the time until which runners of a version may register.

        Return None if the answer has no such time, or if GitHub answers 400, 404 or 410, because it does not know this
        call or this version.

        GitHub documents this call in "Get runner version deprecation info" (API version 2026-03-10).
        """
        answer = self._session.call(
            installation_id=installation_id,
            call_class=CallClass.READ,
            method="GET",
            path=f"{Scope.organization(login).path}/actions/runners/deprecations/{quote(version, safe='')}",
            deadline=Deadline(deadline_seconds),
            api_version=DEPRECATIONS,
        )
        if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST, HTTPStatus.GONE}:
            return None
        return self._session.read(answer, _registration_ends, what="look-up of a runner version")


def _registration_ends(answer: Answer) -> datetime | None:
    return fields.optional_moment(fields.decode(answer.body), "registration_deprecates_at")
