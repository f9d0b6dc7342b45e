"""API tokens: the credentials of the callers of the REST API, with their scopes and expiry times.

A token is `ostler_<key id>_<secret>`. The row of a token is found by the key id. The secret consists of 32 random
bytes, and only the SHA-256 of the secret is stored. A slow password hash is not needed, because 256 random bits cannot
be guessed. It would only slow every request. A token is shown only once, at its creation.

A person who logs in to the dashboard through an OpenID provider also gets a row. Nobody knows the secret of this token:
it exists only so that the person's session has the same rights, lists and revocation as any other.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Connection, Index, LargeBinary, Row
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text
from models.state import changes
from ostler.secrets import Secret
from rules.changes import Author, ChangeKind, Via
from rules.token_scopes import Rights, TokenScope

USED_AT_EVERY = timedelta(minutes=1)

_FORM = re.compile(r"ostler_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NO_DIGEST = bytes(32)


class ApiToken(Base):
    """One token. The row of a revoked or expired token is kept, so that its name and last use can be read."""

    __tablename__ = "api_tokens"
    __table_args__ = (
        CheckConstraint("scopes <@ ARRAY['read', 'write'] AND cardinality(scopes) > 0", name="scopes_known"),
        CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
        CheckConstraint("octet_length(link_digest) = 32", name="link_digest_is_sha256"),
        CheckConstraint("accounts IS NULL OR cardinality(accounts) > 0", name="accounts_named"),
        CheckConstraint("accounts IS NULL OR scopes = ARRAY['read']", name="limited_reads"),
        Index("ix_api_tokens_subject", "subject", unique=True, postgresql_where=text("revoked_at IS NULL")),
    )

    id: Mapped[Serial]
    key_id: Mapped[str] = mapped_column(unique=True, comment="public part of the token, which identifies the row")
    digest: Mapped[bytes] = mapped_column(LargeBinary, comment="SHA-256 of the secret part of the token")
    name: Mapped[str]
    scopes: Mapped[list[str]]
    accounts: Mapped[list[int] | None] = mapped_column(
        ARRAY(BigInteger), comment="GitHub ids of the accounts that the caller may see; NULL: all accounts"
    )
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None] = mapped_column(comment="time of the last use, updated at most once a minute")
    link_digest: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="SHA-256 of the code of a login link; NULL: there is no link, or it was used"
    )
    link_until: Mapped[datetime | None] = mapped_column(comment="time until which the login link is valid")
    subject: Mapped[str | None] = mapped_column(
        comment="issuer and subject of the person who logs in with this row; NULL: a command created the token"
    )


@dataclass(frozen=True, slots=True)
class Holder:
    """The valid token of a caller.

    `accounts` contains the ids of the accounts that the caller may see. None means all accounts. `key_id` is the public
    part of the token.
    """

    id: int
    name: str
    scopes: frozenset[TokenScope]
    accounts: frozenset[int] | None = None
    key_id: str = ""


class Refused(StrEnum):
    """Reason why a token is not valid. Ostler counts the reason, but never shows it to the caller."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REVOKED = "revoked"


def create(
    db: Connection,
    *,
    name: str,
    scopes: Collection[TokenScope],
    expires_at: datetime | None,
    by: Author,
    accounts: Collection[int] | None = None,
) -> tuple[int, Secret]:
    """Create a token. Return the id of the token's row and the token itself. The token itself is not stored.

    If `accounts` is given, the token can read only these accounts, and `scopes` must contain only `read`.
    """
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    token_id: int = db.execute(
        text("""
            INSERT INTO api_tokens (key_id, digest, name, scopes, accounts, created_at, expires_at)
            VALUES (:key_id, :digest, :name, :scopes, CAST(:accounts AS bigint[]), :now, :expires_at) RETURNING id
        """),
        {
            "key_id": key_id,
            "digest": _digest(secret),
            "name": name,
            "scopes": sorted(scopes),
            "accounts": None if accounts is None else sorted(accounts),
            "now": by.at,
            "expires_at": expires_at,
        },
    ).scalar_one()
    after = {
        "scopes": sorted(scopes),
        "accounts": None if accounts is None else sorted(accounts),
        "expires_at": None if expires_at is None else expires_at.isoformat(),
    }
    changes.record(db, ChangeKind.TOKEN, name, object_id=token_id, before={}, after=after, by=by)
    return token_id, Secret(f"ostler_{key_id}_{secret}")


def log_in_person(
    db: Connection, *, subject: str, name: str, rights: Rights, expires_at: datetime, now: datetime
) -> Holder | None:
    """Return the holder for a person's new session, with the rights that the person has now.

    `subject` identifies the person, whatever their name is. The person keeps the row of earlier logins, so that
    sessions with other rights end. After a revocation, the next login begins a new row.

    Returns None if the rights are limited to accounts, and none of these accounts exists.
    """
    accounts = None if rights.accounts is None else _known_accounts(db, rights.accounts)
    if accounts == []:
        return None
    before = db.execute(
        text("SELECT scopes, accounts FROM api_tokens WHERE subject = :subject AND revoked_at IS NULL FOR UPDATE"),
        {"subject": subject},
    ).one_or_none()
    row = db.execute(
        text("""
            INSERT INTO api_tokens (key_id, digest, name, scopes, accounts, created_at, expires_at, subject)
            VALUES (:key_id, :digest, :name, :scopes, CAST(:accounts AS bigint[]), :now, :expires_at, :subject)
            ON CONFLICT (subject) WHERE revoked_at IS NULL
                DO UPDATE SET name = :name, scopes = :scopes, accounts = CAST(:accounts AS bigint[]),
                              expires_at = :expires_at
            RETURNING id, key_id, digest, name, scopes, accounts, expires_at, revoked_at, last_used_at
        """),
        {
            "key_id": secrets.token_hex(8),
            "digest": _digest(secrets.token_urlsafe(32)),
            "name": name,
            "scopes": sorted(rights.scopes),
            "accounts": accounts,
            "now": now,
            "expires_at": expires_at,
            "subject": subject,
        },
    ).one()
    changes.record(
        db,
        ChangeKind.TOKEN,
        name,
        object_id=row.id,
        before={} if before is None else {"scopes": before.scopes, "accounts": before.accounts},
        after={"scopes": row.scopes, "accounts": row.accounts},
        by=Author(name, Via.DASHBOARD, now),
        why="a person logged in through the OpenID provider",
    )
    found = _admit(db, row, now=now)
    return found if isinstance(found, Holder) else None


def _known_accounts(db: Connection, given: Collection[str | int]) -> list[int]:
    """Return the ids of the accounts with these logins or ids.

    A login that several accounts have is ignored: a renamed account keeps its old login until its next webhook, and the
    login might belong to somebody else by now.
    """
    rows = db.execute(
        text("""
            SELECT min(id) FROM accounts WHERE lower(login) = ANY(:logins) GROUP BY lower(login) HAVING count(*) = 1
            UNION SELECT id FROM accounts WHERE id = ANY(:ids)
        """),
        {
            "logins": sorted(each.lower() for each in given if isinstance(each, str)),
            "ids": sorted(each for each in given if isinstance(each, int)),
        },
    )
    return sorted(rows.scalars())


def well_formed(token: str) -> bool:
    """Return True if a string has the form of a token. Callers refuse any other string without a database query."""
    return _FORM.fullmatch(token) is not None


def verify(db: Connection, token: Secret, *, now: datetime) -> Holder | Refused:
    """Return the holder of a valid token, or the reason why the token is not valid.

    The use of a valid token is recorded. The digest is compared in constant time, even if the key id does not exist.
    """
    parts = _FORM.fullmatch(token.reveal())
    if parts is None:
        return Refused.MALFORMED
    row = _row(db, parts[1])
    expected = _NO_DIGEST if row is None else bytes(row.digest)
    if not hmac.compare_digest(expected, _digest(parts[2])) or row is None:
        return Refused.UNKNOWN
    return _admit(db, row, now=now)


def verify_again(db: Connection, key_id: str, *, now: datetime) -> Holder | Refused:
    """Return the holder of a token that `verify` accepted earlier, or the reason why the token is not valid any more.

    `key_id` must come from a source that the caller trusts, because the secret part of the token is not compared. The
    use of a valid token is recorded.
    """
    row = _row(db, key_id)
    return Refused.UNKNOWN if row is None else _admit(db, row, now=now)


def verify_all_again(db: Connection, key_ids: Collection[str], *, now: datetime) -> dict[str, Holder]:
    """Return the holders of the tokens that are still valid, by key id. `verify_again` explains `key_ids`.

    One statement reads the tokens. Another one records their use, and leaves out rows that another session has locked.
    """
    rows = db.execute(
        text("""
            SELECT id, key_id, name, scopes, accounts, expires_at, revoked_at FROM api_tokens
            WHERE key_id = ANY(:key_ids)
        """),
        {"key_ids": sorted(key_ids)},
    ).all()
    valid = [row for row in rows if _problem(row, now=now) is None]
    db.execute(
        text("""
            UPDATE api_tokens SET last_used_at = :now WHERE id IN (
                SELECT id FROM api_tokens WHERE id = ANY(:ids) AND (last_used_at IS NULL OR last_used_at <= :before)
                ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"ids": [row.id for row in valid], "now": now, "before": now - USED_AT_EVERY},
    )
    return {row.key_id: _holder(row) for row in valid}


def _row(db: Connection, key_id: str) -> Row[Any] | None:
    return db.execute(
        text("""
            SELECT id, key_id, digest, name, scopes, accounts, expires_at, revoked_at, last_used_at FROM api_tokens
            WHERE key_id = :key_id
        """),
        {"key_id": key_id},
    ).one_or_none()


def _admit(db: Connection, row: Row[Any], *, now: datetime) -> Holder | Refused:
    """Return the holder of the token in `row` and record the use, or return the reason why the token is not valid."""
    if (problem := _problem(row, now=now)) is not None:
        return problem
    if row.last_used_at is None or row.last_used_at <= now - USED_AT_EVERY:
        db.execute(
            text("""
                UPDATE api_tokens SET last_used_at = :now
                WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :before)
            """),
            {"id": row.id, "now": now, "before": now - USED_AT_EVERY},
        )
    return _holder(row)


def _problem(row: Row[Any], *, now: datetime) -> Refused | None:
    if row.revoked_at is not None:
        return Refused.REVOKED
    return Refused.EXPIRED if row.expires_at is not None and row.expires_at <= now else None


def _holder(row: Row[Any]) -> Holder:
    return Holder(
        row.id,
        row.name,
        frozenset(TokenScope(scope) for scope in row.scopes),
        accounts=None if row.accounts is None else frozenset(row.accounts),
        key_id=row.key_id,
    )


def make_link(db: Connection, token_id: int, *, until: datetime, now: datetime) -> Secret | None:
    """Return the code of a login link that works once, before `until`. An earlier link of the token ends.

    Returns None if no valid token has this id.
    """
    secret = secrets.token_urlsafe(32)
    key_id = db.execute(
        text("""
            UPDATE api_tokens SET link_digest = :digest, link_until = :until
            WHERE id = :id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now) RETURNING key_id
        """),
        {"id": token_id, "digest": _digest(secret), "until": until, "now": now},
    ).scalar()
    return None if key_id is None else Secret(f"ostler_{key_id}_{secret}")


def use_link(db: Connection, code: Secret, *, now: datetime) -> Holder | Refused:
    """Use up a login link. Return the holder of its token, or the reason why the link is not valid.

    Of two uses at the same time, the second one waits for the first, and is refused.
    """
    parts = _FORM.fullmatch(code.reveal())
    if parts is None:
        return Refused.MALFORMED
    row = db.execute(
        text("SELECT link_digest, link_until FROM api_tokens WHERE key_id = :key_id FOR NO KEY UPDATE"),
        {"key_id": parts[1]},
    ).one_or_none()
    expected = _NO_DIGEST if row is None or row.link_digest is None else bytes(row.link_digest)
    if not hmac.compare_digest(expected, _digest(parts[2])) or row is None:
        return Refused.UNKNOWN
    if row.link_until <= now:
        return Refused.EXPIRED
    db.execute(
        text("UPDATE api_tokens SET link_digest = NULL, link_until = NULL WHERE key_id = :key_id"),
        {"key_id": parts[1]},
    )
    return verify_again(db, parts[1], now=now)


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token without its digest. `accounts` contains logins. It is empty if the token may see all accounts."""

    id: int
    key_id: str
    name: str
    scopes: Sequence[str]
    accounts: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


def list_tokens(db: Connection) -> Sequence[ListedToken]:
    """Return every token, oldest first."""
    rows = db.execute(
        text("""
            SELECT t.id, t.key_id, t.name, t.scopes,
                   ARRAY(SELECT coalesce(a.login, given.id::text) FROM unnest(t.accounts) AS given (id)
                         LEFT JOIN accounts a ON a.id = given.id ORDER BY 1) AS accounts,
                   t.created_at, t.expires_at, t.revoked_at, t.last_used_at
            FROM api_tokens t ORDER BY t.id
        """)
    )
    return [ListedToken(*row) for row in rows]


def revoke(db: Connection, token_id: int, *, by: Author) -> bool:
    """Revoke a token. Return False if no token has this id. A second revocation changes nothing."""
    row = db.execute(
        text("SELECT name, revoked_at FROM api_tokens WHERE id = :id FOR NO KEY UPDATE"), {"id": token_id}
    ).one_or_none()
    if row is None:
        return False
    if row.revoked_at is None:
        db.execute(text("UPDATE api_tokens SET revoked_at = :now WHERE id = :id"), {"id": token_id, "now": by.at})
        before, after = {"revoked": False}, {"revoked": True}
        changes.record(db, ChangeKind.TOKEN, row.name, object_id=token_id, before=before, after=after, by=by)
    return True


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
