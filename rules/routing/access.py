"""Access of accounts: the decision to serve their jobs at all.

GitHub signs the webhooks of everybody who installs the App, so a signature does not prove a right to use the cluster.
"""

from __future__ import annotations

from enum import StrEnum


class Access(StrEnum):
    """Whether the jobs of an account are served.

    - `allowed`: they are, within its budget.
    - `held`: no operator has allowed the account; its jobs are held (`unknown_account`).
    """

    ALLOWED = "allowed"
    HELD = "held"


def cure_of(*, account_id: int, login: str) -> str:
    """Return one sentence that tells an operator how to allow an account."""
    return f"`ostler account allow {login}` (or its id, {account_id}), or PUT /api/v1/accounts/{account_id}/access"
