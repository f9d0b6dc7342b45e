"""Rate and latency of accepted webhooks: alone, beside 10,000 held polls, and 2,000 in one second."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.frame import Recorder, Target
from benchmarks.load.hooks import make
from benchmarks.proc import cpu
from benchmarks.stage import LABELS, Stage
from lab.processes import Child, free_port

_FIRST = 500_000_000

# What one `queued` webhook writes, as three statements of one transaction.
_SQL = """\
BEGIN;
SELECT nextval('bench') AS n \\gset
INSERT INTO deliveries (guid, event, action, job_id, outcome, received_at)
    VALUES ('bench-' || :n, 'workflow_job', 'queued', :n, 'accepted', now()) ON CONFLICT (guid) DO NOTHING;
INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, workflow_name,
                  head_branch, labels, state, pool_id, priority, queued_at, changed_at)
    VALUES (:n, 1, 1, 'org/app', 'orgs/org', 1, 1, 'build', 'CI', 'main', '{self-hosted,linux}', 'queued', 1, 0,
            now(), now()) ON CONFLICT (id) DO NOTHING;
INSERT INTO job_events (job_id, at, transition, to_state, who, why) VALUES (:n, now(), 'job_seen', 'queued', 'w', 'q');
COMMIT;
"""


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    first = itertools.count(_FIRST, 1_000_000)
    with Stage() as stage:
        pool = stage.add_pool("bench")
        stage.rows(
            "INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at) "
            "VALUES (1, 'org', 1, 1, 1, now())"
        )
        stage.rows("CREATE SEQUENCE bench START 1000")
        stage.rows("SELECT setval('pools_id_seq', greatest(:pool, 1))", pool=pool)
        web = stage.start_web()
        bare_port = free_port()
        bare = stage.module("bare", "benchmarks.load.bare", "--port", str(bare_port))
        bare_url = f"http://127.0.0.1:{bare_port}/webhooks/github"
        url = f"{stage.web_url}/webhooks/github"
        body = make(1, first=1, labels=LABELS, secret=b"x")[0].body
        recorder.lab = {"body of a webhook": f"{len(body)} bytes", "synchronous_commit": "on, fsync on"}
        send(stage, url, next(first), count=recorder.size(400, 20), rate=0)  # warm-up
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}")
            _at_200(recorder, stage, url, bare_url, next(first))
            _flat_out(recorder, stage, url, bare_url, (web, bare), next(first))
        for _ in range(recorder.size(3, 1)):
            _burst(recorder, stage, url, next(first))
        recorder.say("beside held polls")
        _beside_polls(recorder, stage, pool, url, first)


def _at_200(recorder: Recorder, stage: Stage, url: str, bare_url: str, first: int) -> None:
    count = recorder.size(2000, 40)
    with recorder.window() as window:
        found = send(stage, url, first, count=count, rate=200)
    all_accepted(found, count)
    recorder.add(
        "accepted, 200/s",
        "ms",
        found["latencies"],
        window,
        targets=(Target("p99", "<", 50),),
        bounds=("bare ASGI app, 200/s", "raw SQL, 200/s"),
        note="from the time when the webhook was due to be sent until the end of its answer; the rows are committed "
        "before the answer",
    )
    with recorder.window() as window:
        found = send(stage, bare_url, first, count=count, rate=200)
    recorder.add("bare ASGI app, 200/s", "ms", found["latencies"], window, is_bound=True)
    with recorder.window() as window:
        times, _ = stage.pgbench(_SQL, clients=8, seconds=recorder.size(5, 1), rate=200)
    recorder.add("raw SQL, 200/s", "ms", times, window, is_bound=True)


def _flat_out(
    recorder: Recorder, stage: Stage, url: str, bare_url: str, servers: tuple[Child, Child], first: int
) -> None:
    web, bare = servers
    count = recorder.size(4000, 60)
    for name, to, child, bound in (("Ostler", url, web, False), ("bare ASGI app", bare_url, bare, True)):
        before = cpu(child.pid)
        with recorder.window() as window:
            found = send(stage, to, first, count=count, rate=0)
        all_accepted(found, count)
        used = (cpu(child.pid) - before) / count * 1000
        recorder.add(
            "accepted, flat out" if not bound else f"{name}, flat out",
            "/s",
            count / found["seconds"],
            window,
            bounds=() if bound else ("bare ASGI app, flat out", "raw SQL, flat out, 1 connection", "raw SQL, 8"),
            is_bound=bound,
            note="" if bound else "64 senders; each sends its next webhook as soon as its last webhook is answered",
        )
        recorder.add(
            "CPU of web per webhook" if not bound else f"CPU per webhook, {name}",
            "ms",
            used,
            window,
            bounds=() if bound else ("CPU per webhook, bare ASGI app",),
            is_bound=bound,
        )
    for clients, name in ((1, "raw SQL, flat out, 1 connection"), (8, "raw SQL, 8")):
        with recorder.window() as window:
            _, rate = stage.pgbench(_SQL, clients=clients, seconds=recorder.size(3, 1))
        recorder.add(name, "/s", rate, window, is_bound=True)


def _burst(recorder: Recorder, stage: Stage, url: str, first: int) -> None:
    count = recorder.size(2000, 50)
    with recorder.window() as window:
        found = send(stage, url, first, count=count, rate=count)
    kept = int(
        stage.scalar("SELECT count(*) FROM jobs WHERE id >= :first AND id < :end", first=first, end=first + count)
    )
    recorder.add(
        "burst of 2,000 in 1 s: answered", "ms", found["latencies"], window, targets=(Target("max", "<", 5000),)
    )
    recorder.add(
        "burst of 2,000 in 1 s: lost",
        "rows",
        count - min(kept, found["statuses"].get("202", 0)),
        window,
        targets=(Target("median", "=", 0),),
        note="the larger of two numbers: webhooks without the answer 202, and webhooks without a row",
    )


def _beside_polls(recorder: Recorder, stage: Stage, pool: int, url: str, first: Any) -> None:
    count = recorder.size(10_000, 50)
    # The Pods of this pool have other labels, so that no job of a webhook uses them.
    other = stage.add_pool("idle", ("self-hosted", "idle"))
    pods = stage.add_pods(other, count)
    polls = stage.start_polls("polls", pods, ramp=recorder.size(20, 1))
    stage.wait(lambda: stage.offered() >= count, timeout=180, what="every offer")
    for _ in range(recorder.size(3, 1)):
        sent = recorder.size(2000, 40)
        with recorder.window() as window:
            found = send(stage, url, next(first), count=sent, rate=200)
        all_accepted(found, sent)
        recorder.add(
            "accepted, 200/s, beside 10,000 held polls",
            "ms",
            found["latencies"],
            window,
            targets=(Target("p99", "<", 150),),
            bounds=("bare ASGI app, 200/s",),
        )
    polls.kill()
    del pool


def send(stage: Stage, url: str, first: int, *, count: int, rate: float) -> dict[str, Any]:
    """Send `count` webhooks at this rate (0: flat out), and return their latencies and statuses."""
    found: dict[str, Any] = stage.run(
        "benchmarks.load.hooks",
        "--url",
        url,
        "--count",
        str(count),
        "--first",
        str(first),
        "--labels",
        ",".join(LABELS),
        "--rate",
        str(rate),
        "--senders",
        "64",
    )
    return found


def all_accepted(found: dict[str, Any], count: int) -> None:
    """Raise RuntimeError if not every webhook was accepted."""
    if found["statuses"] != {"202": count}:
        raise RuntimeError(
            f"{count} answers 202 were expected, but the statuses of the answers are {found['statuses']}"
        )
