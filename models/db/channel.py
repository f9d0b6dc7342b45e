"""The NOTIFY channel: the notices sent over it, and the connection that receives them.

A notice is a hint (law L6) and contains ids only (law L13). There are three kinds of notices:

    minted <claim id> <pod uid>               sent by the transaction that commits a mint
    superseded <pod uid> <web id> <poll id>   a newer poll of the Pod took the offer of this poll
    beat <web id> <number>                    sent by a web process to check that it receives notices
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
    """The JIT of a claim was minted, and the claim can be delivered to its Pod."""

    claim_id: int
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """The web process `web_id` holds the poll `poll_id`. A newer poll of the same Pod took the offer of this poll."""

    pod_uid: str
    web_id: str
    poll_id: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A numbered notice that a web process sends to itself to check that it receives notices."""

    web_id: str
    number: int


def parse(payload: str) -> Minted | Superseded | Beat | None:
    """Return the notice in a payload, or None if this version does not know the kind of notice."""
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
    """Return a psycopg2 connection in autocommit mode that listens on the channel.

    Without autocommit, LISTEN takes effect only at a commit, and the connection would receive nothing. Raises
    `psycopg2.Error` if the connection cannot be opened or LISTEN fails.
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
