"""Priority of a job within its account's queue, from the rules of the account.

A rule is `{"repository": …, "workflow": …, "branch": …, "priority": …}`. The first three are shell patterns (`*`, `?`,
`[…]`). A pattern that is absent or null matches everything. The first rule that matches decides. Names of repositories
are compared without case, as on GitHub. Names of workflows and branches are compared with case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

DEFAULT = 0
LIMIT = 2**31
"""Maximum priority. The minimum priority is `-LIMIT`.

A priority outside these limits is replaced by the nearest limit, so that no rule makes a job's row invalid.
"""


def priority_of(
    rules: Sequence[Mapping[str, Any]], *, repository: str, workflow: str | None, branch: str | None
) -> int:
    """Return the priority of the first rule that matches, or 0 if no rule matches. A larger priority comes first.

    A malformed rule matches nothing. After a typing error in a rule, a job lacks its priority, but still runs (law
    L14).
    """
    for rule in rules:
        priority = rule.get("priority")
        if not isinstance(priority, int) or isinstance(priority, bool):
            continue
        repository_pattern = rule.get("repository")
        if isinstance(repository_pattern, str):
            repository_pattern = repository_pattern.lower()
        if (
            _matches(repository_pattern, repository.lower())
            and _matches(rule.get("workflow"), workflow or "")
            and _matches(rule.get("branch"), branch or "")
        ):
            return max(-LIMIT, min(LIMIT, priority))
    return DEFAULT


def _matches(pattern: object, value: str) -> bool:
    if pattern is None:
        return True
    return isinstance(pattern, str) and fnmatchcase(value, pattern)
