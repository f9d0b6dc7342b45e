"""Permissions and events of the GitHub App: the one list that setup asks for and doctor compares.

It follows from the calls of `github_adapters.client`; a test holds the two together. Names and levels are those of the
REST API ("Permissions required for GitHub Apps"; "Webhook events and payloads").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

READ, WRITE = "read", "write"
_LEVELS = {READ: 1, WRITE: 2, "admin": 3}

COMMON: Mapping[str, str] = {"actions": READ, "metadata": READ}
"""Jobs and runs; every App reads metadata."""

ORGANIZATION: Mapping[str, str] = {**COMMON, "organization_self_hosted_runners": WRITE}
"""Of an App of an organisation: runners and runner groups."""

USER: Mapping[str, str] = {**COMMON, "administration": WRITE}
"""Of an App of a user account, whose runners are registered in its repositories."""

EVENTS = ("workflow_job",)
"""Without these nothing comes in. `installation` and `ping` come without a subscription, and a manifest that names them
is refused."""

WANTED_EVENTS = (*EVENTS, "repository")
"""What setup subscribes to: a manifest may only name events that its permissions cover. Renamings of owners are found
without `organization`, which would need a permission to read members."""

ENDPOINTS: Mapping[str, str] = {
    "mint": "runners",
    "delete_runner": "runners",
    "list_runners": "runners",
    "list_runner_groups": "runners",
    "get_job": "actions",
    "get_run": "actions",
    "list_runs": "actions",
    "list_run_jobs": "actions",
    "installation_token": "app",
    "list_deliveries": "app",
    "redeliver": "app",
}
"""Which permission each endpoint of `ostler.telemetry` needs: to runners (of the organisation, or administration), to
actions, or only to be the App."""


def wanted(*, organization: bool) -> Mapping[str, str]:
    """Return the permissions of the App of an organisation or a user account."""
    return ORGANIZATION if organization else USER


def lacking(granted: Mapping[str, str], *, organization: bool) -> list[str]:
    """Return the permissions that are not granted, or not to that level, as `name: level`."""
    return [
        f"{name}: {level}"
        for name, level in wanted(organization=organization).items()
        if _LEVELS.get(granted.get(name, ""), 0) < _LEVELS[level]
    ]


def needless(granted: Mapping[str, str], *, organizations: Collection[bool]) -> list[str]:
    """Return the permissions that are granted beyond what is used, as `name: level`.

    `organizations`: for each kind of owner that the App serves, whether it is an organisation.
    """
    known: dict[str, int] = {}
    for organization in organizations:
        for name, level in wanted(organization=organization).items():
            known[name] = max(known.get(name, 0), _LEVELS.get(level, 0))
    return [f"{name}: {level}" for name, level in sorted(granted.items()) if _LEVELS.get(level, 3) > known.get(name, 0)]


def silent(subscribed: Collection[str]) -> list[str]:
    """Return the events that are needed and not subscribed to."""
    return [event for event in EVENTS if event not in subscribed]
