"""Calls to GitHub's REST API in the name of the App or of one of its installations.

A call is tried once, with two exceptions. After a 401, the installation token is renewed and the call is tried once
more. If GitHub redirects the call to the new path of a renamed repository, the call is repeated there. The modules of
`endpoints` decide what to call, how to parse the answer, and whether `retry` may repeat the call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import TypeVar

from github_adapters import fields
from github_adapters.calls.answers import refusal
from github_adapters.calls.auth import AppAuth
from github_adapters.calls.governor import APP, CallClass, Governs
from github_adapters.calls.http import API_VERSION, Answer, Deadline, Http
from github_adapters.calls.retry import retry
from ostler.clock import Timing
from ostler.errors import Retryable
from rules.upstream.retry import RetryPolicy

T = TypeVar("T")


class Session:
    """The connections, tokens and governor that all calls of one App share. Threads may share it."""

    def __init__(
        self, *, http: Http, auth: AppAuth, governor: Governs, clock: Callable[[], datetime], timing: Timing
    ) -> None:
        self._http = http
        self._auth = auth
        self._governor = governor
        self._clock = clock
        self._timing = timing

    def now(self) -> datetime:
        """Return the time of this machine. Callers compare this time with GitHub's time."""
        return self._clock()

    def call(
        self,
        *,
        installation_id: int,
        call_class: CallClass,
        method: str,
        path: str,
        deadline: Deadline,
        body: bytes | None = None,
        etag: str | None = None,
        api_version: str = API_VERSION,
    ) -> Answer:
        """Return the answer to a call in the name of an installation.

        If GitHub refuses the token, the token is renewed and the call is repeated once. If the repository was renamed,
        the call is repeated once with the id of the repository.
        """
        followed = False
        for attempt in (1, 2, 3):
            token = self._auth.installation_token(installation_id=installation_id, deadline=deadline)
            with self._governor.call(installation_id, call_class) as ticket:
                answer = ticket.answer = self._http.request(
                    method=method,
                    path=path,
                    authorization=f"Bearer {token.secret.reveal()}",
                    body=body,
                    deadline=deadline,
                    etag=etag,
                    api_version=api_version,
                )
            moved = None if followed else self._http.moved_repository(answer)
            if moved is not None:
                path, followed = moved, True
            elif answer.status == HTTPStatus.UNAUTHORIZED and attempt == 1:
                self._auth.drop(installation_id=installation_id, token=token)
            else:
                break
        return answer

    def call_as_app(self, *, call_class: CallClass, method: str, path: str, deadline: Deadline) -> Answer:
        """Return the answer to a call in the name of the App itself."""
        with self._governor.call(APP, call_class) as ticket:
            ticket.answer = answer = self._http.request(
                method=method, path=path, authorization=f"Bearer {self._auth.app_token().reveal()}", deadline=deadline
            )
        return answer

    def call_as_nobody(self, *, path: str, deadline: Deadline) -> Answer:
        """Return the answer to a GET without a credential. The call counts in no quota of the App."""
        return self._http.request(method="GET", path=path, authorization=None, deadline=deadline)

    def expect(self, answer: Answer, *statuses: HTTPStatus, what: str) -> None:
        """Check the status of an answer. `what` names the call, such as `mint`.

        If the status is not in `statuses`, raises the error that `refusal` returns for the answer.
        """
        if answer.status not in statuses:
            raise refusal(answer, what=what, now=self._clock())

    def read(
        self, answer: Answer, reader: Callable[[Answer], T], *, what: str, status: HTTPStatus = HTTPStatus.OK
    ) -> T:
        """Return the result of `reader` for an answer that has the status `status`.

        For any other status, raises the error that `refusal` returns for the answer. Raises `Retryable` if the answer
        cannot be parsed, because the answer might be incomplete.
        """
        self.expect(answer, status, what=what)
        try:
            return reader(answer)
        except fields.Malformed as error:
            raise Retryable(
                f"GitHub's answer to {what} does not have the expected form: {error}", status=answer.status
            ) from None

    def retry(self, once: Callable[[], T], *, policy: RetryPolicy, deadline: Deadline) -> T:
        """Call `once`, and repeat it as `policy` allows until `deadline`. Return the result of `once`.

        Raises the error of the last attempt if no attempt succeeded.
        """
        return retry(once, policy=policy, deadline=deadline, timing=self._timing)


def deadline_of(seconds: float | None, policy: RetryPolicy) -> Deadline:
    """Return the deadline of a call and its retries.

    It is the earlier of two deadlines: `seconds` from now, and the deadline of `policy`.
    """
    return Deadline(min((each for each in (seconds, policy.deadline) if each is not None), default=None))
