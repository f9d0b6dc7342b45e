"""Check whether unknown accounts can run their jobs in this installation."""

from __future__ import annotations

from cli.doctor.context import CALL_WITHIN, Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning


def strangers(context: Context) -> Verdict:
    """Check that a public App does not give unknown accounts access to a pool that serves all accounts."""
    found = context.github.get_app(deadline_seconds=CALL_WITHIN)
    public = context.github.is_public(slug=found.slug, deadline_seconds=CALL_WITHIN)
    serving = context.settings.new_accounts == "serve"
    if public is None:
        return unknown("GitHub does not say whether the App is public")
    if not public:
        return ok("the App is private: only its owner can install it")
    pools = context.pools()
    is_open = [pool.name for pool in pools if not pool.allowed_accounts]
    if not is_open:
        return ok("anybody can install the App, and every pool names the accounts that it serves")
    cause = f"anybody can install the App, and these pools serve all accounts: {', '.join(is_open)}"
    if serving:
        cure = "unset OSTLER_NEW_ACCOUNTS, so that unknown accounts are held; or set allowedAccounts of these pools"
        return failed(cause, cure)
    return warning(
        f"{cause}. Unknown accounts are held until `ostler account allow`", "set allowedAccounts of these pools"
    )
