"""Pods, pools and accounts with their diagnoses, as the commands, the API and the pages show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from models.browse import accounts as account_rows
from models.browse import pods as pod_rows
from models.browse import pools as pool_rows
from models.browse.accounts import AccountStory, Waiting, account_story, held_by
from models.browse.claims import step_of
from models.browse.jobs import JobStory, job_story, pool_facts
from models.browse.pods import PodStory, pod_story
from models.browse.pools import PoolStory, pool_story
from models.claims import pod_ends
from models.db.sql import text
from models.pools import pod_lists
from models.sweeps import stuck_pods, unresponsive
from ostler.timings import Timings
from rules.claims.fairness import Budget
from rules.claims.machines import ClaimState, Purpose
from rules.pools.pod_states import PodState
from rules.routing.access import Access
from rules.waiting import diagnoses
from rules.waiting.diagnoses import (
    AccountFacts,
    Counted,
    Decision,
    Executed,
    ListedPod,
    LiveClaim,
    Periods,
    PodFacts,
    PoolQueue,
)
from rules.waiting.held import held_by as held_words
from rules.waiting.steps import Diagnosis


def told_pod(
    db: Connection, name_or_uid: str, *, timings: Timings, now: datetime, accounts: Collection[int] | None = None
) -> dict[str, Any] | None:
    """Return a Pod with its story and its diagnosis, or None if `pod_story` finds none."""
    story = pod_story(db, name_or_uid, accounts=accounts)
    if story is None:
        return None
    return pod_rows.told(story) | {"why": asdict(of_pod(db, story, timings=timings, now=now, accounts=accounts))}


def told_pool(db: Connection, pool_id: int, *, now: datetime) -> dict[str, Any] | None:
    """Return a pool with its story and its diagnosis, or None if there is no such pool."""
    story = pool_story(db, pool_id, now=now)
    return None if story is None else pool_rows.told(story, now=now) | {"why": asdict(of_pool(db, story, now=now))}


def told_account(
    db: Connection, account_id: int, *, timings: Timings, now: datetime, accounts: Collection[int] | None = None
) -> dict[str, Any] | None:
    """Return an account with its story and its diagnosis, or None if `account_story` finds none."""
    story = account_story(db, account_id, accounts=accounts)
    if story is None:
        return None
    why = of_account(db, story, timings=timings, now=now, accounts=accounts)
    return account_rows.told(story) | {"why": asdict(why)}


def of_pod(
    db: Connection, story: PodStory, *, timings: Timings, now: datetime, accounts: Collection[int] | None = None
) -> Diagnosis:
    """Return the diagnosis of a Pod. A caller who may see only some accounts gets no facts about its node."""
    pod = story.pod
    row = db.execute(
        text("SELECT name, namespace, workload, volume_reclaim, start_timeout FROM pools WHERE id = :id"),
        {"id": pod.pool_id},
    ).one()
    quiet = unresponsive.quiet_pods(db, [pod.uid], now=now) if pod.uid is not None else []
    executed = next(iter(story.executions), None)
    started = next((each for each in reversed(story.events) if each.transition == "execute"), None)
    facts = PodFacts(
        pool=row.name,
        workload=row.workload,
        start_timeout=row.start_timeout,
        volume_reclaim=row.volume_reclaim,
        created_at=pod.created_at,
        first_polled_at=pod.first_polled_at,
        polled_at=pod.polled_at,
        over_at=pod.over_at,
        node_gone_at=pod.node_gone_at,
        gone_at=pod.gone_at,
        last_node=pod.last_node,
        listed=_listed(db, row.namespace, row.name, pod.uid) if accounts is None and pod.gone_at is None else None,
        claim=_live_claim(db, story),
        delivered=any(claim.delivered_at is not None for claim in story.claims),
        quiet_until=quiet[0].heard_at + timedelta(seconds=quiet[0].grace) if quiet else None,
        stuck=stuck_pods.is_stuck(db, pod.id, now=now),
        executed=None
        if executed is None
        else Executed(executed.job_id, executed.runner_name, executed.started_at, executed.ended_at),
        end=None if pod.pod_over is None else pod_ends.end_of(pod),
        hooks=story.hooks,
        started=None if started is None else (started.why, started.at),
    )
    periods = Periods(sweep=timings.sweep_every, resume=timings.resume_every, reconcile=timings.pools_every)
    return diagnoses.of_pod(facts, periods=periods, now=now)


def _listed(db: Connection, namespace: str, pool: str, uid: str | None) -> ListedPod | None:
    found = pod_lists.seen(db, namespace=namespace, pool=pool)
    if found is None:
        return None
    at, pods = found
    for pod in pods:
        if pod["uid"] == uid:
            return ListedPod(
                at=at,
                phase=pod["phase"],
                node=pod["node"],
                terminating=pod["terminating"],
                volumes=pod["attachable_volumes"],
                obstacle=pod_lists.obstacle(pod),
            )
    return None


def _live_claim(db: Connection, story: PodStory) -> LiveClaim | None:
    live = next((claim for claim in story.claims if claim.ended_at is None), None)
    if live is None:
        return None
    row = db.execute(text("SELECT runner_seen, runner_seen_at FROM claims WHERE id = :id"), {"id": live.id}).one()
    step = step_of(db, live.id)
    return LiveClaim(
        id=live.id,
        purpose=Purpose(live.purpose),
        state=ClaimState(live.state),
        job_id=live.job_id,
        due_at=step.due_at,
        runner=live.runner_name,
        seen=row.runner_seen,
        seen_at=row.runner_seen_at,
        last_error=step.error,
        postponed=step.postponed,
    )


def of_pool(db: Connection, story: PoolStory, *, now: datetime) -> Diagnosis:
    """Return the diagnosis of a pool."""
    shown = pool_rows.shown(story.pool, now=now)
    status, scaling = shown["status"], shown["scaling"]
    counted = None
    if status is not None:
        numbers = [f"{status[each]} {each}" for each in (*map(str, PodState), "lost", "stale") if status[each]]
        counted = Counted(", ".join(numbers), status["at"])
    return diagnoses.of_pool(
        pool_facts(db, story.pool.id, now=now),
        PoolQueue(story.queued, story.held, story.oldest_queued_at, story.trouble),
        counted,
        None if not scaling else Decision(scaling["verdict"], scaling["why"], _time(scaling.get("at"))),
        fleet=next(map(str, story.obstacles), None),
    )


def of_account(
    db: Connection, story: AccountStory, *, timings: Timings, now: datetime, accounts: Collection[int] | None = None
) -> Diagnosis:
    """Return the diagnosis of an account. A caller who may see only some accounts does not get its share."""
    row = story.account
    oldest = _oldest(db, row.id, timings=timings, now=now, accounts=accounts)
    return diagnoses.of_account(
        AccountFacts(
            id=row.id,
            login=row.login,
            held_account=None if row.access == Access.ALLOWED else held_by(db, row.id, accounts=accounts),
            weight=row.weight,
            budget=Budget(count=row.budget_count, vcpu_millicores=row.budget_vcpu, memory_mib=row.budget_memory),
            usage=story.usage,
            ending=story.ending,
            queued=story.jobs.queued,
            held=story.jobs.held,
            share=_share(db, row.id) if accounts is None else None,
            oldest=None if oldest is None else (oldest.job.id, oldest.job.queued_at, oldest.why),
        )
    )


MOST_EXPLAINED = 20
"""Maximum number of accounts of a list that are explained, because each explanation needs many reads."""


def waits_for(
    db: Connection,
    found: Iterable[Waiting],
    *,
    timings: Timings,
    now: datetime,
    accounts: Collection[int] | None = None,
) -> Mapping[int, str]:
    """Return what each account waits for, by its id: who holds it, or what its oldest queued job waits for.

    Only the `MOST_EXPLAINED` accounts that wait longest are explained, and as many held ones. If `accounts` is given,
    the reader is limited to these accounts.
    """
    every = list(found)
    shut = [each for each in every if each.access != Access.ALLOWED]
    told = {
        each.id: f"The account is {held_words(held_by(db, each.id, accounts=accounts))}."
        for each in shut[:MOST_EXPLAINED]
    }
    waiting = [(each.since, each.id) for each in every if each.since is not None and each.id not in told]
    for _, account_id in sorted(waiting)[:MOST_EXPLAINED]:
        oldest = _oldest(db, account_id, timings=timings, now=now, accounts=accounts)
        if oldest is not None:
            told[account_id] = oldest.why.summary
    return told


def _oldest(
    db: Connection, account_id: int, *, timings: Timings, now: datetime, accounts: Collection[int] | None
) -> JobStory | None:
    found = db.execute(
        text("""
            SELECT id FROM jobs WHERE account_id = :id AND state = 'queued' AND hold_reason IS NULL
            ORDER BY queued_at, id LIMIT 1
        """),
        {"id": account_id},
    ).scalar_one_or_none()
    return None if found is None else job_story(db, found, timings=timings, now=now, accounts=accounts)


def _share(db: Connection, account_id: int) -> float | None:
    found: float | None = db.execute(
        text("""
            SELECT max(weight) FILTER (WHERE id = :id) / sum(weight) FROM accounts
            WHERE id IN (SELECT account_id FROM jobs WHERE state = 'queued' AND hold_reason IS NULL)
        """),
        {"id": account_id},
    ).scalar_one()
    return found


def _time(stored: str | None) -> datetime | None:
    return None if stored is None else datetime.fromisoformat(stored)
