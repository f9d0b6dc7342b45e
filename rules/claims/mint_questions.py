"""Backoff keys of refused mints: each key names the jobs that a refusal of GitHub affects.

The repositories of a user account have their own runners, so a refusal affects only the repository. In an organisation,
a refusal affects the runner group. A refusal for the default group affects the whole account, unless GitHub refuses
because this group is full.
"""

from __future__ import annotations

import re

from rules.routing.runner_groups import DEFAULT, DEFAULT_NAME
from rules.routing.scopes import Scope

ACCOUNT, REPOSITORY, RUNNER_GROUP = "account", "repository", "runner_group"

NO_RUNNER = "GitHub did not register a runner"
NO_RUNNERS = "GitHub does not register runners"
QUOTA_REACHED = "GitHub's rate limit is reached"
PACE_REACHED = "the limit OSTLER_GITHUB_MINTS_PER_MINUTE is reached"
LIMIT_REACHED = "a rate limit for calls to GitHub is reached"
NO_INSTALLATION = "no installation of the App is known for the account of the job"
BUSY_RUNNER = "a runner that was never delivered is busy"
INVALID_RUNNER = "GitHub refuses the runner of the job as invalid"
"""Phrases in the details of holds. They name what failed, and `cure_of_refusal` selects the cure by them."""

_FULL = re.compile(r"has reached max(?:imum)? limit of [0-9,]+ runners", re.IGNORECASE)


def is_full(words: str | None) -> bool:
    """Return whether GitHub's message says that the runner group is full.

    A group has at most 10,000 runners. GitHub answers 422 to a mint for a full group.
    """
    return words is not None and _FULL.search(words) is not None


def group_key(installation_id: int | None, group: int | str) -> str:
    """Return the key of a runner group. A name is quoted in the key, and a number is not."""
    return f"{installation_id}/" + (str(group) if isinstance(group, int) else f"'{group}'")


def is_default(group: int | str) -> bool:
    """Return whether `group`, the runner group of a pool, is the default group.

    Every organisation has a default group.
    """
    return group == DEFAULT or (isinstance(group, str) and group.lower() == DEFAULT_NAME)


def asked_for(
    *,
    scope: str,
    repository: str,
    account_id: int,
    installation_id: int | None,
    group: int | str,
    full: bool = False,
) -> tuple[str, str]:
    """Return the kind and the key of the backoff of a mint. `full` is true if the runner group is full.

    A full group affects only the jobs of this group, even if this group is the default group.
    """
    if Scope.parse(scope).repository_name is not None:
        return REPOSITORY, repository
    if is_default(group) and not full:
        return ACCOUNT, str(account_id)
    return RUNNER_GROUP, group_key(installation_id, group)


def describe(kind: str, key: str) -> str:
    """Return a phrase that names the jobs that a backoff affects."""
    if kind != RUNNER_GROUP:
        return f"{kind} id {key}" if kind == "installation" else f"{kind} {key}"
    installation, _, group = key.partition("/")
    return f"runner group {group} of installation id {installation}"


_UNANSWERED = (
    "GitHub did not answer, or answered with an error of its own: check the status page of GitHub, `ostler gates`, and "
    "with `ostler doctor` that this installation reaches GitHub. Ostler tries one job at a time. The other held jobs "
    "continue after the first success."
)

_CAUSES = (
    (NO_RUNNER, _UNANSWERED),
    (NO_RUNNERS, _UNANSWERED),
    (QUOTA_REACHED, "No action is needed: the jobs continue when GitHub's limit is renewed."),
    (
        PACE_REACHED,
        (
            "No action is needed: Ostler then tries the job again. If this repeats, raise "
            "OSTLER_GITHUB_MINTS_PER_MINUTE, unless GitHub has asked for fewer requests."
        ),
    ),
    (NO_INSTALLATION, "Install the App for the account of the job."),
    (
        BUSY_RUNNER,
        (
            "GitHub gave a job to a runner that no Pod has. Cancel this job, or remove the runner in the settings of "
            "the account (Actions, Runners)."
        ),
    ),
    (INVALID_RUNNER, "Check the pool's runnerGroup and runnerLabels: GitHub refused a runner with these values."),
    (
        "installation is suspended",
        "Unsuspend the installation of the App in the settings of the account. The held jobs then continue.",
    ),
    (
        "no longer installed",
        (
            "Install the App for the account, and admit the repository in the settings of the installation. The held "
            "jobs then continue."
        ),
    ),
)
"""Pairs of a phrase in the detail of a hold, and the cure for a cause that is no refusal of the runner itself."""

_CURES = (
    (
        "ip allow list",
        (
            "In the organisation: Settings, Authentication security, IP allow list: add the address that "
            "the workers use to reach GitHub."
        ),
    ),
    (
        "(needs ",
        "Give the App the permission that GitHub names, and accept the change in the settings of its installation.",
    ),
    (
        "reached max limit",
        (
            "Remove runners of that group in the organisation's settings, or set another runnerGroup in the pools: a "
            "group holds 10,000 runners at most."
        ),
    ),
    (
        "not accessible by integration",
        (
            "Give the App the permission to administer self-hosted runners, and check that no runner group of "
            "GitHub-hosted larger runners is named in runnerGroup."
        ),
    ),
)
"""Pairs of a phrase in a message of GitHub, in lower case, and the cure for the problem."""


def why_postponed(*, mints: bool, attempt: str | None) -> str:
    """Return the rate limit that postponed the step of a claim, as far as the rows show it.

    `mints` is true if the step is the mint of a JIT, and `attempt` is the outcome of its last attempt. GitHub's own
    limit refuses an attempt. Ostler's own limit makes none.
    """
    if not mints:
        return LIMIT_REACHED
    return {"refused": QUOTA_REACHED, None: PACE_REACHED}.get(attempt, LIMIT_REACHED)


def cure_of_cause(detail: str) -> str | None:
    """Return the cure for the cause that the detail of a hold names, or None if the detail names none of `_CAUSES`."""
    return next((cure for words, cure in _CAUSES if words in detail), None)


def cure_of_refusal(detail: str) -> str:
    """Return the cure for a hold. `detail` is the detail of the hold, with GitHub's message.

    The message only selects one of the fixed texts.
    """
    cause = cure_of_cause(detail)
    if cause is not None:
        return cause
    lower = detail.lower()
    known = next((cure for words, cure in _CURES if words in lower), None)
    if known is not None:
        return f"{known} Ostler tries one job at a time. The other held jobs continue after the first success."
    return (
        "Ostler then retries the job automatically. If this repeats, check that the App is installed for this "
        "repository with the permission to administer runners, and check the status page of GitHub."
    )
