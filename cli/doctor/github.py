"""Checks of GitHub: connection, App, clock, permissions, webhooks and refused mints."""

from __future__ import annotations

import os
from datetime import timedelta

from cli.doctor.context import CALL_WITHIN, Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from cli.setup.ping import meaning
from github_adapters import permissions as wanted
from ostler import egress
from ostler.errors import ConfigurationError, Forbidden, Gone, Retryable, UpstreamError
from ostler.reasons import endpoint
from rules.claims.mint_questions import cure_of_refusal

SKEW = timedelta(seconds=60)
"""Maximum lead of this machine's clock over GitHub's clock. Ostler dates its JWTs back by the same time."""

BEHIND = timedelta(minutes=5)
"""Maximum lag of this machine's clock behind GitHub's clock.

A JWT expires nine minutes after its issue, so GitHub refuses every JWT if the lag exceeds nine minutes.
"""


def way(context: Context) -> Verdict:
    """Check that GitHub can be reached with the proxy and the certificate authorities of this environment."""
    try:
        url = context.app.github_api_url
        told = f"{endpoint(url)} is reached {egress.describe(os.environ, url)}"
        context.github.get_app(deadline_seconds=CALL_WITHIN)
    except ConfigurationError as error:
        return failed(str(error), "docs/operations/corporate-networks.md describes proxies and private authorities")
    except Retryable as error:
        if error.status is None:
            cure = "docs/operations/corporate-networks.md: HTTPS_PROXY, NO_PROXY and OSTLER_CA_BUNDLE of this process"
            return failed(f"no answer ({told}): {error}", cure)
    except UpstreamError:  # GitHub answered; the check `github app` reports the error
        pass
    return ok(told)


def app(context: Context) -> Verdict:
    """Check that GitHub accepts the App's id and key."""
    try:
        found = context.github.get_app(deadline_seconds=CALL_WITHIN)
    except ConfigurationError as error:
        return failed(str(error), "`ostler setup github` creates the App and stores its id and secrets")
    except Forbidden as error:
        cure = "check OSTLER_GITHUB_APP_ID and OSTLER_GITHUB_PRIVATE_KEY, and the result of `clock`"
        return failed(f"GitHub does not accept the App's id and key: {error}", cure)
    except (Retryable, Gone) as error:
        return failed(
            f"GitHub does not answer: {error}", "check OSTLER_GITHUB_API_URL and https://www.githubstatus.com"
        )
    return ok(f"GitHub accepts the id and key of the App {found.name}")


def mints(context: Context) -> Verdict:
    """Check that no mint is currently refused. The cause quotes GitHub's own explanation."""
    found = context.rows
    if found.needed is not None:
        return unknown("the tables of the database do not fit this version of Ostler", "run `ostler migrate`")
    if not found.backoffs:
        return ok("GitHub currently refuses no request for a JIT")
    latest = found.backoffs[0].wait().detail
    more = "" if len(found.backoffs) == 1 else f"; {len(found.backoffs) - 1} more"
    return warning(f"{latest}{more}", cure_of_refusal(latest))


def clock(context: Context) -> Verdict:
    """Check that this machine's clock agrees with GitHub's clock. With a wrong clock, GitHub refuses the App's JWTs."""
    ahead = context.github.clock_ahead(deadline_seconds=CALL_WITHIN)
    if ahead is None:
        return unknown("GitHub's answer has no date")
    side = "ahead of" if ahead > timedelta() else "behind"
    told = f"this machine's clock is {abs(ahead.total_seconds()):.0f} s {side} GitHub's"
    cure = "synchronise the clocks of all nodes by NTP; GitHub refuses JWTs that are expired or issued in the future"
    if ahead > SKEW or -ahead > BEHIND:
        return failed(told, cure)
    if abs(ahead) > SKEW / 2:
        return warning(told, cure)
    return ok(told)


def permissions(context: Context) -> Verdict:
    """Check that every installation has granted the needed permissions and no further permissions."""
    if not context.installations:
        return failed("the App is not installed anywhere", "install the App: on the App's page, Install App")
    lacking, needless = [], []
    # An App has one set of permissions for all owners. A permission is needed if one kind of owner needs it.
    kinds = {each.organization for each in context.installations}
    check_runs = context.app.check_runs_after > 0
    for each in context.installations:
        if missing := wanted.lacking(each.permissions, organization=each.organization, check_runs=check_runs):
            lacking.append(f"{each.login} lacks {', '.join(missing)}")
        if surplus := wanted.needless(each.permissions, organizations=kinds, check_runs=check_runs):
            needless.append(f"{each.login}: {', '.join(surplus)}")
    if lacking:
        cure = "grant the permission on the App's page, Permissions & events, and have the owner accept the change"
        return failed("; ".join(lacking), cure)
    if suspended := [each.login for each in context.installations if each.suspended]:
        return warning(
            f"the App is suspended at {', '.join(suspended)}", "the owner can end the suspension: Settings, GitHub Apps"
        )
    if needless:
        return warning(
            f"the App has more permissions than it needs: {'; '.join(needless)}",
            "remove these permissions on the App's page",
        )
    return ok(
        "the App has exactly the permissions that it needs, at "
        + ", ".join(each.login for each in context.installations)
    )


def events(context: Context) -> Verdict:
    """Check that the App subscribes to the events of jobs."""
    found = context.github.get_app(deadline_seconds=CALL_WITHIN).events
    if missing := wanted.silent(found):
        return failed(
            f"the App is not subscribed to {', '.join(missing)}", "subscribe on the App's page, Permissions & events"
        )
    return ok(f"the App is subscribed to {', '.join(found)}")


def deliveries(context: Context) -> Verdict:
    """Check that web accepted the latest webhooks that GitHub sent."""
    listed = context.github.list_deliveries().deliveries
    if not listed:
        return warning(
            "GitHub has sent no webhook for three days",
            "if a repository has run a job since then, run `ostler setup ping`",
        )
    latest = {each.guid: each for each in reversed(listed)}
    open_ones = [each for each in latest.values() if not each.accepted]
    newest = listed[0]
    if not newest.accepted:
        return failed(
            f"the last webhook failed: {meaning(newest.status_code)}",
            "correct the cause; the sweep `redelivery` then requests the failed webhooks again",
        )
    if open_ones:
        cure = "the sweep `redelivery` requests these webhooks again; the log of web shows why web did not accept them"
        return warning(f"{len(open_ones)} of the last {len(latest)} webhooks were not accepted", cure)
    return ok(f"the last {len(latest)} webhooks were accepted")
