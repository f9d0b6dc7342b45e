"""Permanent refusals of mints, with the messages of the real GitHub: by runner group, by repository, or for all.

A fault (`lab.github.faults`) matches the path of a call and ends after a number of calls. A refusal matches the body of
a mint and stays until it is replaced. A refused mint registers no runner. The presets carry the messages that users of
GitHub report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Refusal of the mints for a runner group and a repository. None means any group or any repository.

    `{group}` and `{login}` in the message are replaced by the group's number and the account's login.
    """

    status: int = HTTPStatus.FORBIDDEN
    message: str = "Forbidden"
    headers: Mapping[str, str] = field(default_factory=dict)
    group: int | None = None
    repository: str | None = None

    def strikes(self, *, scope: str, group: int) -> bool:
        """Return whether a mint for a runner group in a scope is refused."""
        named = None if self.repository is None else f"repos/{self.repository}".lower()
        return self.group in {None, group} and named in {None, scope.lower()}

    def words(self, *, login: str, group: int) -> str:
        """Return the message of the answer."""
        return self.message.replace("{login}", login).replace("{group}", str(group))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "ip-allow-list": {
        "message": "Although you appear to have the correct authorization credentials, the `{login}` organization has "
        "an IP allow list enabled, and your IP address is not permitted to access this resource."
    },
    "permission": {
        "message": "Resource not accessible by integration",
        "headers": {"x-accepted-github-permissions": "organization_self_hosted_runners=write"},
    },
    "group-full": {
        "status": HTTPStatus.UNPROCESSABLE_ENTITY,
        "message": "Runner group {group} has reached max limit of 10000 runners",
    },
    "blocked": {
        "status": HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS,
        "message": "Repository access blocked",
    },
    "no-words": {"message": ""},
}


def read(wanted: Mapping[str, Any]) -> Refusal:
    """Return a refusal from its JSON: the fields of `Refusal`, added to the preset that `because` names."""
    values = dict(wanted)
    because = values.pop("because", None)
    return Refusal(**{**(PRESETS[because] if because is not None else {}), **values})
