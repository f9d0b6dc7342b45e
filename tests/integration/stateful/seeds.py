"""The seeded bugs, and the switch that installs one of them.

Each bug removes one guard of the code. The machine must detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from models.claims import releases
from models.intake import binding_locks, bindings
from models.state import claim_leases, job_transitions
from ostler.errors import Busy, Retryable
from rules.intake.bindings import ClaimView
from tasks.claims import postpone
from tasks.sweeps import rematch, resume
from tests.integration.stateful.world import World
from web.runners.handover import Handover, Missed, Recipient

Seed = Callable[[pytest.MonkeyPatch], Callable[[World], None]]


def none(_monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Change nothing."""
    return lambda _world: None


def mint_before_stamp(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """`begin_mint` accepts a claim with any stamp."""
    lease = claim_leases._lease

    def unguarded(db: Connection, name: str, claim_id: int, *, guard: str = "", **rest: Any) -> Any:
        return lease(db, name, claim_id, guard="" if name == "lease_mint" else guard, **rest)

    monkeypatch.setattr(claim_leases, "_lease", unguarded)
    return lambda _world: None


def release_without_handle(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """A release ends the claim that its Pod has by then, instead of the claim that it began with."""
    end = releases.end_never_delivered

    def unfenced(db: Connection, work: releases.ReleaseWork, *, now: datetime, who: str, **rest: Any) -> Any:
        ended = end(db, work, now=now, who=who, **rest)
        if not ended:  # its own claim is over: whatever claim is on the Pod is taken for it
            db.execute(
                text("""
                    UPDATE claims SET state = 'ended', ended_at = :now, end_reason = 'released', jit = NULL
                    WHERE pod_uid = :uid AND ended_at IS NULL
                """),
                {"uid": work.pod_uid, "now": now},
            )
        return ended

    monkeypatch.setattr(releases, "end_never_delivered", unfenced)
    return lambda _world: None


def swap_without_null(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """Two claims swap their jobs in one UPDATE."""
    set_job = bindings._set_job

    def at_once(batch: Any, claims: Sequence[ClaimView], job_id: int | None) -> None:
        if job_id is None and len(claims) == 2:
            first, second = claims
            batch.db.execute(
                text("""
                    UPDATE claims SET job_id = CASE id WHEN :first THEN CAST(:of_second AS bigint) ELSE :of_first END
                    WHERE id IN (:first, :second)
                """),
                {"first": first.id, "second": second.id, "of_first": first.job_id, "of_second": second.job_id},
            )
        else:
            set_job(batch, claims, job_id)

    monkeypatch.setattr(bindings, "_set_job", at_once)
    return lambda _world: None


def delivered_after_the_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """The JIT is sent to the Pod before `delivered` is committed."""
    hand_over = Handover.hand_over
    worlds: list[World] = []

    async def hasty(self: Handover, claim_id: int, to: Recipient, *, again: bool) -> Any:
        world = worlds[-1]
        rows = world.rows("SELECT jit FROM claims WHERE id = :id AND state = 'minted'", id=claim_id)
        if again or not rows:
            return await hand_over(self, claim_id, to, again=again)
        jit = world.cipher.decrypt(rows[0].jit).reveal()
        try:
            world.cluster.call(f"answer {to.pod_uid}", lambda: world.receive(to.pod_uid, jit))
        except Retryable:
            return Missed.MOVED_ON
        await hand_over(self, claim_id, to, again=again)
        return Missed.MOVED_ON

    monkeypatch.setattr(Handover, "hand_over", hasty)
    return worlds.append


def unstamp_without_test(_monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """An un-stamp does not compare the value that it replaces."""

    def prepare(world: World) -> None:
        world.cluster.unstamps_compare = False

    return prepare


def refusal_counts_as_removal(_monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """GitHub's answer that a persistent runner executes a job counts as its removal."""

    def prepare(world: World) -> None:
        github = world.github
        delete = github.delete_runner

        def lenient(*, runner_id: int, **rest: Any) -> None:
            runner = github.runners.get(runner_id)
            try:
                delete(runner_id=runner_id, **rest)
            except Busy:
                if runner is None or not runner.persistent:
                    raise

        github.delete_runner = lenient  # type: ignore[method-assign]

    return prepare


def registration_takes_a_job(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """A webhook binds a job to the registration of its runner, as to the claim of a single-use runner."""

    def single_use(**view: Any) -> ClaimView:
        return ClaimView(**view | {"persistent": False})

    monkeypatch.setattr(binding_locks, "ClaimView", single_use)
    return lambda _world: None


def lost_steps_stay_lost(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """`resume` does not repeat a step whose message was lost."""
    monkeypatch.setattr(resume, "send_all_late_steps", lambda _tick: None)
    return lambda _world: None


def holds_are_kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """`rematch` ignores jobs whose reason to wait has ended."""
    monkeypatch.setattr(rematch, "_page", lambda _tick, _places: {})
    return lambda _world: None


def failed_steps_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """A step whose call failed is due much later, and no message repeats it."""
    monkeypatch.setattr(postpone, "LATE", 10**7)
    monkeypatch.setattr(World, "_again", lambda *_: None)
    return lambda _world: None


def release_keeps_the_job(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """A release or a lost Pod ends the claim, and does not queue its job again."""
    forgetful = SimpleNamespace(**vars(job_transitions) | {"requeue": lambda *_, **__: []})
    monkeypatch.setattr(releases, "job_transitions", forgetful)  # the other modules still queue jobs again
    return lambda _world: None


SEEDS: dict[str, Seed] = {
    "mint before stamp": mint_before_stamp,
    "release without handle": release_without_handle,
    "swap without NULL": swap_without_null,
    "delivered after the write": delivered_after_the_write,
    "un-stamp without test": unstamp_without_test,
    "refusal counts as removal": refusal_counts_as_removal,
    "registration takes a job": registration_takes_a_job,
    "lost steps stay lost": lost_steps_stay_lost,
    "holds are kept": holds_are_kept,
    "failed steps are not repeated": failed_steps_are_not_repeated,
    "release keeps the job": release_keeps_the_job,
}
