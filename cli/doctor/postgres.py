"""Checks of Postgres: its epoch, availability, clock, connections and schema."""

from __future__ import annotations

from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from models.browse.health import Server
from models.db import migrate
from models.db.connections import RESERVE
from models.db.engine import SKEW_WARNED
from models.db.epochs import CURE
from ostler.errors import ConfigurationError, StoreUnreachable

TRIED = 18
"""Major version of Postgres that the tests use."""

SKEW_FAILS = 5.0
"""Difference in seconds between this machine's clock and the clock of Postgres. From this value on, the check fails."""

FULL = 0.9
"""Fraction of connections in use above which the check warns."""


def epoch(context: Context) -> Verdict:
    """Check the epoch, which shows whether Postgres was restored to an earlier state."""
    found = context.rows.epoch
    if found is None:
        return unknown("the database lacks the table of the epoch", "run `ostler migrate`")
    if found.older_since is not None:
        why = f"Postgres is older than the cluster since {found.older_since:%Y-%m-%d %H:%M:%S} UTC: "
        return failed(f"{why}{found.why}. Nothing is matched, released or retired", CURE)
    if found.doubt is not None:
        cure = (
            "check that beat and a worker on the queue `sweeps` run, and are allowed to get, create and patch the "
            "ConfigMap `ostler-epoch` in OSTLER_NAMESPACE. A backup of Postgres from this time looks current. If such "
            "a backup was restored, run `ostler restore --anyway`"
        )
        return failed(f"{found.doubt}. Nothing is released or retired", cure)
    return ok(f"Postgres is at epoch {found.epoch.number}, as new as the cluster")


def postgres(context: Context) -> Verdict:
    """Check that Postgres answers, is a primary, and uses the isolation level that the matcher needs."""
    try:
        found = context.rows.server
    except StoreUnreachable as error:
        return failed(str(error), "check OSTLER_DATABASE_URL, and that Postgres runs there")
    except ConfigurationError as error:
        return failed(str(error), "set it as described in docs/configuration.md")
    if found.standby or found.read_only:
        return failed(*_refuses_writes(found))
    if found.isolation != "read committed":
        cure = "set default_transaction_isolation to 'read committed' for this database or user"
        return failed(f"the default isolation is {found.isolation}, but the matcher needs read committed", cure)
    major = found.version.partition(".")[0]
    if major.isdecimal() and int(major) < TRIED:
        return warning(
            f"Postgres {found.version} answers",
            f"upgrade Postgres: the tests run on {TRIED}, and older versions are not tested",
        )
    return ok(f"Postgres {found.version} answers, with the isolation read committed")


def _refuses_writes(found: Server) -> tuple[str, str]:
    """Return why this server refuses writes, and the cure."""
    if found.standby:
        cure = "name the primary in OSTLER_DATABASE_URL, or end the failover"
        return f"Postgres {found.version} is a read-only standby", cure
    cure = "set default_transaction_read_only to off; managed databases set it to on when their disk is full"
    return f"Postgres {found.version} refuses writes (default_transaction_read_only)", cure


def clock_of_postgres(context: Context) -> Verdict:
    """Check that this machine's clock agrees with the clock of Postgres. Processes correct small differences."""
    skew = context.rows.clock_ahead
    told = f"this machine's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} that of Postgres"
    cure = "synchronise the clocks of all nodes and of Postgres by NTP; each process corrects its clock by this offset"
    if abs(skew) >= SKEW_FAILS:
        return failed(told, cure)
    if abs(skew) >= SKEW_WARNED:
        return warning(told, cure)
    return ok("this machine's clock and that of Postgres agree")


def connections(context: Context) -> Verdict:
    """Check that the connection budget of all processes fits into `max_connections`."""
    found, budget = context.rows.server, context.settings.connection_budget
    told = f"{found.connections} of {found.most_connections} connections are open, the budget is {budget}"
    if budget + RESERVE > found.most_connections:
        cure = f"raise max_connections to {budget + RESERVE}, or run fewer replicas or threads"
        return failed(f"{told}, and {RESERVE} must stay free: further processes refuse to start", cure)
    if found.connections > FULL * found.most_connections:
        return warning(
            told,
            (
                "find out which processes hold the connections: SELECT application_name, count(*) FROM "
                "pg_stat_activity GROUP BY 1"
            ),
        )
    return ok(told)


def revision(context: Context) -> Verdict:
    """Check that the database has the schema of this version or of a newer version."""
    found = context.rows
    if found.needed is None:
        return ok(f"the database is at revision {found.revision}")
    cure = migrate.EMPTY_DATABASE if migrate.predates(found.revision, migrate.revisions()) else "run `ostler migrate`"
    return failed(
        f"the database is at revision {found.revision or 'none'}, but this version needs {found.needed}", cure
    )
