"""Names and installations that jobs and claims have copied from their owner and their repository.

Whoever learns of another one decides the order of these statements, which is the order of the locks: jobs, accounts,
claims.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


def set_login_of_jobs(db: Connection, *, account_id: int, login: str) -> int:
    """Write an owner's new login in its jobs that are not over; those that others hold locked are left."""
    return db.execute(
        text("""
            UPDATE jobs SET repository = :login || '/' || split_part(repository, '/', 2),
                   scope = CASE WHEN starts_with(scope, 'orgs/') THEN 'orgs/' || :login
                                ELSE 'repos/' || :login || '/' || split_part(scope, '/', 3) END
            WHERE id IN (SELECT id FROM jobs WHERE account_id = :id AND state <> 'completed'
                           AND split_part(scope, '/', 2) <> :login ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"id": account_id, "login": login},
    ).rowcount


def set_login_of_claims(db: Connection, *, account_id: int, login: str) -> int:
    """Write an owner's new login in its live claims; those that others hold locked are left."""
    return db.execute(
        text("""
            UPDATE claims SET scope = CASE WHEN starts_with(scope, 'orgs/') THEN 'orgs/' || :login
                                           ELSE 'repos/' || :login || '/' || split_part(scope, '/', 3) END
            WHERE id IN (SELECT id FROM claims WHERE account_id = :id AND ended_at IS NULL
                           AND split_part(scope, '/', 2) <> :login ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"id": account_id, "login": login},
    ).rowcount


def set_repository_of_jobs(
    db: Connection, *, account_id: int, repository_id: int, former: str, name: str, at: datetime
) -> int:
    """Write a repository's new name in its jobs that are not over; those that others hold locked are left.

    A job that does not know the id of its repository is one of it when it was queued under the name before `at`.
    """
    return db.execute(
        text("""
            UPDATE jobs SET repository = :name,
                   scope = CASE WHEN scope = 'repos/' || :former THEN 'repos/' || :name ELSE scope END
            WHERE id IN (SELECT id FROM jobs WHERE account_id = :owner AND state <> 'completed' AND repository = :former
                           AND (repository_id = :id OR (repository_id IS NULL AND queued_at <= :at))
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"id": repository_id, "owner": account_id, "former": former, "name": name, "at": at},
    ).rowcount


def set_repository_of_claims(
    db: Connection, *, account_id: int, repository_id: int, former: str, name: str, at: datetime
) -> int:
    """Write a repository's new name in the scopes of claims whose runner may still be registered there.

    Those that others hold locked are left.
    """
    return db.execute(
        text("""
            UPDATE claims SET scope = 'repos/' || :name
            WHERE id IN (SELECT c.id FROM claims c
                         WHERE c.account_id = :owner AND c.scope = 'repos/' || :former
                           AND (c.ended_at IS NULL
                                OR EXISTS (SELECT FROM mint_attempts m
                                           WHERE m.claim_id = c.id AND m.outcome IN ('open', 'minted'))
                                OR EXISTS (SELECT FROM runner_pods p
                                           WHERE p.id = c.runner_pod_id AND p.gone_at IS NULL))
                           AND coalesce(c.repository_id = :id,
                                        (SELECT j.repository_id = :id FROM jobs j WHERE j.id = c.job_id),
                                        c.created_at <= :at)
                         ORDER BY c.id FOR NO KEY UPDATE OF c SKIP LOCKED)
        """),
        {"id": repository_id, "owner": account_id, "former": former, "name": name, "at": at},
    ).rowcount


_FORMER = "installation_id = :former ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
_ANY_OTHER = "installation_id IS DISTINCT FROM :installation ORDER BY id FOR NO KEY UPDATE"


def set_installation_of_jobs(
    db: Connection, *, account_id: int, installation_id: int, former: int | None = None
) -> None:
    """Give the jobs of an account that are not over, and have the `former` installation, another one.

    Those that others hold locked are left. Without `former` all get it, and locked rows are waited for.
    """
    db.execute(
        text(f"""
            UPDATE jobs SET installation_id = :installation
            WHERE id IN (SELECT id FROM jobs WHERE account_id = :account AND state <> 'completed'
                           AND {_ANY_OTHER if former is None else _FORMER})
        """),
        _installations(account_id, installation_id, former),
    )


def set_installation_of_claims(
    db: Connection, *, account_id: int, installation_id: int, former: int | None = None
) -> None:
    """Give the live claims of an account another installation, as `set_installation_of_jobs` its jobs."""
    db.execute(
        text(f"""
            UPDATE claims SET installation_id = :installation
            WHERE id IN (SELECT id FROM claims WHERE account_id = :account AND ended_at IS NULL
                           AND {_ANY_OTHER if former is None else _FORMER})
        """),
        _installations(account_id, installation_id, former),
    )


def _installations(account_id: int, installation_id: int, former: int | None) -> dict[str, int]:
    values = {"account": account_id, "installation": installation_id}
    return values if former is None else values | {"former": former}
