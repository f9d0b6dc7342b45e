"""Health of the deployment: obstacles to all pools, the Postgres server, web, the last webhook, and the pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db import epochs
from models.db.sql import text
from models.upstream import gates
from ostler.upstreams import Upstream

_NAMES = {Upstream.GITHUB: "GitHub", Upstream.KUBERNETES: "Kubernetes"}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A problem that affects every pool: its name, what does not happen, and why.

    `state` is the word for a pool that is otherwise ready. It is empty if such a pool still counts as ready.
    """

    title: str
    state: str
    effect: str
    cause: str

    def __str__(self) -> str:
        return f"{self.effect}: {self.cause}"


def obstacles(db: Connection, *, now: datetime) -> Sequence[Obstacle]:
    """Return what stops work in the whole fleet, the worst first."""
    found = []
    epoch = epochs.read(db, now=now)
    if epoch.doubt is not None and epoch.older_since is not None:
        title = "The fleet is frozen, as after a restore of the database"
        found.append(Obstacle(title, "frozen", "no job is matched and no Pod is retired", epoch.doubt))
    elif epoch.doubt is not None:
        found.append(Obstacle("The age of Postgres is in doubt", "", "no Pod is retired", epoch.doubt))
    if tripped := gates.shut(db):
        title = f"Most calls to {' and '.join(_NAMES[each.upstream] for each in tripped)} fail"
        why = "; ".join(map(str, tripped))
        found.append(Obstacle(title, "gate tripped", "the autoscaler changes no pool", why))
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """The Postgres server.

    `connections` counts the open client connections of all databases. `standby` is True if the server is in recovery.
    `read_only` is True if transactions are read-only for this or another reason.
    """

    version: str
    most_connections: int
    connections: int
    isolation: str
    standby: bool
    read_only: bool


def server(db: Connection) -> Server:
    """Return the settings and the state of the Postgres server."""
    row = db.execute(
        text("""
            SELECT current_setting('server_version') AS version,
                   CAST(current_setting('max_connections') AS integer) AS most_connections,
                   (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
                   current_setting('transaction_isolation') AS isolation,
                   pg_is_in_recovery() AS standby,
                   current_setting('transaction_read_only') = 'on' AS read_only
        """)
    ).one()
    return Server(*row)


def web_beats(db: Connection) -> Sequence[datetime]:
    """Return the last heartbeat of each web process, latest first.

    If a process sends no heartbeat for an hour, its row is deleted.
    """
    return list(db.execute(text("SELECT beat_at FROM web_instances ORDER BY beat_at DESC")).scalars())


def last_delivery(db: Connection) -> datetime | None:
    """Return the time of the last webhook, or None if no delivery is stored."""
    found: datetime | None = db.execute(
        text("SELECT received_at FROM deliveries ORDER BY received_at DESC LIMIT 1")
    ).scalar_one_or_none()
    return found


def pool_images(db: Connection) -> Mapping[str, str]:
    """Return the image of the Pods of each pool that is not deleted. The key is the name of the pool."""
    rows = db.execute(text("SELECT name, image FROM pools WHERE deleted_at IS NULL ORDER BY name"))
    return {row.name: row.image for row in rows}


def pool_places(db: Connection) -> Sequence[tuple[str, str]]:
    """Return the namespace and the name of each pool that is not deleted."""
    rows = db.execute(text("SELECT namespace, name FROM pools WHERE deleted_at IS NULL ORDER BY namespace, name"))
    return [(row.namespace, row.name) for row in rows]
