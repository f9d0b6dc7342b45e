"""Mint attempts: the names of runners, written down before GitHub hears them, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


def insert(db: Connection, claim_id: int, *, runner_name: str, now: datetime) -> int:
    """Write a runner's name down; a claim has at most one open attempt (a unique index says so)."""
    attempt_id: int = db.execute(
        text("""
            INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)
            VALUES (:claim_id, :name, 'open', :now) RETURNING id
        """),
        {"claim_id": claim_id, "name": runner_name, "now": now},
    ).scalar_one()
    return attempt_id


def close(db: Connection, attempt_id: int, *, outcome: str, now: datetime, runner_id: int | None = None) -> None:
    """Record what became of an attempt: `minted`, `refused` or `removed`."""
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
    """Delete an open attempt whose call was never made, however often that happens."""
    db.execute(text("DELETE FROM mint_attempts WHERE id = :id AND outcome = 'open'"), {"id": attempt_id})


def register(db: Connection, claim_id: int, *, runner_name: str, runner_id: int, now: datetime) -> None:
    """Write down a runner that GitHub has, as made for a claim, also when another claim had its name."""
    db.execute(
        text("""
            INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at, closed_at)
            VALUES (:claim, :name, :id, 'minted', :now, :now)
            ON CONFLICT (runner_name) DO UPDATE SET runner_id = excluded.runner_id, outcome = 'minted',
                                                    claim_id = excluded.claim_id
        """),
        {"claim": claim_id, "name": runner_name, "id": runner_id, "now": now},
    )


def delete_of_claims(db: Connection, claim_ids: Sequence[int]) -> None:
    """Delete the attempts of claims that are about to be deleted."""
    db.execute(text("DELETE FROM mint_attempts WHERE claim_id = ANY(:ids)"), {"ids": claim_ids})
