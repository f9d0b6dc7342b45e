"""Database work before and after two steps of a claim: the stamp and the mint.

A step leases its claim (`models.state.claim_leases`), does one operation outside Postgres, and ends with a guarded
update that tests `chain_no` again (`models.state.claim_transitions`). Even if the message of a step arrives several
times, the step does not run twice while its lease is valid. A late execution of an older chain changes nothing (law
L6).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import Connection

from models.db.sql import text
from models.routing.installations import mark_working
from models.state import claim_leases, claim_transitions, mint_attempts, pod_facts
from models.state.claim_leases import Leased, Minting
from models.state.claims import Claim
from models.upstream.backoffs import delete
from rules.claims.machines import Purpose
from rules.claims.mint_questions import REPOSITORY, asked_for
from rules.claims.runner_names import make_runner_name
from rules.pools.volumes import Reclaim
from rules.routing.forks import private_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated(Leased):
    """Work that writes the claim annotation of a Pod.

    `expected` is the present value of the annotation according to the rows. `value` is the new value.
    """

    namespace: str
    pod_name: str
    pod_uid: str
    expected: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StampWork(Annotated):
    """The work of one stamp or un-stamp. `account_id` and `job_id` are the account and the job of the claim."""

    account_id: int
    job_id: int | None = None


def stamp_work(db: Connection, row: Claim) -> StampWork:
    """Return the annotation work of a claim that was just leased."""
    pod = db.execute(
        text("SELECT namespace, name, stamp_value FROM runner_pods WHERE id = :id"), {"id": row.runner_pod_id}
    ).one()
    return StampWork(
        claim_id=row.id,
        chain_no=row.chain_no,
        account_id=cast("int", row.account_id),  # a claim with a stamp has an account
        namespace=pod.namespace,
        pod_name=pod.name,
        pod_uid=row.pod_uid,
        expected=pod.stamp_value,
        value=f"{row.id}.{row.stamp_no}",
        lease_until=cast("datetime", row.leased_until),
        job_id=row.job_id,
    )


def begin_stamp(db: Connection, claim_id: int, *, chain_no: int | None, now: datetime) -> StampWork | None:
    """Lease a claim for its stamp. The stamp comes before the mint. A missing stamp is put on later (law L10).

    `chain_no` None stands for the current chain. Returns None if the claim needs no stamp now, if it has no account, or
    if the lease cannot be acquired (`models.state.claim_leases`).
    """
    row = claim_leases.lease_stamp(db, claim_id, chain_no=chain_no, now=now)
    return None if row is None else stamp_work(db, row)


def begin_unstamp(db: Connection, claim_id: int, *, chain_no: int | None = None, now: datetime) -> StampWork | None:
    """Lease a minted claim for its un-stamp.

    `chain_no` None stands for the current chain. Returns None if the stamp of the claim is not `removing`, or if the
    lease cannot be acquired.
    """
    row = claim_leases.lease_unstamp(db, claim_id, chain_no=chain_no, now=now)
    return None if row is None else stamp_work(db, row)


def record_found(db: Connection, work: Annotated, *, seen: str, now: datetime) -> bool:
    """Record the annotation that was found on the Pod instead of the expected one.

    Returns True if the lease of the step is still valid, and False otherwise. Only a step with a valid lease may
    replace the found annotation. A step with an expired lease could remove the stamp of a newer claim.
    """
    pod_facts.record_annotation(db, pod_uid=work.pod_uid, value=seen)
    ours = db.execute(
        text("""
            SELECT 1 FROM claims
            WHERE id = :id AND chain_no = :chain_no AND ended_at IS NULL AND leased_until = :until
              AND leased_until > :now
        """),
        {"id": work.claim_id, "chain_no": work.chain_no, "until": work.lease_until, "now": now},
    ).one_or_none()
    return ours is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MintWork(Minting):
    """The data that a mint needs.

    `previous` is the runner name of an earlier attempt with an unknown result, or None if there is no such attempt.
    GitHub must be asked about the runner of the earlier attempt first.
    """

    previous: str | None
    installation_id: int | None
    account_id: int
    job_id: int | None
    repository: str
    scope: str
    labels: tuple[str, ...]
    runner_group: int | str
    pool_id: int
    repository_id: int | None
    public: bool
    private_only: bool
    """True if the runner group must not admit public repositories (`rules.routing.forks.private_only`)."""
    pod_name: str
    pod_uid: str
    registers: bool = False
    """True if the claim registers a persistent runner. Its mint requests a registration token."""
    probing: bool = False
    """True if the job probes a backoff of its installation. The mint then stops at its first failure."""

    def asked_for(self, *, full: bool = False) -> tuple[str, str]:
        """Return the kind and the key of the backoff that a refusal of this mint causes.

        `full` is True if GitHub refused the mint because the runner group is full.
        """
        return asked_for(
            scope=self.scope,
            repository=self.repository,
            account_id=self.account_id,
            installation_id=self.installation_id,
            group=self.runner_group,
            full=full,
        )


def begin_mint(db: Connection, claim_id: int, *, chain_no: int | None, suffix: str, now: datetime) -> MintWork | None:
    """Lease a claim for its mint, and record the runner's name before the call to GitHub.

    A claim is leased only if its stamp is `on` or `gave_up` (law L5). `suffix` makes the runner's name unique. Returns
    None if the lease cannot be acquired.
    """
    row = claim_leases.lease_mint(db, claim_id, chain_no=chain_no, now=now)
    if row is None:
        return None
    pod_name: str = db.execute(
        text("SELECT name FROM runner_pods WHERE id = :id"), {"id": row.runner_pod_id}
    ).scalar_one()
    runner_name = make_runner_name(pod_name, suffix)
    open_attempt = db.execute(
        text("SELECT id, runner_name FROM mint_attempts WHERE claim_id = :id AND outcome = 'open'"), {"id": claim_id}
    ).one_or_none()
    if open_attempt is None:
        attempt_id = mint_attempts.insert(db, claim_id, runner_name=runner_name, now=now)
        previous = None
    else:
        attempt_id, runner_name, previous = open_attempt.id, open_attempt.runner_name, open_attempt.runner_name
    facts = db.execute(
        text("""
            SELECT p.labels, p.runner_group_id, p.runner_group_name, coalesce(j.repository, '') AS repository,
                   coalesce(CAST(:repository_id AS bigint), j.repository_id) AS repository_id,
                   coalesce(j.public, false) AS public, p.volume_reclaim, p.registers_in, p.allow_forks,
                   CAST(:scope AS text) || CASE WHEN starts_with(:scope, 'repos/') THEN
                       coalesce('#' || coalesce(CAST(:repository_id AS bigint), j.repository_id), '')
                       ELSE '' END AS scope,
                   EXISTS (SELECT FROM backoffs b WHERE b.kind = 'installation' AND b.key = :installation
                           AND b.probe_job_id = :job_id) AS probing
            FROM pools p LEFT JOIN jobs j ON j.id = :job_id WHERE p.id = :pool_id
        """),
        {
            "pool_id": row.pool_id,
            "job_id": row.job_id,
            "installation": str(row.installation_id),
            "scope": row.scope,
            "repository_id": row.repository_id,
        },
    ).one()
    return MintWork(
        claim_id=row.id,
        chain_no=row.chain_no,
        attempt_id=attempt_id,
        runner_name=runner_name,
        previous=previous,
        installation_id=row.installation_id,
        account_id=cast("int", row.account_id),  # a claim with a stamp has an account
        job_id=row.job_id,
        repository=facts.repository,
        scope=facts.scope,
        labels=tuple(facts.labels),
        runner_group=facts.runner_group_id if facts.runner_group_name is None else facts.runner_group_name,
        pool_id=row.pool_id,
        repository_id=facts.repository_id,
        public=facts.public,
        private_only=private_only(
            retains=facts.volume_reclaim == Reclaim.RETAIN,
            persistent=facts.registers_in is not None,
            allow_forks=facts.allow_forks,
        ),
        pod_name=pod_name,
        pod_uid=row.pod_uid,
        registers=row.purpose == Purpose.REGISTER,
        lease_until=cast("datetime", row.leased_until),
        probing=facts.probing,
    )


def replace_attempt(db: Connection, work: MintWork, *, runner_name: str, now: datetime) -> int | None:
    """Close an attempt whose runner GitHub does not have, and open the next one. Return the id of the new attempt.

    Returns None if the step does not have the lease of the claim any more. The old attempt is closed in this case too.
    """
    ours = db.execute(
        text("""
            SELECT 1 FROM claims WHERE id = :id AND state = 'claimed' AND chain_no = :chain_no
              AND leased_until = :until FOR NO KEY UPDATE
        """),
        {"id": work.claim_id, "chain_no": work.chain_no, "until": work.lease_until},
    ).one_or_none()
    mint_attempts.close(db, work.attempt_id, outcome="removed", now=now)
    return None if ours is None else mint_attempts.insert(db, work.claim_id, runner_name=runner_name, now=now)


@dataclass(frozen=True, slots=True)
class Minted:
    """The result of the commit of a mint. `moved` is True if the JIT was stored in the claim.

    `recovered` is True if the mint ended a backoff, or if the installation had been recorded as removed. In both cases,
    waiting jobs can continue.
    """

    moved: bool
    recovered: bool


def commit_mint(
    db: Connection,
    work: MintWork,
    *,
    runner_id: int | None,
    jit: bytes,
    due_after: float,
    now: datetime,
    who: str,
) -> Minted:
    """Store the JIT in the claim, and send the NOTIFY for its delivery.

    `runner_id` is None for a persistent runner, which registers itself later.

    If the claim has changed since the mint began, nothing is stored or sent. The attempt is recorded as minted in
    either case, so that the code that ends the claim finds the runner.
    """
    due_at = now + timedelta(seconds=due_after)
    moved = claim_transitions.mint(db, work, runner_id=runner_id, jit=jit, due_at=due_at, now=now, who=who)
    mint_attempts.close(db, work.attempt_id, outcome="minted", now=now, runner_id=runner_id)
    recovered = delete(
        db,
        [
            ("installation", str(work.installation_id)),
            (REPOSITORY, work.repository),
            *(work.asked_for(full=full) for full in (False, True)),
        ],
    )
    if work.installation_id is not None:
        recovered |= mark_working(db, work.installation_id)
    if moved is not None:
        notify_minted(db, work.claim_id, work.pod_uid)
    return Minted(moved=moved is not None, recovered=recovered)


def notify_minted(db: Connection, claim_id: int, pod_uid: str) -> None:
    """Notify the web processes that a claim can be delivered. The payload contains ids only (law L13)."""
    db.execute(text("SELECT pg_notify('ostler', :payload)"), {"payload": f"minted {claim_id} {pod_uid}"})
