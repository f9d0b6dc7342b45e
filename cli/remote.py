"""Access of the commands to the REST API, for people without access to Postgres.

If `OSTLER_API_URL` is set, some commands ask the API with `OSTLER_API_TOKEN`. They print the same tables as with
Postgres, as far as the token allows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from cli.output import AWAY, MISTAKE, NOT_FOUND, fail, given_id
from ostler.errors import ConfigurationError, StoreUnreachable
from ostler.secrets import Secret
from ostler.settings import ApiAccess, read

if TYPE_CHECKING:
    from urllib3 import PoolManager

TIMEOUT = 20.0
PAGE = 200
"""Most rows that the API returns at once."""
MOST_BYTES = 64 * 1024 * 1024

_STATUS: Mapping[int, int] = {
    HTTPStatus.FORBIDDEN: MISTAKE,
    HTTPStatus.UNPROCESSABLE_ENTITY: MISTAKE,
    HTTPStatus.CONFLICT: NOT_FOUND,
}

_TIMES = frozenset({"at", "not_before"})


def chosen() -> Api | None:
    """Return the API if `OSTLER_API_URL` is set, or None. Raises `ConfigurationError` if the settings are wrong."""
    access = read(ApiAccess)
    if access.api_url is None or access.api_token is None:
        return None
    return Api(access.api_url, access.api_token)


class Api:
    """The REST API at one address, with one token."""

    def __init__(self, url: str, token: Secret) -> None:
        self._url = url
        self._token = token

    def items(self, path: str, *, limit: int, **filters: Any) -> tuple[list[dict[str, Any]], bool]:
        """Return at most `limit` rows of a list, and whether it has more. Filters with the value None are left out."""
        rows: list[dict[str, Any]] = []
        cursor = None
        while len(rows) < limit:
            given = {**filters, "limit": min(PAGE, limit - len(rows)), "cursor": cursor}
            page = self._ask(path, {name: value for name, value in given.items() if value is not None})
            rows += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return rows, cursor is not None

    def get(self, path: str, **query: str) -> dict[str, Any] | None:
        """Return one object, or None if the API does not know it."""
        found: dict[str, Any] | None = self._ask(path, query)
        return found

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Change one object, and return it. Return None if the API does not know it."""
        changed: dict[str, Any] | None = self._ask(path, {}, method="PUT", body=body)
        return changed

    def post(self, path: str) -> dict[str, Any] | None:
        """Ask for an act on one object, and return the answer. Return None if the API does not know the object."""
        answer: dict[str, Any] | None = self._ask(path, {}, method="POST")
        return answer

    def id_of(self, path: str, field: str, given: str | None, **filters: Any) -> int | None:
        """Return the id of the row of a list whose `field` has the value `given`, or None if `given` is None.

        `filters` are further filters of the list.
        A number is returned as the id without a check. Ends the command with a message if no row or several rows match.
        """
        if given is None or (number := given_id(given)) is not None:
            return None if given is None else number
        rows, _ = self.items(path, limit=2, **{field: given, **filters})
        what = path.removesuffix("s")
        if not rows:
            fail(f"there is no {what} {given!r}, or the token does not show it")
        if len(rows) > 1:
            fail(f"several {path} have the name {given!r}; give one of their ids")
        only: int = rows[0]["id"]
        return only

    @cached_property
    def _connections(self) -> PoolManager:
        """One pool of connections, so that the pages of a list share one handshake."""
        from github_adapters.calls.http import connections
        from ostler import egress

        return connections(egress.proxy_for(self._url, os.environ), os.environ)

    def _ask(
        self, path: str, query: Mapping[str, Any], *, method: str = "GET", body: dict[str, Any] | None = None
    ) -> Any:
        import urllib3

        from ostler.reasons import endpoint, reason_of

        try:
            answer = self._connections.request(
                method,
                f"{self._url}/api/v1/{path}?{urlencode({name: _plain(value) for name, value in query.items()})}",
                headers={"Authorization": f"Bearer {self._token.reveal()}", "Accept": "application/json"},
                timeout=TIMEOUT,
                json=body,
                retries=urllib3.Retry(2, redirect=0, raise_on_redirect=False, raise_on_status=False),
                preload_content=False,
            )
            content = answer.read(MOST_BYTES)
            answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise StoreUnreachable(
                f"the API at {endpoint(self._url)} does not answer: {reason_of(error)}. Check OSTLER_API_URL"
            ) from None
        return self._read(answer.status, content)

    def _read(self, status: int, body: bytes) -> Any:
        """Return the content of an answer, or None if the API does not know the object."""
        from ostler.reasons import endpoint

        try:
            content = _with_times(json.loads(body))
        except ValueError:
            content = None
        if status == HTTPStatus.OK and content is not None:
            return content
        problem = content if isinstance(content, dict) and content.get("type") else {}
        if status == HTTPStatus.NOT_FOUND and problem:
            return None
        if status == HTTPStatus.UNAUTHORIZED:
            raise ConfigurationError(
                f"OSTLER_API_TOKEN: the API at {endpoint(self._url)} refuses the token; create another with "
                "`ostler token create`"
            )
        if problem:
            fail(f"{problem.get('title')}: {problem.get('detail')}", status=_STATUS.get(status, AWAY))
        raise StoreUnreachable(
            f"the server at {endpoint(self._url)} answered {status}, not as the API of Ostler does. Check "
            "OSTLER_API_URL"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else value


def _with_times(value: Any) -> Any:
    """Return the content of an answer with its times as `datetime`. Their names end with `_at`, or are in `_TIMES`."""
    if isinstance(value, dict):
        return {
            name: datetime.fromisoformat(each)
            if isinstance(each, str) and (name in _TIMES or name.endswith("_at"))
            else _with_times(each)
            for name, each in value.items()
        }
    return [_with_times(each) for each in value] if isinstance(value, list) else value
