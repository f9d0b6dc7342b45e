"""Pages of the dashboard under load, and webhooks beside 200 open pages.

One web process takes 200 webhooks a second, alone and beside 200 readers, in turns. Each reader has an open page that
asks every two seconds, as a browser does. Half of the readers have the overview open, the others a job or a pool.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.frame import Recorder, Target
from benchmarks.stage import LABELS, Stage
from benchmarks.webhooks import all_accepted, send
from models.browse import api_tokens
from ostler.clock import utcnow
from rules.changes import Author, Via
from rules.token_scopes import TokenScope

_FIRST = 700_000_000
RATE = 200
READERS = 200


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    first = itertools.count(_FIRST, 1_000_000)
    readers, count = recorder.size(READERS, 6), recorder.size(2000, 40)
    with Stage() as stage:
        pool_id = _fill(recorder, stage)
        stage.start_web()
        token = _token(stage)
        url = f"{stage.web_url}/webhooks/github"
        send(stage, url, next(first), count=recorder.size(400, 20), rate=0)  # warm-up
        paths = f"/ui/,/ui/jobs/1,/ui/,/ui/pools/{pool_id}"
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}: alone")
            with recorder.window() as window:
                found = send(stage, url, next(first), count=count, rate=RATE)
            all_accepted(found, count)
            alone = recorder.add("accepted, 200/s", "ms", found["latencies"], window, is_bound=True)
            recorder.say(f"round {number + 1}: beside {readers} pages")
            seconds = count / RATE + 4
            child = stage.module(
                f"readers-{number}",
                "benchmarks.load.pages",
                "--url",
                stage.web_url,
                "--readers",
                str(readers),
                "--seconds",
                str(seconds),
                "--paths",
                paths,
                BENCH_TOKEN=token,
            )
            child.wait_until(partial(_said, stage, child.name, "ready"), timeout=90)
            with recorder.window() as window:
                found = send(stage, url, next(first), count=count, rate=RATE)
                child.wait_until(partial(_said, stage, child.name, "read"), timeout=90)
            all_accepted(found, count)
            beside = recorder.add(
                f"accepted, 200/s, beside {readers} open pages", "ms", found["latencies"], window, bounds=(alone.name,)
            )
            ratio = beside.value("p99") / alone.value("p99")
            recorder.add("p99 of webhooks, with ÷ without pages", "ratio", ratio, window, targets=_most("median", 2))
            _add_pages(recorder, stage.said(child.name, "read")[0], window)
        recorder.lab = {
            "rows": "50 pools, 200 accounts, 5,000 queued jobs and 2,000 completed jobs of the last hour",
            "pages": "half the overview, a quarter a queued job, a quarter a pool; each in a session of its own",
        }


def _said(stage: Stage, name: str, event: str) -> bool:
    return bool(stage.said(name, event))


def _most(statistic: Any, value: float) -> tuple[Target, ...]:
    return (Target(statistic, "≤", value),)


def _add_pages(recorder: Recorder, read: dict[str, Any], window: Any) -> None:
    statuses = read["statuses"]
    if set(statuses) != {"200"}:
        raise RuntimeError(f"every refresh must be answered with the page, but the answers are {statuses}")
    for path, latencies in sorted(read["latencies"].items()):
        name = {"/ui/": "overview", "/ui/jobs/1": "job"}.get(path, "pool")
        recorder.add(f"refresh of a page: {name}", "ms", latencies, window, targets=_most("p99", 150))


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
