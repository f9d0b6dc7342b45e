"""Updates of the names and installations in jobs and claims, after a rename or a new installation.

All transactions lock rows in this order: jobs, accounts, claims. The caller must therefore run the statements of this
module in the same order.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text


def set_login_of_jobs(db: Connection, *, account_id: int, login: str) -> int:
    """Write the new login of an account into the account's jobs that are not completed. Locked rows are skipped."""
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
    """Write the new login of an account into the account's live claims. Locked rows are skipped."""
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
    """Write the new name of a repository into the repository's jobs that are not completed. Locked rows are skipped.

    `former` is the former name, and `at` is the time of the rename. A job without a repository id belongs to the
    repository if the job has the former name and was queued no later than `at`.
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
    """Write the new name of a repository into the scopes of claims with the former name in their scope.

    A claim changes only if its runner might still be registered in the repository. Locked rows are skipped.
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
                           -- the id of the claim decides, or else the id of its job, or else the age of the claim
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
    """Set the installation of an account's jobs that are not completed.

    If `former` is given, only jobs of the installation `former` change, and locked rows are skipped. If `former` is
    None, all jobs of the account change, and this function waits for locked rows.
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
    """Set the installation of an account's live claims. See `set_installation_of_jobs` for `former`."""
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
