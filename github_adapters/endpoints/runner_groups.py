"""Calls of GitHub's page "REST API endpoints for self-hosted runner groups"."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer
from github_adapters.calls.session import Session, deadline_of
from github_adapters.endpoints.pages import PAGE
from ostler.errors import Retryable
from rules.routing.runner_groups import GroupSeen
from rules.routing.scopes import Scope
from rules.upstream.retry import ONCE, RetryPolicy

MOST_GROUP_PAGES = 10


class RunnerGroups:
    """The runner groups of an organisation."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list_runner_groups(
        self,
        *,
        installation_id: int,
        login: str,
        visible_to: str | None = None,
        deadline_seconds: float | None = None,
        policy: RetryPolicy = ONCE,
    ) -> list[GroupSeen]:
        """Return all runner groups of an organisation.

        `visible_to` is the name of a repository. If it is given, only the groups that this repository may use are
        returned. Raises `Retryable` if GitHub lists fewer groups than its total count.
        """
        deadline = deadline_of(deadline_seconds, policy)
        only_for = "" if visible_to is None else f"&visible_to_repository={quote(visible_to, safe='')}"

        def once(page: int) -> tuple[list[GroupSeen], int]:
            answer = self._session.call(
                installation_id=installation_id,
                call_class=CallClass.READ,
                method="GET",
                deadline=deadline,
                path=f"{Scope.organization(login).path}/actions/runner-groups?per_page={PAGE}&page={page}{only_for}",
            )
            return self._session.read(answer, _groups, what="list of runner groups")

        seen: dict[int, GroupSeen] = {}
        for page in range(1, MOST_GROUP_PAGES + 1):
            groups, total = self._session.retry(partial(once, page), policy=policy, deadline=deadline)
            seen.update((group.id, group) for group in groups)
            if len(groups) < PAGE:
                break
        if len(seen) < total:
            raise Retryable(
                f"GitHub listed {len(seen)} of the {total} runner groups of {login}: the list changed while it was "
                f"read, or has more than {MOST_GROUP_PAGES * PAGE} groups; Ostler tries again later"
            )
        return list(seen.values())


def _groups(answer: Answer) -> tuple[list[GroupSeen], int]:
    content = fields.decode(answer.body)
    total, listed = content.get("total_count"), content.get("runner_groups")
    if not isinstance(total, int) or not isinstance(listed, list):
        raise fields.Malformed("total_count is not a number, or runner_groups is not a list")
    return [read_group(each) for each in listed], int(total)


def read_group(source: Any) -> GroupSeen:
    """Return a runner group of an organisation. Raises `Malformed` if its JSON does not have the expected form."""
    if not isinstance(source, dict):
        raise fields.Malformed("a runner group is not an object")
    name = fields.optional_text(source, "name")
    if name is None:
        raise fields.Malformed("name is missing")
    return GroupSeen(
        id=fields.number(source, "id"),
        name=name,
        visibility=fields.word(source, "visibility"),
        # An Enterprise Server without this setting allows no public repository in a group.
        public=source.get("allows_public_repositories") is True,
    )
