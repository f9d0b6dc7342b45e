"""Events of GitHub's webhooks, in the form that all packages use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowJobEvent:
    """One `workflow_job` webhook. Every value fits into the tables. Times are in UTC.

    `action`, `status` and `conclusion` are GitHub's words. GitHub might introduce new words.
    """

    action: str
    job_id: int
    run_id: int
    run_attempt: int
    name: str
    workflow_name: str | None
    status: str
    conclusion: str | None
    labels: tuple[str, ...]
    runner_name: str | None
    runner_id: int | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    head_branch: str | None
    repository: str
    repository_id: int
    owner_id: int
    owner_login: str
    owner_type: Literal["Organization", "User"]
    installation_id: int | None
    public: bool = False
    head_sha: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationEvent:
    """One `installation` webhook, for example: an owner installed, removed, suspended or unsuspended the App.

    `at` is the time of this change by GitHub's clock, or None if the webhook does not contain the time.
    """

    action: str
    installation_id: int
    owner_id: int
    owner_login: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRenamed:
    """An organisation or user has a new login.

    The webhook is `organization` or `installation_target` with the action `renamed`.
    """

    action: str
    owner_id: int
    former: str
    login: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryRenamed:
    """A repository has a new name (webhook `repository`, action `renamed`). `full_name` is the new `owner/name`.

    `at` is the time of this change by GitHub's clock, or None if the webhook does not contain the time.
    """

    action: str
    owner_id: int
    repository_id: int
    former: str
    full_name: str
    at: datetime | None
