"""Pages of the dashboard under load, and webhooks beside 200 open pages.

One web process takes 200 webhooks a second, alone and beside 200 readers, in turns. Each reader has an open page with a
stream. Half of the readers have the overview open, the others a job or a pool. Then the process holds 2,000 polls and
takes the same webhooks, while one reader opens each page in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.frame import Recorder, Target
from benchmarks.stage import LABELS, Stage
from benchmarks.webhooks import all_accepted, send
from lab.processes import Child
from models import api_tokens
from ostler.clock import utcnow
from rules.changes import Author, Via
from rules.token_scopes import TokenScope
from web.ui.streams import MOST_OF_TOKEN

_FIRST = 700_000_000
RATE = 200
READERS = 200
POLLS = 2000


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    first = itertools.count(_FIRST, 1_000_000)
    readers, count = recorder.size(READERS, 6), recorder.size(2000, 40)
    seconds = max(2.0, count / RATE)
    with Stage() as stage:
        pool_id = _fill(recorder, stage)
        # The idle Pods have other labels, so that no job of a webhook uses them.
        pods = stage.add_pods(stage.add_pool("idle", ("self-hosted", "idle")), recorder.size(POLLS, 40))
        stage.start_web()
        tokens = [_token(stage) for _ in range(2 * READERS // MOST_OF_TOKEN)]
        url = f"{stage.web_url}/webhooks/github"
        send(stage, url, next(first), count=recorder.size(400, 20), rate=0)  # warm-up
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}: alone")
            with recorder.window() as window:
                found = send(stage, url, next(first), count=count, rate=RATE)
            all_accepted(found, count)
            alone = recorder.add("accepted, 200/s", "ms", found["latencies"], window, is_bound=True)
            recorder.say(f"round {number + 1}: beside {readers} pages")
            paths = ("/ui/", "/ui/jobs/1", "/ui/", f"/ui/pools/{pool_id}")
            child = _readers(stage, f"readers-{number}", tokens, readers=readers, seconds=seconds, paths=paths)
            with recorder.window() as window:
                found = send(stage, url, next(first), count=count, rate=RATE)
                read = _read(stage, child)
            all_accepted(found, count)
            beside = recorder.add(
                f"accepted, 200/s, beside {readers} open pages", "ms", found["latencies"], window, bounds=(alone.name,)
            )
            ratio = beside.value("p99") / alone.value("p99")
            recorder.add("p99 of webhooks, with ÷ without pages", "ratio", ratio, window, targets=_most("median", 2))
            recorder.say(f"{read['events']} events of {read['bytes'] / 1024:.0f} KiB")
        polls = stage.start_polls("polls", pods, ramp=recorder.size(10, 1))
        stage.wait(lambda: stage.offered() >= len(pods), timeout=180, what="every offer")
        opens = {
            "overview": "/ui/",
            "jobs": "/ui/jobs",
            "job": "/ui/jobs/1",
            "pool": f"/ui/pools/{pool_id}",
            "Pod": f"/ui/pods/{pods[0].uid}",
            "account": "/ui/accounts/1",
            "sweeps": "/ui/sweeps",
            "repairs": "/ui/repairs",
        }
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}: pages beside {len(pods)} polls")
            child = _readers(stage, f"opens-{number}", tokens, readers=2, seconds=seconds, opens=tuple(opens.values()))
            with recorder.window() as window:
                found = send(stage, url, next(first), count=count, rate=RATE)
                read = _read(stage, child)
            all_accepted(found, count)
            for name, path in opens.items():
                recorder.add(f"page: {name}", "ms", read["latencies"][path], window, targets=_most("p95", 150))
        polls.kill()
        recorder.lab = {
            "rows": "50 pools, 200 accounts, 5,000 queued jobs and 2,000 completed jobs of the last hour",
            "open pages": "half the overview, a quarter a queued job, a quarter a pool; each in a session of its own",
            "opened pages": f"{len(pods)} held polls and {RATE} webhooks per second; 16 pages per second in turn",
        }


def _readers(
    stage: Stage,
    name: str,
    tokens: Sequence[str],
    *,
    readers: int,
    seconds: float,
    paths: Sequence[str] = ("/ui/",),
    opens: Sequence[str] = (),
) -> Child:
    """Start readers, and return their process when every stream has brought its page."""
    child = stage.module(
        name,
        "benchmarks.load.pages",
        "--url",
        stage.web_url,
        "--readers",
        str(readers),
        "--seconds",
        str(seconds),
        "--paths",
        ",".join(paths),
        "--opens",
        ",".join(opens),
        BENCH_TOKENS=",".join(tokens),
    )
    child.wait_until(partial(_said, stage, name, "ready"), timeout=90)
    return child


def _read(stage: Stage, child: Child) -> dict[str, Any]:
    """Return what the readers saw. Raises RuntimeError if a stream ended, or a page was not answered."""
    child.wait_until(partial(_said, stage, child.name, "read"), timeout=90)
    read: dict[str, Any] = stage.said(child.name, "read")[0]
    if set(read["statuses"]) - {"200"}:
        raise RuntimeError(f"every page must be answered and every stream stay open, but: {read['statuses']}")
    return read


def _said(stage: Stage, name: str, event: str) -> bool:
    return bool(stage.said(name, event))


def _most(statistic: Any, value: float) -> tuple[Target, ...]:
    return (Target(statistic, "≤", value),)


def _token(stage: Stage) -> str:
    now = utcnow()
    with stage.engine.begin() as db:
        _, token = api_tokens.create(
            db,
            name="readers",
            scopes=(TokenScope.READ,),
            by=Author("benchmark", Via.SHELL, now),
            expires_at=now + timedelta(days=1),
        )
    return token.reveal()


def _fill(recorder: Recorder, stage: Stage) -> int:
    """Insert the rows that the pages show, and return the id of a pool."""
    pools = [stage.add_pool(f"pool-{number}", (*LABELS, f"l-{number}")) for number in range(recorder.size(50, 3))]
    stage.rows(
        """
        INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
        SELECT n, 'account-' || n, 100, 1000000, 1000000, now() FROM generate_series(1, 200) n
        """
    )
    stage.rows(
        """
        INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels, state,
                          pool_id, priority, queued_at, completed_at, changed_at)
        SELECT n, 1 + n % 200, 1, 'org/app-' || n % 300, 'orgs/org', 1, 1, 'build', '{}',
               CASE WHEN n <= :queued THEN 'queued' ELSE 'completed' END,
               (CAST(:pools AS bigint[]))[1 + n % cardinality(CAST(:pools AS bigint[]))], 0,
               now() - random() * interval '1 hour', CASE WHEN n > :queued THEN now() END, now()
        FROM generate_series(1, :count) n
        """,
        pools=pools,
        queued=recorder.size(5000, 100),
        count=recorder.size(7000, 140),
    )
    stage.rows(
        """
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
        SELECT id, 'r-' || id, account_id, 1, 1, queued_at + interval '9 s', now() FROM jobs WHERE state = 'completed'
        """
    )
    stage.system("VACUUM ANALYZE")
    return pools[0]
