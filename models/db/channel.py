"""The one NOTIFY channel: its notices, and the connection that hears them.

A notice is a hint (law L6) and carries ids only (law L13):

    minted <claim id> <pod uid>                   sent by the transaction that commits a mint
    superseded <pod uid> <web id> <poll id>       the offer of that older poll was taken over
    beat <web id> <number>                        how a web process proves to itself that it hears
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg2
from sqlalchemy.engine import make_url

from models.db import client_waits
from ostler.secrets import Secret

CHANNEL = "ostler"


@dataclass(frozen=True, slots=True)
class Minted:
    """A claim waits for its delivery."""

    claim_id: int
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer poll has the offer of this one."""

    pod_uid: str
    web_id: str
    poll_id: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A web process speaks to itself."""

    web_id: str
    number: int


def parse(payload: str) -> Minted | Superseded | Beat | None:
    """Return the notice, or None for one that this version does not know."""
    match payload.split(" "):
        case ["minted", claim_id, pod_uid] if claim_id.isdecimal():
            return Minted(int(claim_id), pod_uid)
        case ["superseded", pod_uid, web_id, poll_id]:
            return Superseded(pod_uid, web_id, poll_id)
        case ["beat", web_id, number] if number.isdecimal():
            return Beat(web_id, int(number))
        case _:
            return None


def listen(url: Secret) -> Any:
    """Return an autocommit psycopg2 connection that listens; on any other kind LISTEN hears nothing.

    Raises psycopg2.Error.
    """
    client_waits.install()
    parsed = make_url(url.reveal())
    arguments, options = parsed.get_dialect()().create_connect_args(parsed)
    connection = psycopg2.connect(
        *arguments,
        **options,
        application_name="ostler-listener",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
    except psycopg2.Error:
        connection.close()
        raise
    return connection
