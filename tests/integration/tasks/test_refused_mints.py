"""Mints that GitHub refuses back off by runner group, repository or account, with GitHub's reason. No others do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Row, func

from github_adapters.endpoints.app import InstallationSeen
from github_adapters.endpoints.runners import Jit
from models.browse import statistics
from models.db.engine import transaction
from models.pools.unrouting import unroute_page
from models.routing import installations
from models.sweeps.rematch import accounts_to_rematch, rematch_page
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Forbidden, Gone, Invalid, UpstreamError
from ostler.secrets import Secret
from rules.claims.fairness import Budget
from rules.routing.runner_groups import GroupSeen
from tasks.claims.mint import mint
from tests.integration.tasks.conftest import Stage
from tests.rows import insert_pool

IP_LIST = "the `acme` organization has an IP allow list enabled, and your IP address is not permitted"
FULL = "Runner group 1 has reached max limit of 10000 runners"


def said(error: UpstreamError, *, status: int, words: str | None = None) -> UpstreamError:
    error.status, error.words = status, words
    return error


class RefusingGitHub:
    """A GitHub that refuses the mints of some runner groups."""

    def __init__(self) -> None:
        self.refuses: dict[int, UpstreamError] = {}
        self.asked: list[int] = []

    def mint(self, *, name: str, runner_group_id: int, **_rest: Any) -> Jit:
        self.asked.append(runner_group_id)
        if runner_group_id in self.refuses:
            raise self.refuses[runner_group_id]
        return Jit(runner_id=len(self.asked), runner_name=name, config=Secret("jit"))

    def list_runner_groups(self, **_rest: Any) -> list[GroupSeen]:
        return [GroupSeen(id=each, name=f"g{each}", visibility="all", public=True) for each in (1, 2, 3)]

    def get_installation(self, **_rest: Any) -> InstallationSeen:
        return InstallationSeen(account_id=1, login="acme", suspended=False)


@pytest.fixture
def github(clusterless: Stage) -> RefusingGitHub:
    github = RefusingGitHub()
    clusterless.rt.github = github
    clusterless.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    clusterless.rows("INSERT INTO accounts VALUES (1, 'acme', 1, 10, 100000, 100000, '[]', now())")
    for name, group, group_name in (("plain", 1, None), ("large", 2, None), ("gpu", 0, "g3")):
        insert_pool(
            clusterless.rt.engine,
            name,
            namespace="n",
            labels=[name],
            runner_group_id=group,
            runner_group_name=group_name,
            routed_at=func.now() - timedelta(days=1),
        )
    return github


def queue(stage: Stage, job: int, *, pool: str, scope: str = "orgs/acme") -> None:
    """Queue a job for a pool. Its id is also its age."""
    stage.rows(
        """
        INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels, state,
                          pool_id, queued_at, changed_at)
        SELECT :job, 1, 501, 'acme/shop', :scope, 1, 1, 'build', ARRAY[:pool], 'queued', id, now(), now()
        FROM pools WHERE name = :pool
        """,
        job=job,
        pool=pool,
        scope=scope,
    )


def run_mint(stage: Stage, job: int) -> None:
    """Claim a Pod for a queued job, and mint for it."""
    (pods,) = stage.rows("SELECT count(*) AS made FROM runner_pods")
    pod = f"pod-{job}-{pods.made}"
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT pool_id, 'n', :pod, :pod, 'a', 'h', now() FROM jobs WHERE id = :job
        """,
        pod=pod,
        job=job,
    )
    (scope,) = stage.rows("UPDATE jobs SET state = 'claimed' WHERE id = :job RETURNING scope", job=job)
    claim = stage.claim(pod, job_id=job, state="claimed")
    stage.rows("UPDATE claims SET scope = :scope WHERE id = :claim", scope=scope.scope, claim=claim)
    mint.run(claim_id=claim, chain_no=None)
    if stage.see(claim).state == "releasing":  # what a release does of it
        stage.rows(
            "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'released' WHERE id = :c", c=claim
        )
        stage.rows("UPDATE jobs SET state = 'queued' WHERE id = :job", job=job)


def holds(stage: Stage) -> dict[int, str | None]:
    return {row.id: row.hold_reason for row in stage.rows("SELECT id, hold_reason FROM jobs ORDER BY id")}


def backoffs(stage: Stage) -> list[Row[Any]]:
    return stage.rows("SELECT kind, key, failures, reason FROM backoffs ORDER BY kind, key")


def wait_over(stage: Stage) -> None:
    """Let every wait be over."""
    stage.rows("UPDATE backoffs SET not_before = now() - interval '1 s', probed_at = probed_at - interval '1 hour'")
    stage.rows("UPDATE jobs SET not_before = now() - interval '1 s' WHERE not_before IS NOT NULL")


def rematch(stage: Stage) -> list[int]:
    """Match the held jobs again, and return the jobs that are no longer held."""
    found = transaction(stage.rt.engine, lambda db: rematch_page(db, accounts_to_rematch(db), limit=100, now=utcnow()))
    return [each.job_id for each in found.lifted]


REFUSALS: list[Callable[[], UpstreamError]] = [
    lambda: said(Forbidden("no"), status=403, words=IP_LIST),
    lambda: said(Forbidden("no"), status=451),
    lambda: said(Gone("no"), status=404, words="Not Found"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["403", "451", "404"])
@pytest.mark.parametrize(("pool", "key"), [("large", "501/2"), ("gpu", "501/'g3'")])
def test_refused_runner_group_holds_its_pools_and_no_other(
    clusterless: Stage, github: RefusingGitHub, pool: str, key: str, refusal: Callable[[], UpstreamError]
) -> None:
    github.refuses = {2: refusal(), 3: refusal()}
    other = "gpu" if pool == "large" else "large"
    for job, name in enumerate((pool, pool, "plain", other), start=1):
        queue(clusterless, job, pool=name)

    run_mint(clusterless, 1)

    assert [(row.kind, row.key) for row in backoffs(clusterless)] == [("runner_group", key)]
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: None, 4: None}


def test_refused_default_group_holds_its_jobs_and_no_other(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {1: said(Forbidden("no"), status=403)}
    for job, pool in enumerate(("plain", "plain", "large"), start=1):
        queue(clusterless, job, pool=pool)

    run_mint(clusterless, 1)

    assert [(row.kind, row.key) for row in backoffs(clusterless)] == [("account", "1")]
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: None}


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize(
    ("pool", "scope"), [("large", "orgs/acme"), ("gpu", "orgs/acme"), ("plain", "repos/acme/shop")]
)
def test_refused_account_holds_no_job_that_never_asks_for_its_default_group(
    clusterless: Stage, pool: str, scope: str
) -> None:
    clusterless.rows(
        "INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at, probed_at)"
        " VALUES ('account', '1', now() + interval '1 hour', 7, 'GitHub answers 403 to a mint', now(), now())"
    )
    for job in (1, 2, 3):
        queue(clusterless, job, pool=pool, scope=scope)
    clusterless.rows("UPDATE jobs SET hold_reason = 'backoff', not_before = now() - interval '1 s'")

    assert rematch(clusterless) == [1, 2, 3]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["403", "451", "404"])
def test_refused_repository_holds_its_jobs_and_no_other(
    clusterless: Stage, github: RefusingGitHub, refusal: Callable[[], UpstreamError]
) -> None:
    github.refuses = {1: refusal()}
    for job in (1, 2, 3):
        queue(clusterless, job, pool="plain", scope="repos/acme/shop")
    clusterless.rows("UPDATE jobs SET repository = 'acme/other', scope = 'repos/acme/other' WHERE id = 3")

    run_mint(clusterless, 1)

    assert [(row.kind, row.key) for row in backoffs(clusterless)] == [("repository", "acme/shop")]
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: None}


def test_full_runner_group_backs_off_once_for_all_its_jobs(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {1: said(Invalid("no"), status=422, words=FULL)}
    for job, pool in enumerate(("plain", "plain", "large"), start=1):
        queue(clusterless, job, pool=pool)

    run_mint(clusterless, 1)

    assert [(row.kind, row.key) for row in backoffs(clusterless)] == [("runner_group", "501/1")]
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: None}


def test_job_that_github_refuses_as_invalid_is_set_aside_alone(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {1: said(Invalid("no"), status=422, words="labels must be 1 to 100 strings")}
    queue(clusterless, 1, pool="plain")
    queue(clusterless, 2, pool="plain")

    run_mint(clusterless, 1)

    assert holds(clusterless) == {1: "set_aside", 2: None}
    (job,) = clusterless.rows("SELECT hold_detail FROM jobs WHERE id = 1")
    assert job.hold_detail == "GitHub refuses the runner of the job as invalid: labels must be 1 to 100 strings"


def test_held_jobs_say_what_github_said(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403, words=IP_LIST)}
    queue(clusterless, 1, pool="large")
    queue(clusterless, 2, pool="large")

    run_mint(clusterless, 1)

    told = f"runner group 2 of installation id 501: GitHub answers 403 to a mint: {IP_LIST}"
    details = [row.hold_detail for row in clusterless.rows("SELECT hold_detail FROM jobs ORDER BY id")]
    assert details == [told, told]
    assert [row.reason for row in backoffs(clusterless)] == [f"GitHub answers 403 to a mint: {IP_LIST}"]


def test_refusals_are_counted_until_a_mint_succeeds(clusterless: Stage, github: RefusingGitHub) -> None:
    def counted() -> dict[str, int]:
        found = transaction(clusterless.rt.engine, lambda db: statistics.read(db, now=utcnow()))
        return dict(found.backoffs)

    github.refuses = {2: said(Forbidden("no"), status=403)}
    queue(clusterless, 1, pool="large")
    assert counted() == {}
    run_mint(clusterless, 1)
    assert counted() == {"runner_group": 1}

    github.refuses = {}
    run_mint(clusterless, 1)

    assert counted() == {}


def test_one_job_is_let_past_a_wait_that_is_over(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2, 3):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)

    assert rematch(clusterless) == [1]
    assert rematch(clusterless) == []
    assert holds(clusterless) == {1: None, 2: "backoff", 3: "backoff"}

    run_mint(clusterless, 1)  # refused again: the wait doubles

    (row,) = clusterless.rows("SELECT failures, not_before FROM backoffs")
    assert row.failures == 2
    assert row.not_before > utcnow() + timedelta(seconds=110)
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: "backoff"}
    assert github.asked == [2, 2]


def test_lost_probe_is_followed_by_another(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2, 3):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    assert rematch(clusterless) == [1]

    wait_over(clusterless)  # no Pod was free for it: the longest time of a probe is over

    assert rematch(clusterless) == [2]


def test_cancelled_probe_is_followed_by_another(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    assert rematch(clusterless) == [1]
    clusterless.rows("UPDATE jobs SET state = 'completed', conclusion = 'cancelled', completed_at = now() WHERE id = 1")
    clusterless.rows("UPDATE backoffs SET not_before = now() - interval '1 s'")
    clusterless.rows("UPDATE jobs SET not_before = now() - interval '1 s' WHERE hold_reason IS NOT NULL")

    assert rematch(clusterless) == [2]


def test_first_success_lets_all_go_on(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2, 3):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    assert rematch(clusterless) == [1]
    github.refuses = {}

    run_mint(clusterless, 1)

    assert backoffs(clusterless) == []
    assert clusterless.outbox.take("ostler.rematch") == [{}]
    assert rematch(clusterless) == [2, 3]


def test_success_of_another_group_resets_nothing(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    queue(clusterless, 1, pool="large")
    queue(clusterless, 2, pool="gpu")
    run_mint(clusterless, 1)

    run_mint(clusterless, 2)

    assert [row.key for row in backoffs(clusterless)] == ["501/2"]


def test_job_that_moves_to_a_pool_of_another_group_goes_on(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    queue(clusterless, 1, pool="large")
    run_mint(clusterless, 1)
    clusterless.rows("UPDATE jobs SET not_before = now() - interval '1 s', labels = '{gpu}'")

    assert rematch(clusterless) == [1]


def test_jobs_of_a_pool_go_on_when_its_refused_runner_group_changes(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    (pool,) = clusterless.rows("UPDATE pools SET runner_group_id = 7 WHERE name = 'large' RETURNING id")

    transaction(clusterless.rt.engine, lambda db: unroute_page(db, pool.id, after_id=0, limit=100, now=utcnow()))

    assert rematch(clusterless) == [1, 2]


def test_refusal_still_holds_its_jobs_when_something_else_of_their_pool_changes(
    clusterless: Stage, github: RefusingGitHub
) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    (pool,) = clusterless.rows("SELECT id FROM pools WHERE name = 'large'")

    transaction(clusterless.rt.engine, lambda db: unroute_page(db, pool.id, after_id=0, limit=100, now=utcnow()))

    assert rematch(clusterless) == []
    assert holds(clusterless) == {1: "backoff", 2: "backoff"}


@pytest.mark.parametrize(
    ("pool", "scope"), [("large", "orgs/acme"), ("gpu", "orgs/acme"), ("plain", "repos/acme/shop")]
)
def test_new_permissions_end_every_refusal_of_their_account_and_no_other(
    clusterless: Stage, github: RefusingGitHub, pool: str, scope: str
) -> None:
    github.refuses = dict.fromkeys((1, 2, 3), said(Forbidden("no"), status=403))
    for job in (1, 2):
        queue(clusterless, job, pool=pool, scope=scope)
    run_mint(clusterless, 1)
    clusterless.rows(
        "INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)"
        " SELECT kind, key, now(), 1, '', now() FROM (VALUES ('runner_group', '5012/2'), ('repository', 'acme2/shop'))"
        " AS other (kind, key)"
    )

    transaction(
        clusterless.rt.engine,
        lambda db: installations.come_back(
            db, installation_id=501, account_id=1, login="acme", budget=Budget(1, 1000, 1024), now=utcnow()
        ),
    )

    assert [row.key for row in backoffs(clusterless)] == ["acme2/shop", "5012/2"]
    assert rematch(clusterless) == [1, 2]


def offer(stage: Stage, pool: str) -> None:
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) VALUES ('w', now(), now()) ON CONFLICT DO NOTHING")
    stage.rows(
        "INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)"
        " SELECT 'offer-' || name, id, 'w', 'p', now() + interval '1 minute' FROM pools WHERE name = :pool",
        pool=pool,
    )


def brake(stage: Stage, pool: str) -> None:
    stage.rows(
        """
        INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at, why)
        SELECT n, id, 'h', n, n, 'pod-' || n, now(), now(), 'it ended' FROM pools, generate_series(91, 99) n
        WHERE name = :pool
        """,
        pool=pool,
    )


@pytest.mark.parametrize("dead", ["without Pods", "braked"])
def test_probe_is_a_job_whose_pool_has_a_pod_for_it(clusterless: Stage, github: RefusingGitHub, dead: str) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    clusterless.rows("UPDATE pools SET runner_group_id = 2, runner_group_name = NULL WHERE name = 'gpu'")
    for job, pool in enumerate(("large", "large", "large", "gpu", "gpu"), start=1):
        queue(clusterless, job, pool=pool)
    run_mint(clusterless, 1)
    wait_over(clusterless)
    offer(clusterless, "gpu")
    if dead == "braked":
        offer(clusterless, "large")
        brake(clusterless, "large")

    pages = transaction(
        clusterless.rt.engine, lambda db: rematch_page(db, accounts_to_rematch(db), limit=2, now=utcnow())
    )
    assert pages.lifted == ()  # the other pool's jobs stand on a later page

    assert rematch(clusterless) == [4]
    assert holds(clusterless) == {1: "backoff", 2: "backoff", 3: "backoff", 4: None, 5: "backoff"}


def test_probe_of_a_pool_without_pods_goes_when_no_other_job_waits_now(
    clusterless: Stage, github: RefusingGitHub
) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    clusterless.rows("UPDATE pools SET runner_group_id = 2, runner_group_name = NULL WHERE name = 'gpu'")
    queue(clusterless, 1, pool="large")
    queue(clusterless, 2, pool="gpu")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    offer(clusterless, "gpu")
    clusterless.rows("UPDATE jobs SET not_before = now() + interval '1 hour' WHERE id = 2")

    assert rematch(clusterless) == [1]


def test_probe_stays_one_while_its_pool_was_routed_lately(clusterless: Stage, github: RefusingGitHub) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    assert rematch(clusterless) == [1]
    clusterless.rows("UPDATE pools SET routed_at = now()")

    assert rematch(clusterless) == []
    assert holds(clusterless) == {1: None, 2: "backoff"}


def test_refused_probe_waits_with_the_others_when_its_hold_is_checked_early(
    clusterless: Stage, github: RefusingGitHub
) -> None:
    github.refuses = {2: said(Forbidden("no"), status=403)}
    for job in (1, 2):
        queue(clusterless, job, pool="large")
    run_mint(clusterless, 1)
    wait_over(clusterless)
    assert rematch(clusterless) == [1]
    run_mint(clusterless, 1)
    clusterless.rows("UPDATE jobs SET not_before = NULL")

    assert rematch(clusterless) == []
    assert holds(clusterless) == {1: "backoff", 2: "backoff"}
