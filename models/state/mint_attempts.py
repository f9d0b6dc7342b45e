"""Mint attempts: the runner names that are recorded before the call to GitHub, and the result of each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


def insert(db: Connection, claim_id: int, *, runner_name: str, now: datetime) -> int:
    """Record the runner name of a new attempt, and return the attempt's id.

    A unique index rejects a second open attempt of a claim.
    """
    attempt_id: int = db.execute(
        text("""
            INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)
            VALUES (:claim_id, :name, 'open', :now) RETURNING id
        """),
        {"claim_id": claim_id, "name": runner_name, "now": now},
    ).scalar_one()
    return attempt_id


def close(db: Connection, attempt_id: int, *, outcome: str, now: datetime, runner_id: int | None = None) -> None:
    """Record the result of an attempt: `minted`, `refused` or `removed`."""
    db.execute(
        text("""
            UPDATE mint_attempts SET outcome = :outcome, closed_at = :now, runner_id = coalesce(:runner_id, runner_id)
            WHERE id = :id
        """),
        {"id": attempt_id, "outcome": outcome, "now": now, "runner_id": runner_id},
    )


def refused(db: Connection, claim_id: int) -> int:
    """Return how many mints of a claim GitHub has refused."""
    found: int = db.execute(
        text("SELECT count(*) FROM mint_attempts WHERE claim_id = :id AND outcome = 'refused'"), {"id": claim_id}
    ).scalar_one()
    return found


def delete_open(db: Connection, attempt_id: int) -> None:
    """Delete an open attempt, because the call to GitHub was not made. The attempt does not count as a refused mint."""
    db.execute(text("DELETE FROM mint_attempts WHERE id = :id AND outcome = 'open'"), {"id": attempt_id})


def register(db: Connection, claim_id: int, *, runner_name: str, runner_id: int, now: datetime) -> None:
    """Record that a runner which exists at GitHub was minted for a claim.

    If an attempt with this runner name belongs to another claim, the attempt is assigned to the given claim.
    """
    db.execute(
        text("""
            INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at, closed_at)
            VALUES (:claim, :name, :id, 'minted', :now, :now)
            ON CONFLICT (runner_name) DO UPDATE SET runner_id = excluded.runner_id, outcome = 'minted',
                                                    claim_id = excluded.claim_id
        """),
        {"claim": claim_id, "name": runner_name, "id": runner_id, "now": now},
    )


def set_runner_id(db: Connection, claim_id: int, *, runner_name: str, runner_id: int) -> None:
    """Record the id of a runner that registered itself."""
    db.execute(
        text("""
            UPDATE mint_attempts SET runner_id = :runner_id
            WHERE claim_id = :id AND runner_name = :name AND runner_id IS DISTINCT FROM CAST(:runner_id AS bigint)
        """),
        {"id": claim_id, "runner_id": runner_id, "name": runner_name},
    )


def delete_of_claims(db: Connection, claim_ids: Sequence[int]) -> None:
    """Delete the attempts of claims that will be deleted."""
    db.execute(text("DELETE FROM mint_attempts WHERE claim_id = ANY(:ids)"), {"ids": claim_ids})
