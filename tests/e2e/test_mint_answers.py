"""Every answer that GitHub can give to a mint, seen from outside in the whole system.

A fault that must last while something else happens stays until the test removes it, because the test does not know how
often Ostler asks. Only a fault about a single bad answer is injected once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]  # a long story

LABELS = ("self-hosted", "linux", "small")
MINTS = "/orgs/{org}/actions/runners/generate-jitconfig"
ORG = "/orgs/acme/actions/runners/generate-jitconfig"


@pytest.fixture(scope="module")
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """One system for the module: a pool of eight Pods. Two of them are real processes."""
    namespace = f"mint-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    settings = timings(sweep_every=3, probe_every=2)
    options = Options(pools=(LabPool("small", LABELS, 8),), beats=1, real_pods=2, settings=settings)
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        running.wait_for_warm_pods(8, timeout=120)
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.fixture(scope="module")
def rows(system: System) -> Iterator[Engine]:
    """The system's database."""
    engine = create_engine(system.postgres.url("ostler"))
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _no_faults_left(system: System) -> Iterator[None]:
    yield
    mend(system)


def fault(system: System, **what: Any) -> None:
    """Let the mints of the organisation fail until `mend`, or `times` times."""
    system.lab("POST", "/faults", [{"method": "POST", "path_regex": ORG, "times": 1_000_000} | what])


def mend(system: System) -> None:
    """Remove every fault."""
    system.lab("DELETE", "/faults")


def send(system: System, repository: str = "acme/shop") -> int:
    """Queue one job and return its id."""
    body = {"repository": repository, "labels": list(LABELS), "duration_seconds": 0.2}
    job: int = system.lab("POST", "/jobs", body)["ids"][0]
    return job


def succeeded(system: System, job: int) -> bool:
    """Return whether the job succeeded at GitHub."""
    jobs = {each["id"]: each for each in system.lab("GET", "/jobs?status=completed")["jobs"]}
    return job in jobs and jobs[job]["conclusion"] == "success"


def hold_of(rows: Engine, job: int) -> str | None:
    """Return the reason of a job's hold."""
    with rows.connect() as db:
        hold: str | None = db.execute(text("SELECT hold_reason FROM jobs WHERE id = :id"), {"id": job}).scalar()
    return hold


def attempts_of(rows: Engine, job: int) -> list[str]:
    """Return the results of the mint attempts for a job, oldest first."""
    with rows.connect() as db:
        found = db.execute(
            text("""
                SELECT m.outcome FROM mint_attempts m JOIN claim_events e ON e.claim_id = m.claim_id
                JOIN claims c ON c.id = m.claim_id
                WHERE e.transition = 'claim' AND c.job_id = :id ORDER BY m.id
            """),
            {"id": job},
        )
        return list(found.scalars())


def registered(system: System) -> set[str]:
    """Return the runners that are registered at GitHub."""
    return {runner["name"] for runner in system.lab("GET", "/runners")["runners"]}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 500},
        {"status": 502, "after_apply": True},
        {"reset": True},
        {"reset": True, "after_apply": True},
        {"status": 409},
        {"status": 403, "headers": {"Retry-After": "1"}},
        {"status": 429, "headers": {"Retry-After": "1"}},
    ],
    ids=["500", "502 after it was applied", "reset", "reply lost", "409", "403 with Retry-After", "429"],
)
def test_a_mint_that_fails_once_is_repeated_and_leaves_no_runner(
    system: System, rows: Engine, answer: dict[str, Any]
) -> None:
    fault(system, times=1, **answer)
    job = send(system)
    eventually(lambda: succeeded(system, job), within=240)
    assert attempts_of(rows, job).count("minted") == 1
    eventually(lambda: not registered(system), within=240)


@pytest.mark.parametrize(
    ("status", "hold"), [(422, "set_aside"), (404, "backoff"), (403, "backoff")], ids=["422", "404", "403"]
)
def test_a_mint_that_github_refuses_holds_its_job_and_no_other(
    system: System, rows: Engine, status: int, hold: str
) -> None:
    fault(system, status=status)
    held = send(system)
    eventually(lambda: hold_of(rows, held) == hold, within=240)
    with rows.begin() as db:  # its wait is a minute, which the other job may take here
        db.execute(text("UPDATE backoffs SET not_before = now() + interval '1 hour'"))
        db.execute(text("UPDATE jobs SET not_before = now() + interval '1 hour' WHERE id = :id"), {"id": held})
    other = send(system, "globex/reactor")
    eventually(lambda: succeeded(system, other), within=240)
    assert not succeeded(system, held)
    mend(system)
    with rows.begin() as db:  # let its wait be over, and the job go on at the next rematch
        db.execute(text("DELETE FROM backoffs"))
        db.execute(text("UPDATE jobs SET not_before = now() WHERE id = :id"), {"id": held})
    eventually(lambda: succeeded(system, held), within=240)


def test_a_wait_longer_than_a_message_may_live_becomes_a_not_before_of_the_job(system: System, rows: Engine) -> None:
    fault(system, status=403, headers={"Retry-After": "600"})
    job = send(system)
    eventually(lambda: hold_of(rows, job) == "backoff", within=240)
    mend(system)
    with rows.begin() as db:
        wait = db.execute(
            text("SELECT extract(epoch FROM not_before - now()) FROM jobs WHERE id = :id"), {"id": job}
        ).scalar_one()
        told = db.execute(text("DELETE FROM backoffs RETURNING kind, key")).all()
    assert sorted(tuple(row) for row in told) == [("installation", "501"), ("limit", "501/")]
    with system.redis.client() as redis:  # what an operator does who knows better than a limit
        redis.delete("ostler:github:{501}")
    with rows.begin() as db:  # not before: a mint that finds the limit in Redis would hold the job anew
        db.execute(text("UPDATE jobs SET not_before = now() WHERE id = :id"), {"id": job})
    assert 500 < wait <= 600
    eventually(lambda: succeeded(system, job), within=240)


def test_a_github_that_recovered_is_found_long_before_the_wait_is_over(system: System, rows: Engine) -> None:
    fault(system, status=503)
    jobs = [send(system) for _ in range(4)]
    eventually(lambda: all(hold_of(rows, job) == "backoff" for job in jobs), within=240)
    with rows.begin() as db:
        db.execute(text("UPDATE backoffs SET not_before = now() + interval '1 hour' WHERE kind = 'installation'"))
        db.execute(text("UPDATE jobs SET not_before = now() + interval '1 hour' WHERE hold_reason = 'backoff'"))
    tried = system.lab("GET", "/stats")["calls"][f"POST {MINTS}"]
    eventually(lambda: bool(system.lab("GET", "/stats")["calls"][f"POST {MINTS}"] > tried), within=240)
    mend(system)
    eventually(lambda: all(succeeded(system, job) for job in jobs), within=240)
    with rows.connect() as db:
        assert db.execute(text("SELECT count(*) FROM backoffs WHERE kind = 'installation'")).scalar_one() == 0


def test_a_user_account_gets_its_runner_in_the_repository(system: System) -> None:
    job = send(system, "marvin/dotfiles")
    eventually(lambda: succeeded(system, job), within=240)


def test_the_jobs_of_a_suspended_installation_wait_until_it_is_let_in_again(system: System, rows: Engine) -> None:
    system.lab("PATCH", "/accounts/globex", {"suspended": True})
    held = send(system, "globex/reactor")
    eventually(lambda: hold_of(rows, held) == "backoff", within=240)
    other = send(system)
    eventually(lambda: succeeded(system, other), within=240)
    with rows.connect() as db:
        detail = db.execute(text("SELECT hold_detail FROM jobs WHERE id = :id"), {"id": held}).scalar()
    assert "suspended" in str(detail)

    system.lab("PATCH", "/accounts/globex", {"suspended": False})

    eventually(lambda: succeeded(system, held), within=240)


def test_the_jobs_of_a_removed_installation_go_on_with_the_next_one(system: System, rows: Engine) -> None:
    system.lab("PATCH", "/accounts/globex", {"installed": False})
    held = send(system, "globex/reactor")
    eventually(lambda: hold_of(rows, held) == "backoff", within=240)

    system.lab("PATCH", "/accounts/globex", {"installed": True, "installation_id": 612})

    eventually(lambda: succeeded(system, held), within=240)


def names_of(rows: Engine, job: int) -> tuple[str, str]:
    """Return the scope of a job and the login of its account."""
    with rows.connect() as db:
        row = db.execute(
            text("SELECT j.scope, a.login FROM jobs j JOIN accounts a ON a.id = j.account_id WHERE j.id = :id"),
            {"id": job},
        ).one()
        return row.scope, row.login


def test_an_owner_that_is_renamed_under_a_queued_job_is_known_from_the_webhook(system: System, rows: Engine) -> None:
    fault(system, method="*", path_regex="/orgs/globex/actions/runners", status=503)  # none tells that it is gone
    job = send(system, "globex/reactor")
    eventually(lambda: bool(attempts_of(rows, job)), within=240)
    system.lab("PATCH", "/accounts/globex", {"login": "globex-two"})
    eventually(lambda: names_of(rows, job) == ("orgs/globex-two", "globex-two"), within=240)
    mend(system)
    eventually(lambda: succeeded(system, job), within=240)


def test_an_owner_whose_new_name_is_told_late_is_found_by_its_404(system: System, rows: Engine) -> None:
    fault(system, path_regex="/orgs/globex-two/actions/runners/generate-jitconfig", status=503)
    job = send(system, "globex-two/reactor")
    eventually(lambda: bool(attempts_of(rows, job)), within=240)
    system.lab("POST", "/webhooks", {"paused": True})
    system.lab("PATCH", "/accounts/globex-two", {"login": "globex-three"})
    mend(system)  # not before: by its old name no mint succeeds
    eventually(lambda: succeeded(system, job), within=240)
    assert names_of(rows, job) == ("orgs/globex-three", "globex-three")
    system.lab("POST", "/webhooks", {"paused": False})
    eventually(lambda: system.lab("GET", "/stats")["webhooks_in_flight"] == 0, within=240)
    assert names_of(rows, job) == ("orgs/globex-three", "globex-three")
    later = send(system, "globex-three/reactor")
    eventually(lambda: succeeded(system, later), within=240)


def test_at_the_end_every_job_ran_exactly_once(system: System) -> None:
    eventually(lambda: not registered(system), within=240)
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs


def test_no_jit_and_no_key_is_left_in_logs_or_rows(system: System, rows: Engine) -> None:
    with rows.connect() as db:
        left = db.execute(text("SELECT count(*) FROM claims WHERE jit IS NOT NULL AND ended_at IS NOT NULL")).scalar()
    assert left == 0
    planted = system.secrets()
    for log in system.folder.glob("*.log"):
        written = log.read_text(errors="replace")
        for secret in planted:
            assert secret not in written, log.name


# Who may use a pool


def hold_detail_of(rows: Engine, job: int) -> str:
    """Return the detail of a job's hold."""
    with rows.connect() as db:
        return str(db.execute(text("SELECT hold_detail FROM jobs WHERE id = :id"), {"id": job}).scalar())


def send_public(system: System, **what: Any) -> int:
    """Queue a job of a public repository and return its id."""
    body = {"repository": "openorg/tool", "labels": list(LABELS), "duration_seconds": 0.2} | what
    job: int = system.lab("POST", "/jobs", body)["ids"][0]
    return job


@pytest.fixture(scope="module")
def openorg(system: System) -> None:
    """An organisation with a public repository, whose default group admits it."""
    repositories = [{"id": 990001, "name": "tool", "public": True}]
    system.lab(
        "POST",
        "/accounts",
        {
            "id": 9900,
            "login": "openorg",
            "type": "Organization",
            "installation_id": 9901,
            "repositories": repositories,
        },
    )
    system.lab("PUT", "/accounts/openorg/groups/1", {"public": True})


@pytest.mark.usefixtures("openorg")
def test_of_a_public_repository_its_own_jobs_run_and_those_of_forks_are_held(system: System, rows: Engine) -> None:
    asked = calls_of_runs(system)
    own = send_public(system, event="pull_request")
    strange = send_public(system, event="pull_request", fork="eve/tool")
    eventually(lambda: succeeded(system, own), within=240)
    eventually(lambda: hold_of(rows, strange) == "not_allowed", within=240)
    assert "allowForks is false" in hold_detail_of(rows, strange)
    assert calls_of_runs(system) - asked == 2
    assert not succeeded(system, strange)


@pytest.mark.usefixtures("openorg")
def test_a_group_that_admits_no_public_repository_holds_the_job_without_a_mint(system: System, rows: Engine) -> None:
    system.lab("PUT", "/accounts/openorg/groups/1", {"public": False})
    with rows.begin() as db:
        db.execute(text("DELETE FROM runner_group_lists"))
    job = send_public(system)
    eventually(lambda: hold_of(rows, job) == "runner_group", within=240)
    assert "does not admit public repositories" in hold_detail_of(rows, job)
    assert attempts_of(rows, job).count("minted") == 0
    eventually(lambda: not registered(system), within=240)


def calls_of_runs(system: System) -> int:
    """Return the number of requests for a run."""
    calls: dict[str, int] = system.lab("GET", "/stats")["calls"]
    return sum(count for call, count in calls.items() if call.startswith("GET") and call.endswith("/runs/{id}"))
