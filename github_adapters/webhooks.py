"""Webhooks from GitHub: verify the signature and parse the payload.

This code uses plain `json` and explicit checks, because it runs for every delivery. It must detect every payload that
Postgres could not store, and raise `MalformedPayload` (law L14). It accepts the unusual values of GitHub's own samples
(octokit/webhooks): `queued` with status `waiting`, runner fields that are 0, "" or null, times with or without
milliseconds.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from github_adapters import fields
from ostler.errors import Invalid
from ostler.secrets import Secret
from rules.intake.events import InstallationEvent, OwnerRenamed, RepositoryRenamed, WorkflowJobEvent

SCHEME = b"sha256="

LAST_SECOND = 253_402_300_800
"""A time in Unix seconds. Python's datetime cannot represent this time or a later one."""

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Hash of a commit in SHA-1 or SHA-256."""


class MalformedPayload(Invalid):
    """The body of a webhook cannot be parsed. `reason` names the field, never its value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A repository under its present name, with its owner.

    `public` is True unless GitHub marks the repository as private.
    """

    repository: str
    repository_id: int
    owner_id: int
    owner_login: str
    owner_type: Literal["Organization", "User"]
    public: bool = False


RENAMED = "renamed"


def verify_signature(secrets: Sequence[Secret], body: bytes, header: str | None) -> bool:
    """Return whether `X-Hub-Signature-256` is the signature of the raw body with one of the secrets.

    The duration of the check does not reveal which secret matches, or how many characters of the signature are right.
    """
    given = (header or "").encode("utf-8", "replace")
    right = False
    for secret in secrets:
        key = secret.reveal().encode()
        if not key:
            # Anyone can sign with an empty key.
            continue
        right |= hmac.compare_digest(SCHEME + hmac.digest(key, body, "sha256").hex().encode(), given)
    return right


def parse_workflow_job(body: bytes) -> WorkflowJobEvent:
    """Return the event in a `workflow_job` webhook.

    Raises `MalformedPayload` if the body cannot be parsed.
    """
    try:
        return _parse(body)
    except fields.Malformed as error:
        raise MalformedPayload(str(error)) from None


def parse_installation(body: bytes) -> InstallationEvent | None:
    """Return the event in an `installation` webhook. Return None for an installation of an enterprise.

    Raises `MalformedPayload` if the body cannot be parsed.
    """
    try:
        payload = fields.decode(body)
        installation = fields.section(payload, "installation")
        if fields.at_an_enterprise(installation):
            return None
        account = fields.section(installation, "account")
        return InstallationEvent(
            action=fields.word(payload, "action"),
            installation_id=fields.number(installation, "id"),
            owner_id=fields.number(account, "id"),
            owner_login=fields.login(account, "login"),
            at=_changed_at(installation),
        )
    except fields.Malformed as error:
        raise MalformedPayload(str(error)) from None


def _changed_at(installation: Mapping[str, Any]) -> datetime | None:
    """Return the time at which an installation last changed. Return None if the payload has no valid time.

    GitHub writes the time either as text or in Unix seconds.
    """
    value = installation.get("updated_at")
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LAST_SECOND:
        return datetime.fromtimestamp(value, UTC)
    try:
        return fields.optional_moment(installation, "updated_at")
    except fields.Malformed:
        return None


def parse_owner(body: bytes) -> OwnerRenamed | None:
    """Return the rename in an `organization` or `installation_target` webhook. Return None if no login was changed.

    The App's subscriptions decide which of these two events GitHub sends. GitHub might send both. An `organization`
    event has the organisation under `organization`. An `installation_target` event has the organisation or user under
    `account`. Raises `MalformedPayload` if the body cannot be parsed.
    """
    try:
        payload = fields.decode(body)
        action = fields.word(payload, "action")
        changes = payload.get("changes")
        if action != RENAMED or not isinstance(changes, dict) or not changes.get("login"):
            return None
        owner = fields.section(payload, "account" if "account" in payload else "organization")
        return OwnerRenamed(
            action=action,
            owner_id=fields.number(owner, "id"),
            former=fields.login(fields.section(changes, "login"), "from"),
            login=fields.login(owner, "login"),
        )
    except fields.Malformed as error:
        raise MalformedPayload(str(error)) from None


def parse_repository(body: bytes) -> RepositoryRenamed | None:
    """Return the rename in a `repository` webhook. Return None if the webhook reports another change.

    Raises `MalformedPayload` if the body cannot be parsed.
    """
    try:
        payload = fields.decode(body)
        action = fields.word(payload, "action")
        if action != RENAMED:
            return None
        repository = fields.section(payload, "repository")
        full_name = fields.full_name(repository, "full_name")
        changed = fields.section(fields.section(fields.section(payload, "changes"), "repository"), "name")
        former = f"{full_name.partition('/')[0]}/{fields.word(changed, 'from')}"
        return RepositoryRenamed(
            action=action,
            owner_id=fields.number(fields.section(repository, "owner"), "id"),
            repository_id=fields.number(repository, "id"),
            former=fields.full_name({"from": former}, "from"),
            full_name=full_name,
            at=fields.optional_moment(repository, "updated_at"),
        )
    except fields.Malformed as error:
        raise MalformedPayload(str(error)) from None


def _parse(body: bytes) -> WorkflowJobEvent:
    payload = fields.decode(body)
    job = fields.section(payload, "workflow_job")
    installation = payload.get("installation")
    return read_job(
        job,
        action=fields.word(payload, "action"),
        home=read_home(fields.section(payload, "repository")),
        installation_id=fields.optional_number(installation, "id") if isinstance(installation, dict) else None,
    )


def read_home(repository: Mapping[str, Any]) -> Home:
    """Return a repository and its owner from the JSON of the repository. Raises `Malformed` if a field is invalid."""
    owner = fields.section(repository, "owner")
    full_name = fields.full_name(repository, "full_name")
    return Home(
        repository=full_name,
        repository_id=fields.number(repository, "id"),
        owner_id=fields.number(owner, "id"),
        # Runners are registered under this login, which is the owner in the repository's full name.
        owner_login=full_name.partition("/")[0],
        owner_type="Organization" if owner.get("type") == "Organization" else "User",
        # GitHub also marks an internal repository as private (GitHub docs, "About repository visibility").
        public=repository.get("private") is not True,
    )


def read_job(job: Mapping[str, Any], *, action: str, home: Home, installation_id: int | None) -> WorkflowJobEvent:
    """Return the event of a job. The JSON of a job is the same in webhooks and in the REST API.

    Raises `Malformed` if a field is invalid.
    """
    return WorkflowJobEvent(
        action=action,
        job_id=fields.number(job, "id"),
        run_id=fields.number(job, "run_id"),
        run_attempt=1 if job.get("run_attempt") is None else fields.number(job, "run_attempt", most=fields.INTEGER_MAX),
        name=fields.optional_text(job, "name") or "",
        workflow_name=fields.optional_text(job, "workflow_name"),
        status=fields.word(job, "status"),
        conclusion=fields.optional_word(job, "conclusion"),
        labels=fields.labels(job, "labels"),
        runner_name=fields.optional_text(job, "runner_name"),
        runner_id=fields.optional_number(job, "runner_id"),
        created_at=_created_at(job, action),
        started_at=fields.optional_moment(job, "started_at"),
        completed_at=fields.optional_moment(job, "completed_at"),
        head_branch=fields.optional_text(job, "head_branch"),
        head_sha=_commit(job),
        repository=home.repository,
        repository_id=home.repository_id,
        owner_id=home.owner_id,
        owner_login=home.owner_login,
        owner_type=home.owner_type,
        public=home.public,
        installation_id=installation_id,
    )


def _commit(job: Mapping[str, Any]) -> str | None:
    """Return the commit of a job, or None if the value is no hash. No job needs its commit to run."""
    found = job.get("head_sha")
    return found if isinstance(found, str) and _HASH.fullmatch(found) else None


def _created_at(job: Mapping[str, Any], action: str) -> datetime:
    """Return the time at which a job was created.

    If an event other than `queued` has no creation time, return the start of the job instead, or else its end. This
    does not change a job that already has a row, because the row keeps its creation time. Raises `Malformed` if there
    is no valid time.
    """
    if action != "queued" and not job.get("created_at"):
        known = fields.optional_moment(job, "started_at") or fields.optional_moment(job, "completed_at")
        if known is not None:
            return known
    return fields.moment(job, "created_at")
