"""Access of accounts: whose jobs are served at all.

GitHub signs the webhooks of everybody who installs the App, so a signature says nothing about who may use the cluster.
"""

from __future__ import annotations

from enum import StrEnum


class Access(StrEnum):
    """Whether the jobs of an account are served.

    - `allowed`: they are, within its budget.
    - `held`: nobody has let the account in; its jobs are held (`unknown_account`).
    """

    ALLOWED = "allowed"
    HELD = "held"


def cure_of(*, account_id: int, login: str) -> str:
    """Return how an operator lets an account in, in one sentence."""
    return f"`ostler account allow {login}` (or its id, {account_id}), or PUT /api/v1/accounts/{account_id}/access"
