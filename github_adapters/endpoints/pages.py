"""Pages of GitHub's lists. Each page has its etag and the number of calls that it cost.

A single item has the same form: it is a page with one item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from github_adapters import fields
from github_adapters.calls.answers import quota_of
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session
from rules.routing.scopes import Scope
from rules.upstream.retry import RetryPolicy

T = TypeVar("T")

PAGE = 100
LONGEST_ETAG = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[T]):
    """One page of a list.

    - `total`: GitHub's count of items on all pages.
    - `malformed`: number of entries that could not be parsed and were left out.
    - `unchanged`: the page on GitHub still has the given etag. `items` is then empty, and only redirects used quota.
    - `quota`: number of calls that the installation may make per hour, or None if the answer did not show it.
    - `cost`: number of calls that count in the quota. Each redirect that was followed is one more call.
    """

    items: tuple[T, ...] = ()
    total: int = 0
    malformed: int = 0
    etag: str | None = None
    unchanged: bool = False
    quota: int | None = None
    cost: int = 1


def list_page(
    session: Session,
    *,
    installation_id: int,
    path: str,
    etag: str | None,
    policy: RetryPolicy,
    what: str,
    key: str,
    read: Callable[[Any], T],
) -> ListPage[T]:
    """Return one page of a list. The list is under `key` in the answer of `path`.

    When the quota runs low, these calls are refused first.
    """
    deadline = Deadline(policy.deadline)

    def once() -> ListPage[T]:
        answer = session.call(
            installation_id=installation_id,
            call_class=CallClass.CATCH_UP,
            method="GET",
            path=path,
            deadline=deadline,
            etag=etag,
        )
        if answer.status == HTTPStatus.NOT_MODIFIED and etag is not None:
            return unchanged(answer)
        return session.read(answer, partial(read_list, key=key, read=read), what=what)

    return session.retry(once, policy=policy, deadline=deadline)


def look_up(
    session: Session,
    *,
    installation_id: int,
    path: str,
    policy: RetryPolicy,
    call_class: CallClass,
    what: str,
    read: Callable[[Mapping[str, Any]], T],
) -> ListPage[T]:
    """Return the item at `path` as a page with one item.

    The page is empty if GitHub does not know the item.
    """
    deadline = Deadline(policy.deadline)

    def once() -> ListPage[T]:
        answer = session.call(
            installation_id=installation_id, call_class=call_class, method="GET", path=path, deadline=deadline
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            return only(None, answer)
        return session.read(answer, lambda answer: only(read(fields.decode(answer.body)), answer), what=what)

    return session.retry(once, policy=policy, deadline=deadline)


def home_of(repository: str | int) -> str:
    """Return the prefix of the API paths of a repository. `repository` is its `owner/name` or its id.

    After a rename, GitHub redirects to the paths with the id.
    """
    return f"/repositories/{repository}" if isinstance(repository, int) else Scope.repository(repository).path


def read_list(answer: Answer, *, key: str, read: Callable[[Any], T]) -> ListPage[T]:
    """Return a page from an answer with a list under `key`.

    An entry that cannot be parsed is left out and counted (law L14). Raises `Malformed` if the answer has no list under
    `key`, or if no entry can be parsed.
    """
    content = fields.decode(answer.body)
    total, entries = content.get("total_count"), content.get(key)
    if not isinstance(total, int) or isinstance(total, bool) or not isinstance(entries, list):
        raise fields.Malformed(f"total_count is not a number, or {key} is not a list")
    items = []
    for entry in entries:
        try:
            items.append(read(entry))
        except fields.Malformed:
            continue
    if entries and not items:
        raise fields.Malformed(f"no item of {key} can be parsed")
    return ListPage(
        items=tuple(items),
        total=total,
        malformed=len(entries) - len(items),
        etag=_etag(answer),
        quota=_quota(answer),
        cost=1 + answer.redirects,
    )


def only(item: T | None, answer: Answer) -> ListPage[T]:
    """Return a page for an answer that is a single item, not a list.

    The page has `item` as its only item. If `item` is None, the page is empty.
    """
    items = () if item is None else (item,)
    return ListPage(items=items, total=len(items), quota=_quota(answer), cost=1 + answer.redirects)


def unchanged(answer: Answer) -> ListPage[Any]:
    """Return the page for a 304 answer."""
    return ListPage(unchanged=True, quota=_quota(answer), cost=answer.redirects)


def _etag(answer: Answer) -> str | None:
    found = answer.headers.get("etag")
    return found if found and len(found) <= LONGEST_ETAG and found.isprintable() and found.isascii() else None


def _quota(answer: Answer) -> int | None:
    found = quota_of(answer)
    return None if found is None else found.limit
