"""Latency from GitHub's `queued` to the JIT in the Pod, with 10 jobs per second, warm Pods and fast upstreams."""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks.frame import Recorder, Target, Window
from benchmarks.proc import cpu
from benchmarks.stage import ACCOUNTS, LABELS, Stage
from lab.system import read_log

RATE = 10.0
PHASES = {
    "queued at GitHub → row": ("queued", "seen"),
    "row → claim": ("seen", "claim"),
    "claim → stamped": ("claim", "stamp_on"),
    "stamped → minted": ("stamp_on", "mint"),
    "minted → JIT in the Pod": ("mint", "jit"),
}
"""Phases of the latency. Each phase is the time between two recorded events."""

# The writes of a job between webhook and JIT, in the same transactions as in the product. The rows of the job and of
# the Pod exist already.
_SQL = """\
SELECT nextval('bench') AS n \\gset
BEGIN;
SELECT pg_advisory_xact_lock(1);
INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                    created_at, changed_at, due_at)
    SELECT 'job', :n, id, uid, pool_id, 1, 'orgs/o', 2000, 4096, 'claimed', now(), now(), now()
    FROM runner_pods WHERE name = 'bound-' || :n RETURNING id AS claim \\gset
UPDATE jobs SET state = 'claimed', changed_at = now() WHERE id = :n AND state = 'queued';
INSERT INTO job_events (job_id, at, transition, to_state, who, why) VALUES (:n, now(), 'claim', 'claimed', 'w', 'q');
INSERT INTO claim_events (claim_id, at, transition, to_state, who, why) VALUES (:claim, now(), 'claim', 'c', 'w', 'q');
COMMIT;
UPDATE claims SET leased_until = now(), due_at = now(), stamp_no = 1 WHERE id = :claim;
BEGIN;
UPDATE claims SET stamp = 'on', leased_until = NULL, due_at = now() WHERE id = :claim;
INSERT INTO claim_events (claim_id, at, transition, to_state, who, why) VALUES (:claim, now(), 'stamp', 'c', 'w', 'q');
COMMIT;
BEGIN;
UPDATE claims SET leased_until = now(), due_at = now() WHERE id = :claim;
INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at) VALUES (:claim, 'bound-' || :n, 'open', now());
COMMIT;
BEGIN;
UPDATE mint_attempts SET outcome = 'minted', closed_at = now() WHERE runner_name = 'bound-' || :n;
UPDATE claims SET state = 'minted', runner_name = 'bound-' || :n, jit = '\\x00', minted_at = now() WHERE id = :claim;
INSERT INTO claim_events (claim_id, at, transition, to_state, who, why) VALUES (:claim, now(), 'mint', 'c', 'w', 'q');
SELECT pg_notify('bound', 'minted');
COMMIT;
BEGIN;
UPDATE claims SET state = 'delivered', delivered_at = now() WHERE id = :claim;
INSERT INTO claim_events (claim_id, at, transition, to_state, who, why) VALUES (:claim, now(), 'del', 'c', 'w', 'q');
COMMIT;
"""


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    jobs = recorder.size(150, 8)
    rounds = recorder.size(3, 1)
    with Stage() as stage:
        pool = stage.add_pool("bench")
        stage.start_github()
        stage.start_web()
        worker = stage.start_worker("worker", queues="dispatch,github,pools,retire,sweeps", threads=16)
        _warm(stage, pool, recorder.size(40, 2))
        for number in range(rounds):
            recorder.say(f"round {number + 1}")
            _round(recorder, stage, pool, f"polls-{number}", jobs=jobs)
        worker.stop()
        recorder.say("the bounds")
        _bounds(recorder, stage, jobs=jobs, rounds=rounds)
        recorder.lab = {
            "API server": "answers at once, no cluster behind it",
            "GitHub": "the lab's; it sends the webhooks and answers without added delay",
            "cost of the lab's GitHub and API server": _upstreams(stage, jobs * rounds),
        }


def _warm(stage: Stage, pool: int, jobs: int) -> None:
    """Warm up every process, so that connections, tokens, keys and query plans exist."""
    pods = stage.add_pods(pool, jobs)
    stage.start_polls("polls-warm", pods, ramp=0)
    stage.wait(lambda: stage.offered() >= jobs, timeout=60, what="every offer")
    _queue(stage, jobs, rate=50)
    stage.wait(lambda: len(stage.said("polls-warm", "jit")) == jobs, timeout=60, what="every JIT of the warm-up")


def _round(recorder: Recorder, stage: Stage, pool: int, polls: str, *, jobs: int) -> None:
    pods = stage.add_pods(pool, jobs + 20)
    child = stage.start_polls(polls, pods, ramp=2)
    stage.wait(lambda: stage.offered() >= len(pods), timeout=60, what="every offer")
    before = {name: cpu(stage.children[name].pid) for name in ("web", "worker")}
    with recorder.window() as window:
        wanted = set(_queue(stage, jobs, rate=RATE))
        stage.wait(lambda: len(stage.said(polls, "jit")) >= jobs, timeout=60, what="every JIT")
    used = {name: (cpu(stage.children[name].pid) - before[name]) / jobs * 1000 for name in before}
    child.kill()
    _record(recorder, window, _times(stage, polls, wanted))
    for name, milliseconds in used.items():
        recorder.add(
            f"CPU of {name} per job, webhook to JIT",
            "ms",
            milliseconds,
            window,
            bounds=("CPU of three no-op tasks",) if name == "worker" else (),
        )
    stage.wait(lambda: stage.offered() == 0, timeout=60, what="the end of the offers")


def _queue(stage: Stage, jobs: int, *, rate: float) -> list[int]:
    """Queue jobs at the lab's GitHub at a rate, and return their ids."""
    found: list[int] = []
    began = time.monotonic()
    for number in range(jobs):
        if (left := began + number / rate - time.monotonic()) > 0:
            time.sleep(left)
        login = ACCOUNTS[number % len(ACCOUNTS)][1]
        body = {"repository": f"{login}/app", "labels": list(LABELS), "duration_seconds": 1}
        found += stage.github("POST", "/jobs", body)["ids"]
    return found


def _times(stage: Stage, polls: str, wanted: set[int]) -> dict[int, dict[str, float]]:
    """Return the Unix time of each event of each job.

    The lab's GitHub and the polling process record the times of the first and the last event. Ostler records the other
    times.
    """
    found: dict[int, dict[str, float]] = {job: {} for job in wanted}
    for event in read_log(stage.folder / "github.jsonl"):
        if event["event"] == "job_queued" and event["job"] in found:
            found[event["job"]]["queued"] = event["at"]
    claims = {
        row.id: row.job_id
        for row in stage.rows("SELECT id, job_id FROM claims WHERE job_id = ANY(:ids)", ids=sorted(wanted))
    }
    for event in stage.said(polls, "jit"):
        found[claims[event["claim"]]]["jit"] = event["at"]
    for row in stage.rows(
        "SELECT job_id, extract(epoch FROM at) AS at FROM job_events WHERE job_id = ANY(:ids) "
        "AND transition = 'job_seen'",
        ids=sorted(wanted),
    ):
        found[row.job_id]["seen"] = float(row.at)
    for row in stage.rows(
        "SELECT claim_id, transition, extract(epoch FROM at) AS at FROM claim_events WHERE claim_id = ANY(:ids)",
        ids=sorted(claims),
    ):
        found[claims[row.claim_id]][row.transition] = float(row.at)
    return found


def _record(recorder: Recorder, window: Window, times: Mapping[int, Mapping[str, float]]) -> None:
    recorder.add(
        "queued → JIT in the Pod",
        "ms",
        [(each["jit"] - each["queued"]) * 1000 for each in times.values()],
        window,
        targets=(Target("p50", "<", 60), Target("p99", "<", 250)),
        bounds=("three no-op tasks", "raw SQL of the claim path"),
        note="from the time in the log of the lab's GitHub to the time that the polling process reports",
    )
    for name, (start, end) in PHASES.items():
        both = [each for each in times.values() if start in each and end in each]
        recorder.add(f"… {name}", "ms", [(each[end] - each[start]) * 1000 for each in both], window)


def _bounds(recorder: Recorder, stage: Stage, *, jobs: int, rounds: int) -> None:
    noop = stage.module("noop", "benchmarks.load.noop", "worker")
    stage.run("benchmarks.load.noop", "send", "--count", str(recorder.size(20, 3)), "--rate", "20")
    for _ in range(rounds):
        before = cpu(noop.pid)
        with recorder.window() as window:
            times = stage.run("benchmarks.load.noop", "send", "--count", str(jobs), "--rate", str(RATE))
        recorder.add("three no-op tasks", "ms", times, window, is_bound=True)
        recorder.add("CPU of three no-op tasks", "ms", (cpu(noop.pid) - before) / jobs * 1000, window, is_bound=True)
    _prepare_sql(stage, jobs * rounds)
    for _ in range(rounds):
        with recorder.window() as window:
            milliseconds, _ = stage.pgbench(_SQL, clients=1, transactions=jobs)
        recorder.add("raw SQL of the claim path", "ms", milliseconds, window, is_bound=True)


def _prepare_sql(stage: Stage, jobs: int) -> None:
    stage.rows("CREATE SEQUENCE bench")
    stage.rows(
        "INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at) "
        "VALUES (1, 'org', 1, 1, 1, now())"
    )
    stage.rows(
        """
        INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, pool_id,
                          queued_at, changed_at)
        SELECT n, 1, 'o/a', 'orgs/o', 1, 1, 'b', '{}', 'queued', (SELECT min(id) FROM pools), now(), now()
        FROM generate_series(1, :jobs) n
        """,
        jobs=jobs,
    )
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT (SELECT min(id) FROM pools), 'ostler-runners', 'bound-' || n, 'bound-' || n, 'a', 'h', now()
        FROM generate_series(1, :jobs) n
        """,
        jobs=jobs,
    )


def _upstreams(stage: Stage, jobs: int) -> str:
    github, server = (cpu(stage.children[name].pid) / jobs * 1000 for name in ("github", "upstream"))
    return f"about {github:.0f} ms and {server:.0f} ms of CPU a job, on the same cores"
