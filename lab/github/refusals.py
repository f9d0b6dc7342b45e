"""Permanent refusals of mints, with GitHub's real messages: by runner group, by repository, or of all mints.

A fault (`lab.github.faults`) affects a path a limited number of times. A refusal reads the body of the mint, stays
until it is replaced, and registers nothing. The presets have the messages that users of GitHub report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Refusal of the mints for this runner group and this repository. None means any.

    `{group}` and `{login}` in the message are replaced by the group's id and the account's login.
    """

    status: int = HTTPStatus.FORBIDDEN
    message: str = "Forbidden"
    headers: Mapping[str, str] = field(default_factory=dict)
    group: int | None = None
    repository: str | None = None

    def strikes(self, *, scope: str, group: int) -> bool:
        """Return whether a mint in a scope for a runner group is refused."""
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
    """Parse a refusal from its JSON. Its fields override the preset that `because` names."""
    values = dict(wanted)
    because = values.pop("because", None)
    return Refusal(**{**(PRESETS[because] if because is not None else {}), **values})
