"""Reading workflow runs and their jobs (GitHub docs: "REST API endpoints for workflow runs", "… for workflow jobs").

A job that a list shows is read as the event that its webhook would have been, so that it can go the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from github_adapters import fields
from github_adapters.answers import quota_of
from github_adapters.http import Answer
from github_adapters.webhooks import Home, WorkflowJobEvent, read_home, read_job
from rules.routing.forks import Origin, origin_of

T = TypeVar("T")

LONGEST_ETAG = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A workflow run; `status`, `conclusion` and `event` are GitHub's words, `attempt` counts its re-runs from 1.

    `head_repository_id`: where its head is, None where GitHub shows none; `pull_request_heads`: the same of each open
    pull request that it lists.
    """

    id: int
    attempt: int
    status: str
    conclusion: str | None
    created_at: datetime
    home: Home
    event: str = ""
    head_repository_id: int | None = None
    pull_request_heads: tuple[int | None, ...] = ()

    @property
    def origin(self) -> Origin:
        """Return whether it comes from a fork."""
        return origin_of(
            event=self.event,
            repository_id=self.home.repository_id,
            head_repository_id=self.head_repository_id,
            pull_request_heads=self.pull_request_heads,
        )

    @property
    def over(self) -> bool:
        """Return whether nothing of this attempt will run any more."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[T]):
    """One page of a list; or `unchanged`: it is what it was under the etag that was sent, and cost no quota.

    `total`: how many GitHub counts on all pages. `malformed`: entries that made no sense and were left out. `quota`:
    calls an hour that the installation has, if the answer said so. `cost`: calls of it that the page used up; each
    redirect that was followed is one more.
    """

    items: tuple[T, ...] = ()
    total: int = 0
    malformed: int = 0
    etag: str | None = None
    unchanged: bool = False
    quota: int | None = None
    cost: int = 1


def read_run(source: Any) -> RunSeen:
    """Return a run. Raises `Malformed`."""
    if not isinstance(source, dict):
        raise fields.Malformed("run")
    attempt = source.get("run_attempt")
    return RunSeen(
        id=fields.number(source, "id"),
        attempt=1 if attempt is None else fields.number(source, "run_attempt", most=fields.INTEGER_MAX),
        status=fields.word(source, "status"),
        conclusion=fields.optional_word(source, "conclusion"),
        created_at=fields.moment(source, "created_at"),
        home=read_home(fields.section(source, "repository")),
        event=fields.optional_text(source, "event") or "",
        head_repository_id=_id_of(source.get("head_repository")),
        pull_request_heads=_pull_request_heads(source.get("pull_requests")),
    )


def _pull_request_heads(listed: Any) -> tuple[int | None, ...]:
    """Return the repositories of the heads of the pull requests that a run lists."""
    if not isinstance(listed, list):
        return ()
    heads = (each.get("head") if isinstance(each, dict) else None for each in listed)
    return tuple(_id_of(head.get("repo")) if isinstance(head, dict) else None for head in heads)


def _id_of(repository: Any) -> int | None:
    """Return the id of a repository; None of one that is not shown, or makes no sense."""
    found = repository.get("id") if isinstance(repository, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def read_listed_job(source: Any, *, run: RunSeen, installation_id: int) -> WorkflowJobEvent:
    """Return what a webhook would say of a job as it is now; its action is its status. Raises `Malformed`."""
    if not isinstance(source, dict) or fields.number(source, "run_id") != run.id:
        raise fields.Malformed("job")
    return read_job(source, action=fields.word(source, "status"), home=run.home, installation_id=installation_id)


def read_list(answer: Answer, *, key: str, read: Callable[[Any], T]) -> ListPage[T]:
    """Return a page of the list under `key`; an entry that makes no sense is left out and counted (law L14).

    Raises `Malformed` when it is no such page, or none of it makes sense.
    """
    content = fields.decode(answer.body)
    total, entries = content.get("total_count"), content.get(key)
    if not isinstance(total, int) or isinstance(total, bool) or not isinstance(entries, list):
        raise fields.Malformed(key)
    items = []
    for entry in entries:
        try:
            items.append(read(entry))
        except fields.Malformed:
            continue
    if entries and not items:
        raise fields.Malformed(key)
    return ListPage(
        items=tuple(items),
        total=total,
        malformed=len(entries) - len(items),
        etag=_etag(answer),
        quota=_quota(answer),
        cost=1 + answer.redirects,
    )


def only(item: T | None, answer: Answer) -> ListPage[T]:
    """Return the page that stands for what is not a list: one item, or none."""
    items = () if item is None else (item,)
    return ListPage(items=items, total=len(items), quota=_quota(answer), cost=1 + answer.redirects)


def unchanged(answer: Answer) -> ListPage[Any]:
    """Return the page that stands for an answer 304."""
    return ListPage(unchanged=True, quota=_quota(answer), cost=answer.redirects)


def _etag(answer: Answer) -> str | None:
    found = answer.headers.get("etag")
    return found if found and len(found) <= LONGEST_ETAG and found.isprintable() and found.isascii() else None


def _quota(answer: Answer) -> int | None:
    found = quota_of(answer)
    return None if found is None else found.limit
