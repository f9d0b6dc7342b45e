"""The operator's commands: only the database's URL is set."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from cli import main
from lab.redis import Redis
from models import api_tokens
from models.db.engine import transaction
from models.pools.pod_rows import OVER
from ostler.clock import utcnow
from ostler.secrets import Secret
from tests.database import Database
from tests.integration.models.webhook_rows import add_claim, add_pool, deliver, queued
from tests.integration.web.api.conftest import serving
from tests.rows import run_sql


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_command(environment: Mapping[str, str], *arguments: str) -> Done:
    """Run a command in this process, because each new process would take a second."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["ostler", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


@dataclass
class Operator:
    """An operator at a shell."""

    database: Database
    redis_url: str | None = None

    def environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST", "KUBE"))}
        env["HOME"] = "/nonexistent"  # a kubeconfig of whoever runs the tests is not asked
        env["OSTLER_DATABASE_URL"] = self.database.url.reveal()
        return env if self.redis_url is None else env | {"OSTLER_REDIS_URL": self.redis_url}

    def run(self, *arguments: str, **changes: str) -> Done:
        """Run a command."""
        return run_command(self.environment() | changes, *arguments)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def execute(self, statement: str, **values: Any) -> Any:
        return run_sql(self.database.engine, statement, **values)


@pytest.fixture
def operator(database: Database) -> Operator:
    pool = add_pool(database.engine, "linux")
    deliver(database.engine, queued(11), queued(12, name="[red]deploy[/red]"))
    deliver(database.engine, queued(13, labels=("gpu",), owner_id=88, owner_login="globex", repository="globex/r"))
    add_claim(database.engine, pool, 11)
    return Operator(database)


def test_jobs_are_listed_and_filtered_for_people_and_for_scripts(operator: Operator) -> None:
    shown = operator.run("jobs")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split() == [
        "job",
        "repository",
        "name",
        "state",
        "hold",
        "pool",
        "age",
        "account",
        "runner",
    ]
    assert "[red]deploy[/red]" in shown.stdout  # what others wrote is shown, not obeyed
    assert [job["id"] for job in operator.json("jobs")] == [13, 12, 11]
    assert [job["id"] for job in operator.json("jobs", "--held")] == [13]
    assert [job["id"] for job in operator.json("jobs", "--account", "GLOBEX")] == [13]
    assert [job["id"] for job in operator.json("jobs", "--state", "queued", "--account", "77")] == [12]
    assert [job["id"] for job in operator.json("jobs", "--repository", "acme/app", "--limit", "1")] == [12]


def test_jobs_are_filtered_by_age_label_and_result_in_both_orders(operator: Operator) -> None:
    operator.execute("UPDATE jobs SET queued_at = now() - CASE WHEN id = 11 THEN interval '2 days' ELSE '0' END")
    operator.execute(
        "UPDATE jobs SET state = 'completed', completed_at = now(), conclusion = 'timed_out' WHERE id = 13"
    )
    for options, expected in (
        (("--since", "1d"), ["13", "12"]),
        (("--label", "GPU"), ["13"]),
        (("--failed",), ["13"]),
        (("--sort", "oldest"), ["11", "12", "13"]),
        (("--sort", "oldest", "--limit", "1"), ["11"]),
        (("--failed", "--label", "linux"), []),
    ):
        assert operator.run("jobs", *options, "-o", "name").stdout.split() == expected, options
    assert operator.run("jobs", "--sort", "name").returncode == 2
    assert "--since" in operator.run("jobs", "--since", "soon").stderr


def test_failed_pods_that_are_gone_are_listed_with_their_ends(operator: Operator) -> None:
    operator.execute("UPDATE runner_pods SET exit_reason = 'OOMKilled', gone_at = now()")
    assert operator.run("pods").stdout.strip() == "no Pods"
    assert "it was killed for lack of memory" in operator.run("pods", "--failed").stdout
    operator.execute(
        "UPDATE runner_pods SET exit_reason = NULL, deletion_at = now(), deleted_first = true, deletion_sent_at = now()"
    )
    assert operator.run("pods", "--failed").stdout.strip() == "no Pods"  # Ostler deleted it


def test_pods_and_repairs_are_filtered_by_age_and_result(operator: Operator) -> None:
    ((pod,),) = operator.execute("SELECT name FROM runner_pods")
    operator.execute("UPDATE runner_pods SET created_at = now() - interval '2 days'")
    assert operator.run("pods", "-o", "name").stdout.split() == [pod]
    assert operator.run("pods", "--since", "1d", "-o", "name").stdout == ""
    assert operator.run("pods", "--failed", "-o", "name").stdout == ""
    for failure in (
        "UPDATE runner_pods SET runner_exit_code = 137",
        "UPDATE runner_pods SET exit_reason = 'Evicted'",
        "UPDATE runner_pods SET node_gone_at = now()",
        "UPDATE runner_pods SET deletion_at = now(), deleted_first = true",
        "UPDATE runner_pods SET events_read_at = now()",
    ):
        operator.execute(failure)
        assert operator.run("pods", "--failed", "-o", "name").stdout.split() == [pod], failure
        operator.execute(
            "UPDATE runner_pods SET runner_exit_code = 0, exit_reason = 'Completed', node_gone_at = NULL, "
            "deletion_at = NULL, deleted_first = NULL, events_read_at = NULL"
        )
        assert operator.run("pods", "--failed", "-o", "name").stdout == "", failure
    operator.execute(
        "INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by) "
        "SELECT 'resume', 1, now(), 'w', 'w', '{}', false, false, 'own', o, now() "
        "FROM unnest(ARRAY['failed', 'verified']) o (o)"
    )
    (failed, verified) = operator.run("repairs", "--sort", "oldest", "-o", "name").stdout.split()
    assert operator.run("repairs", "--failed", "-o", "name").stdout.split() == [failed]
    assert operator.run("repairs", "--sort", "newest", "-o", "name").stdout.split() == [verified, failed]


def test_held_account_is_told_with_who_held_it_and_since_when(operator: Operator) -> None:
    me = operator.run("account", "hold", "acme")
    assert me.stdout == "acme (77) is held: 1 of its Pods are in use, and 1 of its jobs are queued\n", me.stderr
    assert operator.json("account", "show", "acme")["access"] == "held"
    (change,) = operator.json("changes", "--kind", "account")
    since = change["at"].replace("T", " ")[:19]
    who = f"{change['who']} (shell)"
    for hold in (None, "unknown_account"):  # before and after the sweep `rematch` has held the job
        operator.execute("UPDATE jobs SET hold_reason = :hold WHERE id = 12", hold=hold)
        why = operator.json("job", "12")["why"]
        assert why["summary"] == f"Account acme (77) is held by {who} since {since} UTC."
        assert "ostler account allow acme" in why["cure"]
    operator.execute("DELETE FROM changes")
    assert operator.json("job", "12")["why"]["summary"] == "Account acme (77) is not allowed."
    assert operator.run("account", "allow", "acme").returncode == 0
    operator.execute("UPDATE jobs SET hold_reason = NULL WHERE id = 12")
    assert operator.json("job", "12")["why"]["waits_for"] != "access"
    assert operator.run("account", "hold", "nobody").returncode == 1


def test_every_list_names_the_jobs_and_the_persistent_runner_that_executes_them(operator: Operator) -> None:
    (claim,) = operator.execute(
        "UPDATE claims SET purpose = 'register', state = 'delivered', job_id = NULL, runner_name = 'linux-1-ab' "
        "RETURNING id, (SELECT name FROM runner_pods WHERE id = runner_pod_id) AS pod"
    )
    operator.execute(
        """
        INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
        SELECT id, 'linux-1-ab', :claim, 77, 2000, 4096, now(), CASE WHEN id = 11 THEN now() END
        FROM jobs WHERE id IN (11, 12) ORDER BY id
        """,
        claim=claim.id,
    )
    assert [each["runner"] for each in operator.json("jobs")] == [None, "linux-1-ab", "linux-1-ab"]
    assert "linux-1-ab" in operator.run("jobs", "--wide").stdout
    assert operator.json("job", "12")["runner"] == "linux-1-ab"
    (listed,) = operator.json("claims")
    assert (listed["job_id"], listed["executes_job_id"]) == (None, 12)
    assert " 12 " in operator.run("claims").stdout
    pod = operator.json("pod", claim.pod)
    assert [(each["job_id"], each["ended_at"] is None) for each in pod["executions"]] == [(12, True), (11, False)]
    assert "Jobs: 12 (runs, runner linux-1-ab), 11 (ended, runner" in operator.run("pod", claim.pod).stdout


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("jobs",), ["13", "12", "11"]),
        (("claims",), ["1"]),
        (("pool", "list"), None),
        (("account", "list"), None),
        (("sweep", "list"), None),
        (("gates",), ["github", "kubernetes"]),
        (("repairs",), []),
        (("token", "list"), []),
    ],
)
def test_every_list_has_names_alone_and_a_wide_form(
    operator: Operator, command: tuple[str, ...], names: list[str] | None
) -> None:
    named = operator.run(*command, "-o", "name")
    assert named.returncode == 0, named.stderr
    assert all(line == line.strip() and " " not in line for line in named.stdout.splitlines())
    assert names is None or named.stdout.splitlines() == names
    wide, other = operator.run(*command, "--wide").stdout, operator.run(*command, "-o", "wide").stdout
    assert wide.splitlines()[0].split() == other.splitlines()[0].split()
    whole, short = operator.run(*command, "--json").stdout, operator.run(*command, "-o", "json").stdout
    ages = re.compile(r'(_seconds": )[0-9.]+')
    assert ages.sub(r"\1", short) == ages.sub(r"\1", whole)
    both = operator.run(*command, "--json", "-o", "name")
    assert (both.returncode, "json and name cannot be used together" in both.stderr) == (2, True)


def test_a_job_is_explained_with_its_story(operator: Operator) -> None:
    held = operator.run("job", "13")
    assert held.returncode == 0, held.stderr
    words = " ".join(held.stdout.split())
    assert "No pool serves the job: its labels are gpu." in words
    assert "which lacks the labels gpu" in words
    assert "What helps: Add a RunnerPool" in words
    assert "webhook" in held.stdout
    assert "labels: gpu" in words
    assert re.search(r"^check +result +evidence +source +at$", held.stdout, re.MULTILINE)
    assert re.search(r"^pool +waits +No pool serves the job: .* postgres +-$", held.stdout, re.MULTILINE)
    operator.execute(
        "UPDATE jobs SET queued_at = '2026-01-01T12:00Z', started_at = '2026-01-01T12:00:04Z', state = 'completed',"
        " completed_at = '2026-01-01T12:01:09Z', hold_reason = NULL, conclusion = 'success' WHERE id = 13"
    )
    assert "account globex, waited 4s, ran 1m5s" in operator.run("job", "13").stdout
    story = operator.json("job", "11")
    assert story["why"]["waits_for"] == "start"
    assert [claim["state"] for claim in story["claims"]] == ["delivered"]
    assert [event["transition"] for event in story["events"]] == ["job_seen"]


def test_claims_and_pools_are_listed(operator: Operator) -> None:
    (claim,) = operator.json("claims")
    assert (claim["job_id"], claim["state"]) == (11, "delivered")
    assert "jit" not in claim
    assert operator.json("claims", "--state", "ended") == []
    assert operator.json("claims", "--job", "11") == [claim]
    (pool,) = operator.json("pool", "list")
    assert (pool["counts"]["queued"], pool["counts"]["held"]) == (1, 0)
    assert pool["status"] is None, "no reconcile has counted its Pods"
    assert operator.json("claims", "--pool", pool["name"]) == [claim]
    for command in (("claims",), ("pool", "list"), ("pool", "list", "--why")):
        assert operator.run(*command).returncode == 0


def test_json_of_pools_and_claims_has_the_units_of_the_api(operator: Operator) -> None:
    (claim,), (pool,) = operator.json("claims"), operator.json("pool", "list")
    with serving(operator.database) as api:
        (claim_of_api,), (pool_of_api,) = (api.get(path).json()["items"] for path in ("/claims", "/pools"))
    assert (pool["vcpu"], pool["memory_gib"]) == (2.0, 4.0)
    for ours, theirs in ((claim, claim_of_api), (pool, pool_of_api)):
        assert {name: ours[name] for name in ("vcpu", "memory_gib")} == {
            name: theirs[name] for name in ("vcpu", "memory_gib")
        }
        assert "memory" not in ours


def test_a_pool_says_how_it_stands_and_what_the_autoscaler_made_of_it(operator: Operator) -> None:
    assert "by hand" in operator.run("pool", "list").stdout
    assert "`ostler pool scale` sets the replicas" in operator.run("pool", "list", "--why").stdout
    conditions = [
        {"type": "Ready", "status": "False", "reason": "PodsMissing", "message": "fewer Pods than wanted"},
        {"type": "Degraded", "status": "True", "reason": "ImagePullBackOff", "message": "no such image"},
    ]
    operator.execute(
        """
        UPDATE pools SET autoscaled = true, min_warm = 2, max_replicas = 30, status = CAST(:status AS jsonb),
               scaling = CAST(:scaling AS jsonb), scaled_up_at = now()
        """,
        status=json.dumps({"conditions": conditions}),
        scaling=json.dumps(
            {"verdict": "cooling", "why": "3 with jobs + 0 queued + 2 warm = 5; not before 10:00:00 UTC"}
        ),
    )
    words = operator.run("pool", "list").stdout
    assert "+2 warm, at most 30" in words
    assert "degraded" in words
    assert "ImagePullBackOff: no such image" in words
    assert "PodsMissing" not in words
    decision = operator.run("pool", "list", "--why").stdout
    assert "cooling" in decision
    assert "3 with jobs + 0 queued + 2 warm = 5" in decision
    (pool,) = operator.json("pool", "list")
    assert [each["type"] for each in pool["conditions"]] == ["Ready", "Degraded"]
    starting = {"type": "Ready", "status": "False", "reason": "PodsStarting", "message": "Pods start"}
    operator.execute("UPDATE pools SET status = CAST(:status AS jsonb)", status=json.dumps({"conditions": [starting]}))
    words = operator.run("pool", "list").stdout
    assert "starting" in words
    assert "PodsStarting" not in words, "nothing is wrong"
    operator.execute("UPDATE pools SET paused = true")
    assert "paused" in operator.run("pool", "list").stdout
    operator.execute("UPDATE pools SET draining = true")
    assert "draining" in operator.run("pool", "list").stdout


READY = {
    "type": "Ready",
    "status": "True",
    "reason": "PodsAvailable",
    "message": "Enough Pods are available",
    "lastTransitionTime": "2026-11-22T10:00:00Z",
}
COUNTED = {
    "observedGeneration": 3,
    "replicas": 9,
    "starting": 3,
    "warm": 2,
    "busy": 1,
    "retiring": 2,
    "unresponsive": 1,
}


def count_pods(operator: Operator, *, ago: str = "4 s", **more: Any) -> None:
    """Store a status as a reconcile does. The name of the pool becomes `linux`."""
    stored = {**COUNTED, "stale": 4, "lost": 0, "conditions": [READY], **more}
    operator.execute(
        "UPDATE pools SET name = 'linux', status = CAST(:status AS jsonb), status_at = now() - interval '1 day', "
        "status_checked_at = now() - CAST(:ago AS interval)",
        status=json.dumps(stored),
        ago=ago,
    )


def test_pool_list_shows_every_pod_in_one_number(operator: Operator) -> None:
    count_pods(operator, lost=2)
    head, row = (re.split(r"  +", line) for line in operator.run("pool", "list").stdout.splitlines())
    cells = dict(zip(head, row, strict=True))
    assert {name: cells[name] for name in ("pods", "starting", "warm", "reserved", "busy", "other", "queued")} == {
        "pods": "9",
        "starting": "3",
        "warm": "2",
        "reserved": "0",
        "busy": "1",
        "other": "2 retiring, 1 unresponsive, 2 lost",
        "queued": "1",
    }
    assert (cells["state"], cells["status age"]) == ("ready", "4s")


def test_pool_list_shows_the_image_and_the_runner_of_every_pool(operator: Operator) -> None:
    count_pods(operator)
    operator.execute(
        "UPDATE pools SET image = 'registry.example/ci:7', template_hash = 'h', "
        'status = status || \'{"stale": 4, "reserved": 1}\''
    )
    operator.execute(
        "INSERT INTO runner_versions (pool_id, version, template_hash, seen_at, ends_at) "
        "SELECT id, '2.328.0', 'h', now(), '2026-12-24' FROM pools"
    )
    done = operator.run("pool", "list", "--versions")
    head, row = (re.split(r"  +", line) for line in done.stdout.splitlines())
    assert dict(zip(head, row, strict=True)) == {
        "pool": "linux",
        "image": "registry.example/ci:7",
        "runner": "2.328.0",
        "refused from": "2026-12-24",
        "old Pods": "4",
        "with a job": "2",
        "idle": "5",
        "warning": "-",
    }
    (told,) = operator.json("pool", "list", "--versions")
    assert (told["image"], told["old_pods"], told["with_job"]) == ("registry.example/ci:7", 4, 2)
    operator.execute("UPDATE pools SET image = 'actions-runner:2.330.0', template_hash = 'newer', status = NULL")
    (told,) = operator.json("pool", "list", "--versions")
    assert (told["runner"], told["ends_at"], told["old_pods"]) == ("2.330.0", None, None)
    assert operator.run("pool", "list", "--versions", "--why").returncode == 2


def test_pool_show_has_the_numbers_the_jobs_and_the_conditions(operator: Operator) -> None:
    count_pods(operator)
    (listed,) = operator.json("pool", "list")
    found = operator.json("pool", "show", "linux")
    why = found.pop("why")
    assert why["summary"] == "No Pod is warm: 1 of 1 Pods have a job: 1 of acme, which has 1 more queued."
    assert why["cure"].startswith("Wait until one of these jobs ends, or make the pool larger.")
    for pool in (listed, found):
        assert pool["status"].pop("age_seconds") in range(4, 60)
        assert pool["status"].pop("at")
    assert found == listed
    assert (found["status"]["starting"], found["status"]["spent"], found["state"]) == (3, 0, "ready")

    words = operator.run("pool", "show", str(found["id"])).stdout
    assert words.startswith(f"linux (id {found['id']}) in namespace {found['namespace']}: ready\n")
    assert "3 starting, 2 warm, 1 busy, 2 retiring, 1 unresponsive, 4 stale" in words
    assert "1 queued and 0 held jobs" in words
    assert "2 vCPU, 4 GiB" in words
    assert "`ostler pool scale` sets the replicas" in words
    assert "Enough Pods are available" in words

    operator.execute("UPDATE pools SET status = NULL")
    assert "no reconcile has counted them" in operator.run("pool", "show", "linux").stdout
    missing = operator.run("pool", "show", "99")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "there is no pool '99'" in missing.stderr


def test_pool_without_an_object_has_no_numbers(operator: Operator) -> None:
    count_pods(operator)
    operator.execute("UPDATE pools SET deleted_at = now()")
    (pool,) = operator.json("pool", "list", "--all")
    assert (pool["state"], pool["status"]) == ("gone", None)


def test_status_that_nobody_confirms_is_reported_as_old(operator: Operator) -> None:
    count_pods(operator)
    assert operator.run("pool", "list").stderr == ""
    count_pods(operator, ago="5 minutes")
    done = operator.run("pool", "list")
    assert "no reconcile has confirmed the status of linux" in done.stderr
    assert "5m" in done.stdout


def test_no_destructive_repair_is_told_in_a_sentence(operator: Operator) -> None:
    found = operator.run("repairs", "--destructive", "--since", "2026-01-01").stdout
    assert found == "no repair deleted anything since 2026-01-01 00:00 UTC\n"
    assert operator.run("repairs", "--destructive", "--failed").stdout == "no repairs\n"


def test_gates_say_what_follows_from_a_tripped_gate(operator: Operator) -> None:
    operator.execute("UPDATE jobs SET hold_reason = 'no_pool' WHERE id = 12")
    operator.execute(
        "INSERT INTO gates (upstream, closed_at, why, calls, errors) VALUES ('github', now(), '9 of 9', 12, 9)"
    )
    *_, calls, now, lost = operator.run("gates").stdout.splitlines()
    assert calls == "github: 9 of 12 calls of the last minute failed."
    assert now.startswith("Running jobs go on, and 2 queued jobs are held. There is nothing to do")
    assert "fetch lost webhooks" in lost


@pytest.mark.parametrize(
    ("obstacle", "state", "words"),
    [
        (
            "UPDATE epochs SET older_since = now(), why = 'Postgres is at epoch 1'",
            "frozen",
            "Postgres is older than the cluster",
        ),
        (
            "INSERT INTO gates (upstream, closed_at, why) VALUES ('github', now(), '9 of 9 calls failed')",
            "gate tripped",
            "the gate of github has been tripped since",
        ),
    ],
    ids=["frozen", "gate"],
)
def test_pool_is_not_called_ready_during_a_freeze_or_with_a_closed_gate(
    operator: Operator, obstacle: str, state: str, words: str
) -> None:
    count_pods(operator)
    operator.execute(obstacle)
    done = operator.run("pool", "list")
    assert (state in done.stdout, "ready" in done.stdout) == (True, False)
    assert words in done.stderr
    (pool,) = operator.json("pool", "list")
    assert (pool["state"], words in pool["trouble"]) == (state, True)
    shown = operator.run("pool", "show", "linux").stdout
    assert (words in shown, ": ready" in shown) == (True, False)

    operator.execute("UPDATE pools SET paused = true")
    assert operator.json("pool", "list")[0]["state"] == "paused"


def test_pool_list_names_refused_mints_and_company_that_stays(operator: Operator) -> None:
    operator.execute(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, gone_at)
        SELECT id, 'r', 'over-' || n, 'over-' || n, 'a', 'h', now(), now() FROM pools, generate_series(1, 3) n
        """
    )
    operator.execute(
        """
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, release_reason, created_at,
                            changed_at, ended_at)
        SELECT 'retire', id, uid, pool_id, 0, 0, 'ended', :over, now(), now(), now()
        FROM runner_pods WHERE name LIKE 'over-%'
        """,
        over=OVER,
    )
    words = " ".join(operator.run("pool", "list").stdout.split())
    assert "PodsOutliveRunners: 3 Pods ended poller and runner in the last hour" in words
    operator.execute(
        "UPDATE jobs SET pool_id = (SELECT id FROM pools), state = 'queued', hold_reason = 'backoff', "
        "hold_detail = 'group 7: GitHub answered 403: Resource not accessible' WHERE id = 12"
    )
    words = " ".join(operator.run("pool", "list").stdout.split())
    assert "JobsHeld: 1 job waits: group 7: GitHub answered 403: Resource not accessible" in words
    (pool,) = operator.json("pool", "list")
    assert pool["trouble"].startswith("JobsHeld: 1 job waits")
    refused = {"type": "Degraded", "status": "True", "reason": "MintsRefused", "message": "1 job of account acme waits"}
    operator.execute("UPDATE pools SET status = CAST(:status AS jsonb)", status=json.dumps({"conditions": [refused]}))
    (pool,) = operator.json("pool", "list")
    assert pool["trouble"] == "MintsRefused: 1 job of account acme waits"


def test_a_process_needs_nothing_but_the_database(operator: Operator) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ostler", "jobs", "--json"],
        env=operator.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == 3


def test_missing_object_is_reported_with_the_place_to_look_and_status_1(operator: Operator) -> None:
    for arguments, where in (
        (("job", "999"), "ostler jobs"),
        (("jobs", "--account", "nobody"), "ostler account list"),
        (("jobs", "--pool", "none"), "ostler pool list"),
        (("account", "set", "nobody", "--count", "1"), "ostler account list"),
        (("account", "allow", "nobody"), "ostler account list"),
        (("account", "allow", "4711"), "after its first webhook"),
        (("account", "set", "999999999999999999999", "--count", "1"), "ostler account list"),
        (("token", "revoke", "999"), "ostler token list"),
    ):
        done = operator.run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert where in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "--state", "asleep"),
        ("jobs", "--limit", "0"),
        ("job", "x"),
        ("account", "set", "acme"),
        ("account", "set", "acme", "--weight", "0"),
        ("account", "set", "acme", "--weight", "nan"),
        ("account", "set", "acme", "--count", "-1"),
        ("account", "set", "acme", "--vcpu", "inf"),
        ("token", "create", ""),
        ("token", "create", "x", "--scope", "root"),
        ("token", "create", "x", "--days", "0"),
    ],
)
def test_a_wrong_use_is_status_2(operator: Operator, arguments: tuple[str, ...]) -> None:
    done = operator.run(*arguments)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr


def test_a_database_that_is_away_or_empty_is_one_line(operator: Operator) -> None:
    away = operator.run("jobs", OSTLER_DATABASE_URL="postgresql+psycopg2://u:hunter2@127.0.0.1:1/x")
    assert away.returncode == 3
    assert away.stderr.startswith(
        "ostler: Postgres at 127.0.0.1:1 does not answer: Connection refused. Check OSTLER_DATA"
    )
    assert "hunter2" not in away.stderr
    operator.execute("DROP TABLE api_tokens")
    empty = operator.run("token", "list")
    assert (empty.returncode, "ostler migrate" in empty.stderr) == (2, True)


def test_a_budget_is_changed_in_part_and_felt_at_once_where_redis_is(operator: Operator, redis_server: Redis) -> None:
    operator.redis_url = redis_server.url
    done = operator.run("account", "set", "ACME", "--count", "3", "--memory", "1.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"acme: 20 → 3 Pods, 80 vCPU, \d+ → 1.5 GiB, weight 1\n", done.stdout)
    (row,) = operator.execute("SELECT budget_count, budget_vcpu, budget_memory, weight FROM accounts WHERE id = 77")
    assert tuple(row) == (3, 80_000, 1536, 1)
    with redis_server.client() as redis:
        assert redis.llen("dispatch") == 1  # the wake's key lasts two seconds, which a busy machine outlives
        assert b"ostler.rematch" in redis.lindex("sweeps", 0)


def test_an_account_is_let_in_by_its_login_or_its_id(operator: Operator, redis_server: Redis) -> None:
    operator.redis_url = redis_server.url
    for name in ("ACME", "77"):
        operator.execute("UPDATE accounts SET access = 'held' WHERE id = 77")
        done = operator.run("account", "allow", name)
        assert (done.returncode, done.stderr) == (0, "")
        assert "acme (77) is allowed" in done.stdout
        (acme,) = operator.json("account", "list", "--login", "acme")
        assert (acme["access"], acme["ending_pods"]) == ("allowed", 0)
    with redis_server.client() as redis:
        assert b"ostler.rematch" in redis.lindex("sweeps", 0)


def test_a_budget_is_changed_without_redis_too(operator: Operator) -> None:
    done = operator.run("account", "set", "77", "--weight", "2")
    assert done.returncode == 0
    assert "within a minute" in done.stderr
    operator.redis_url = "redis://127.0.0.1:1/0"
    assert (
        "Redis at 127.0.0.1:1 does not answer (connection refused)"
        in operator.run("account", "set", "77", "--count", "4").stderr
    )
    (acme,) = operator.json("account", "list", "--login", "acme")
    assert (acme["weight"], acme["budget"]["count"], acme["usage"]["count"]) == (2, 4, 1)


@pytest.mark.parametrize(("arguments", "days"), [((), 90), (("--days", "7"), 7), (("--forever",), None)])
def test_token_ends_after_90_days_unless_told_otherwise(
    operator: Operator, arguments: tuple[str, ...], days: int | None
) -> None:
    assert operator.run("token", "create", "ci", *arguments).returncode == 0
    ((made, ends),) = operator.execute("SELECT created_at, expires_at FROM api_tokens")
    assert (None if ends is None else (ends - made).days) == days


def test_a_token_is_shown_once_works_and_can_be_taken_back(operator: Operator) -> None:
    made = operator.run("token", "create", "ci dashboards", "--scope", "read", "--scope", "write", "--days", "30")
    token = made.stdout.strip()
    assert api_tokens.well_formed(token)
    assert token not in made.stderr
    holder = transaction(operator.database.engine, lambda db: api_tokens.verify(db, Secret(token), now=utcnow()))
    assert isinstance(holder, api_tokens.Holder)
    assert holder.scopes == {"read", "write"}
    listed = operator.run("token", "list")
    assert "ci dashboards" in listed.stdout
    assert token.split("_", 2)[2] not in listed.stdout + json.dumps(operator.json("token", "list"))
    assert operator.run("token", "revoke", str(holder.id)).returncode == 0
    after = transaction(operator.database.engine, lambda db: api_tokens.verify(db, Secret(token), now=utcnow()))
    assert after is api_tokens.Refused.REVOKED
    assert "revoked" in operator.run("token", "list").stdout


def test_token_revoke_prints_the_revoked_token_as_the_list_does_with_json(operator: Operator) -> None:
    made = [operator.json("token", "create", name) for name in ("ci", "dashboard")]
    revoked = operator.json("token", "revoke", str(made[1]["id"]))
    assert (revoked["id"], revoked["name"]) == (made[1]["id"], "dashboard")
    assert revoked["revoked_at"] is not None
    assert made[1]["token"].split("_", 2)[2] not in json.dumps(revoked)
    listed = operator.json("token", "list")
    assert listed[1] == revoked
    assert listed[0]["revoked_at"] is None
    missing = operator.run("token", "revoke", "99", "--json")
    assert (missing.returncode, missing.stdout) == (1, "")


def test_pod_that_was_deleted_under_its_job_is_told_everywhere(operator: Operator) -> None:
    (claim,) = operator.json("claims")
    operator.execute(
        """
        UPDATE runner_pods SET deletion_at = '2026-11-23 12:03:04+00', gone_at = now(), exit_reason = 'OOMKilled (9)',
               runner_exit_code = 137, event_reason = 'Evicted', event_by = 'kubelet',
               event_message = '[red]low on memory'
        """
    )
    operator.execute("UPDATE claims SET state = 'ended', jit = NULL, ended_at = now(), end_reason = 'pod_gone'")
    operator.execute("UPDATE jobs SET state = 'completed', conclusion = 'failure', completed_at = now() WHERE id = 11")
    said = "was deleted at 2026-11-23 12:03:04 UTC, killed for lack of memory: raise the memory limit of its pool"

    event = "event Evicted by kubelet: [red]low on memory"

    job = " ".join(operator.run("job", "11").stdout.split())
    assert job.count(event) == 2  # in the sentence, and in the timeline
    assert event in operator.json("claims", "--pod", claim["pod"])[0]["pod_end"]
    assert operator.json("pod", claim["pod"])["event_message"] == "[red]low on memory"
    assert (
        f"The job is completed at GitHub: failure. Pod {claim['pod']} of the job {said}; container `runner` exited 137"
        in job
    )
    assert f"2026-11-23 12:03:04 pod {claim['pod']} - ended - the Pod {said}" in job
    assert operator.json("job", "11")["claims"][0]["runner_exit_code"] == 137
    assert "pod_gone (OOMKilled (9))" in operator.run("claims", "--pod", claim["pod"]).stdout
    assert operator.json("claims", "--pod", claim["pod_uid"])[0]["pod_end"].startswith(f"the Pod {said}")
    for name in (claim["pod"], claim["pod_uid"]):
        pod = " ".join(operator.run("pod", name).stdout.split())
        assert f"It {said}" in pod
        assert f"Jobs: 11 (claim {claim['id']})" in pod
        assert "deletion requested" in pod
        assert event in pod
    assert operator.json("pod", claim["pod"])["claims"][0]["job_id"] == 11
    nobody = operator.run("pod", "nobody")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "there is no Pod 'nobody'" in nobody.stderr


def test_token_of_an_account_is_limited_to_it_and_the_list_says_so(operator: Operator) -> None:
    login, account_id = operator.execute("SELECT login, id FROM accounts ORDER BY id LIMIT 1")[0]
    made = operator.run("token", "create", "their dashboard", "--account", login.upper())
    holder = transaction(
        operator.database.engine, lambda db: api_tokens.verify(db, Secret(made.stdout.strip()), now=utcnow())
    )
    assert isinstance(holder, api_tokens.Holder)
    assert holder.accounts == frozenset({account_id})
    assert login in operator.run("token", "list").stdout
    assert operator.json("token", "list")[0]["accounts"] == [login]
    assert operator.run("token", "create", "x", "--account", "nobody").returncode == 1
    refused = operator.run("token", "create", "x", "--account", login, "--scope", "write")
    assert refused.returncode == 2
    assert "can only read" in refused.stderr


def test_pods_are_listed_with_their_jobs_and_gone_pods_on_request(operator: Operator) -> None:
    (pod,) = operator.json("pods")
    assert (pod["job_id"], pod["state"]) == (11, "delivered")
    assert operator.run("pods", "-o", "name").stdout == f"{pod['name']}\n"
    assert operator.json("pods", "--pool", pod["pool"]) == [pod]
    operator.execute("UPDATE runner_pods SET gone_at = now() RETURNING id")
    assert operator.run("pods").stdout == "no Pods\n"
    assert [each["state"] for each in operator.json("pods", "--all")] == ["gone"]


def test_an_account_is_shown_with_its_queue_and_its_waits(operator: Operator) -> None:
    operator.execute(
        "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at) "
        "SELECT 'r', account_id, id, 1, 1, queued_at + interval '9 s' FROM jobs WHERE id = 11 RETURNING job_id"
    )
    operator.execute("UPDATE jobs SET state = 'running', queued_at = now() - interval '1 m' WHERE id = 11 RETURNING id")
    operator.execute("UPDATE executions SET started_at = now() - interval '51 s' RETURNING job_id")
    shown = operator.json("account", "show", "acme")
    assert (shown["login"], shown["jobs"]["queued"], shown["jobs"]["held"]) == ("acme", 1, 0)
    assert [(each["name"], each["jobs"]) for each in shown["waits_of_last_day"]] == [("acme/app", 1), (None, 1)]
    assert shown["waits_of_last_day"][0]["p50_seconds"] == pytest.approx(9, abs=0.1)
    told = operator.run("account", "show", "ACME").stdout
    assert "acme (id 77): allowed, weight 1" in told
    assert "Job 12 waits longest: The job is the next" in told
    assert "1 queued and 0 held jobs" in told
    (listed,) = operator.json("account", "list", "--login", "globex")
    assert (listed["jobs"]["queued"], listed["jobs"]["held"]) == (0, 1)
    missing = operator.run("account", "show", "nobody")
    assert (missing.returncode, "`ostler account list`" in missing.stderr) == (1, True)


def test_account_list_says_what_waits_and_who_holds_the_pods(operator: Operator) -> None:
    count_pods(operator)
    operator.execute("UPDATE pools SET replicas = 1")
    done = operator.run("account", "list")
    head, *rows = (re.split(r"  +", line) for line in done.stdout.splitlines())
    (waits,) = (cells for row in rows if (cells := dict(zip(head, row, strict=True)))["queued"] != "0")
    assert "1 of 1 Pods have a job: 1 of acme" in waits["waits for"]
    assert waits["waits for"] in {each["waits_for"] for each in operator.json("account", "list")}
    operator.execute("UPDATE accounts SET access = 'held'")
    assert "The account is not allowed." in operator.run("account", "list").stdout


def test_version_is_printed(operator: Operator) -> None:
    assert re.fullmatch(r"ostler [0-9.]+\n", operator.run("--version").stdout)


def test_report_has_waits_idle_minutes_and_repairs_of_the_span(operator: Operator) -> None:
    operator.execute(
        "UPDATE jobs SET state = 'running', queued_at = now() - interval '20 min' WHERE id = 11 RETURNING id"
    )
    operator.execute(
        "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at) "
        "VALUES ('r', 77, 11, 1, 1, now() - interval '10 min') RETURNING job_id"
    )
    operator.execute("UPDATE claims SET created_at = now() - interval '10 min' RETURNING id")
    operator.execute("UPDATE runner_pods SET first_polled_at = now() - interval '40 min' RETURNING id")
    operator.execute(
        "INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by)"
        " VALUES ('rematch', 1, now(), 'lift', 'x', '{}', false, false, 'nothing', 'verified', now()) RETURNING id"
    )
    found = operator.json("report", "--since", "24h")
    (pool, _total), (account, _all), (idle,) = found["pools"], found["accounts"], found["idle"]
    assert (pool["jobs"], account["name"]) == (1, "acme")
    assert pool["runner_minutes"] == pytest.approx(10, abs=0.1)
    assert (idle["pool"], idle["pods"]) == (pool["name"], 1)
    assert idle["seconds"] == pytest.approx(30 * 60, abs=5)
    assert [(row["who"], row["changes"]) for row in found["repairs"]] == [("rematch", 1)]
    (clipped,) = operator.json("report", "--since", "20m")["idle"]
    assert clipped["seconds"] == pytest.approx(10 * 60, abs=5)
    told = operator.run("report").stdout
    assert all(each in told for each in ("runner minutes", "Pods that were idle", "rematch"))
