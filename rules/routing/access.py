"""Access of accounts: the decision whether their jobs are served at all.

GitHub signs the webhooks of every owner that installs the App. A valid signature therefore does not prove a right to
use the cluster.
"""

from __future__ import annotations

from enum import StrEnum


class Access(StrEnum):
    """Decision whether the jobs of an account are served.

    - `allowed`: the account's jobs are served within its budget.
    - `held`: no operator has allowed the account, or an operator has held it. Its jobs are held (`unknown_account`),
      and running jobs go on.
    """

    ALLOWED = "allowed"
    HELD = "held"


def cure_of(*, account_id: int, login: str) -> str:
    """Return a phrase that tells an operator how to allow an account."""
    return f"`ostler account allow {login}` (or its id, {account_id}), or PUT /api/v1/accounts/{account_id}/access"
