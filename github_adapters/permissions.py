"""Permissions and events of the GitHub App.

Setup requests these permissions and events, and doctor compares them with the App. The permissions follow from the
calls of `github_adapters.client`. A test compares them with these calls. Names and levels are those of the REST API
("Permissions required for GitHub Apps"; "Webhook events and payloads").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

READ, WRITE = "read", "write"
_LEVELS = {READ: 1, WRITE: 2, "admin": 3}

COMMON: Mapping[str, str] = {"actions": READ, "metadata": READ}
"""Permissions for jobs and runs. Every App reads metadata."""

ORGANIZATION: Mapping[str, str] = {**COMMON, "organization_self_hosted_runners": WRITE}
"""Permissions of an App that serves an organisation. They cover the runners and runner groups of the organisation."""

USER: Mapping[str, str] = {**COMMON, "administration": WRITE}
"""Permissions of an App that serves a user account. Runners are then registered in the repositories of the user."""

CHECKS: Mapping[str, str] = {"checks": WRITE}
"""Permission for check runs, which an App needs only if `OSTLER_CHECK_RUNS_AFTER` is above 0."""

EVENTS = ("workflow_job",)
"""Events that Ostler cannot work without.

GitHub sends `installation` and `ping` to every App. GitHub refuses a manifest that subscribes to these two events.
"""

WANTED_EVENTS = (*EVENTS, "repository")
"""Events that setup subscribes to. A manifest can only subscribe to events that its permissions allow.

The event `organization` would need a permission to read members. Ostler detects renamed owners without this event.
"""

ENDPOINTS: Mapping[str, str] = {
    "mint": "runners",
    "registration_token": "runners",
    "delete_runner": "runners",
    "list_runners": "runners",
    "list_runner_groups": "runners",
    "get_job": "actions",
    "get_run": "actions",
    "list_runs": "actions",
    "list_run_jobs": "actions",
    "create_check_run": "checks",
    "update_check_run": "checks",
    "installation_token": "app",
    "list_deliveries": "app",
    "redeliver": "app",
}
"""Permission that each kind of endpoint in `ostler.telemetry` needs.

- `runners`: the permission to administer self-hosted runners of the organisation, or `administration`.
- `actions`: the permission `actions`.
- `checks`: the permission `checks`.
- `app`: no permission, only the identity of the App.
"""


def wanted(*, organization: bool, check_runs: bool = False) -> Mapping[str, str]:
    """Return the permissions of the App of an organisation or a user account, with or without check runs."""
    return {**(ORGANIZATION if organization else USER), **(CHECKS if check_runs else {})}


def lacking(granted: Mapping[str, str], *, organization: bool, check_runs: bool = False) -> list[str]:
    """Return the permissions that the App lacks, as `name: level`.

    The App lacks a permission if it is not granted, or only at a lower level.
    """
    return [
        f"{name}: {level}"
        for name, level in wanted(organization=organization, check_runs=check_runs).items()
        if _LEVELS.get(granted.get(name, ""), 0) < _LEVELS[level]
    ]


def needless(granted: Mapping[str, str], *, organizations: Collection[bool], check_runs: bool = False) -> list[str]:
    """Return the granted permissions that Ostler does not use, as `name: level`.

    `organizations` has one entry for each kind of owner that the App serves: True for organisations, False for users.
    """
    known: dict[str, int] = {}
    for organization in organizations:
        for name, level in wanted(organization=organization, check_runs=check_runs).items():
            known[name] = max(known.get(name, 0), _LEVELS.get(level, 0))
    return [f"{name}: {level}" for name, level in sorted(granted.items()) if _LEVELS.get(level, 3) > known.get(name, 0)]


def silent(subscribed: Collection[str]) -> list[str]:
    """Return the events of `EVENTS` that the App does not subscribe to."""
    return [event for event in EVENTS if event not in subscribed]
