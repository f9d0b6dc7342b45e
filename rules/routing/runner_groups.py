"""Runner group of a job's runner, and whether GitHub would assign the job to a runner in this group.

A pool names its group by number or by name. Numbers differ between organisations, but 1 is always the default group.
GitHub registers a runner without an error even in a group that does not admit the job's repository. GitHub then never
gives the job to the runner. Ostler therefore checks the group before it creates a runner (GitHub docs, "REST API
endpoints for self-hosted runner groups"; "Managing access to self-hosted runners using groups").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

DEFAULT = 1
DEFAULT_NAME = "default"

_KEPT = "what the runners of the pool keep for later jobs"


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group as GitHub lists it.

    `visibility` is `all`, `private` or `selected`. `public` is true if the group admits public repositories.
    """

    id: int
    name: str
    visibility: str
    public: bool


class Ask(StrEnum):
    """Question to GitHub before a verdict.

    - `groups`: list all groups of the organisation.
    - `visible`: list the groups that the repository may use.
    """

    GROUPS = "groups"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The group's number, the question to ask GitHub first, or the reason for a refusal.

    Exactly one of `group_id`, `ask` and `refusal` is set. `everywhere` is true if the refusal applies to every
    repository of the owner. `exposes` is true if the refusal shows that a job of a fork could reach the runner.
    """

    group_id: int | None = None
    ask: Ask | None = None
    refusal: str | None = None
    everywhere: bool = False
    exposes: bool = False


def judge_group(
    wanted: int | str,
    *,
    owner: str,
    organization: bool,
    repository: str,
    public: bool,
    private_only: bool,
    groups: Sequence[GroupSeen] | None = None,
    visible: Collection[int] | None = None,
) -> GroupVerdict:
    """Return whether a job of this repository may use `wanted`, the runner group of its pool.

    `private_only`: True if the group must not admit public repositories (`rules.routing.forks.private_only`).

    `groups` has all groups of the organisation, or is None if GitHub was not asked for them. `visible` has the numbers
    of the groups that the repository may use, or is None if GitHub was not asked for them. Nearly all jobs belong to a
    private repository, and their pools name the default group by its number. Such a job needs no question, because
    GitHub would almost always confirm the group.
    """
    if private_only and public:
        return GroupVerdict(refusal=f"{repository} is public, so a job of a fork could reach {_KEPT}", exposes=True)
    if not organization:
        if wanted == DEFAULT or (isinstance(wanted, str) and wanted.lower() == DEFAULT_NAME):
            return GroupVerdict(group_id=DEFAULT)
        told = f"{_tell(wanted)} cannot be used by {repository}: {owner} is a user account, which has no runner groups"
        return GroupVerdict(refusal=told)
    if wanted == DEFAULT and not public and not private_only:
        return GroupVerdict(group_id=DEFAULT)
    if groups is None:
        return GroupVerdict(ask=Ask.GROUPS)
    group = _find(wanted, groups)
    if group is None:
        return GroupVerdict(refusal=f"{_tell(wanted)} does not exist in organisation {owner}", everywhere=True)
    name = f"{_tell(wanted)} of {owner}"
    admits_public = group.public and group.visibility != "private"
    if private_only and admits_public:
        told = f"{name} admits public repositories, so a job of a fork could reach {_KEPT}"
        return GroupVerdict(refusal=told, everywhere=True, exposes=True)
    if public and not admits_public:
        return GroupVerdict(refusal=f"{name} does not admit public repositories, and {repository} is public")
    if group.visibility in {"all", "private"}:
        return GroupVerdict(group_id=group.id)
    if visible is None:
        return GroupVerdict(ask=Ask.VISIBLE)
    if group.id not in visible:
        return GroupVerdict(refusal=f"{name} does not admit repository {repository}")
    return GroupVerdict(group_id=group.id)


def _find(wanted: int | str, groups: Sequence[GroupSeen]) -> GroupSeen | None:
    if isinstance(wanted, int):
        return next((group for group in groups if group.id == wanted), None)
    exact = next((group for group in groups if group.name == wanted), None)
    similar = [group for group in groups if group.name.lower() == wanted.lower()]
    return exact or (similar[0] if len(similar) == 1 else None)


def _tell(wanted: int | str) -> str:
    return f"runner group {wanted}" if isinstance(wanted, int) else f"runner group {wanted!r}"
