"""Access to a pool: allow lists, jobs of forks, and runner groups, from the webhook to the mint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Row

from github_adapters.endpoints.runners import Jit
from github_adapters.endpoints.runs import RunSeen
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Forbidden, Gone, RateLimited, Retryable, UpstreamError
from ostler.secrets import Secret
from rules.routing.runner_groups import GroupSeen
from tasks.claims.mint import mint
from tasks.routing.run_origins import ask_run
from tasks.sweeps.rematch import rematch
from tests.integration.models.webhook_rows import deliver, queued
from tests.integration.tasks.conftest import Stage, run_seen
from tests.messages import execute
from tests.rows import insert_pool

HERE, FORK = 5, 66
DEFAULT = GroupSeen(id=1, name="Default", visibility="all", public=False)


@dataclass(slots=True)
class AskedGitHub:
    """A GitHub that answers about runs and groups, and counts the questions."""

    head: int | None = HERE
    event: str = "push"
    groups: list[GroupSeen] = field(default_factory=lambda: [DEFAULT])
    visible: list[int] = field(default_factory=list)
    breaks: UpstreamError | None = None
    mint_breaks: UpstreamError | None = None
    knows_run: bool = True
    asked: list[str] = field(default_factory=list)
    minted_in: list[int] = field(default_factory=list)

    def get_run(self, *, run_id: int, **_: Any) -> RunSeen | None:
        self.asked.append(f"run {run_id}")
        if self.breaks is not None:
            raise self.breaks
        seen = run_seen(run_id, "queued")
        home = replace(seen.home, repository_id=HERE)
        return replace(seen, home=home, event=self.event, head_repository_id=self.head) if self.knows_run else None

    def list_runner_groups(self, *, visible_to: str | None = None, **_: Any) -> list[GroupSeen]:
        self.asked.append("groups" if visible_to is None else f"groups of {visible_to}")
        if self.breaks is not None:
            raise self.breaks
        return self.groups if visible_to is None else [each for each in self.groups if each.id in self.visible]

    def mint(self, *, name: str, runner_group_id: int, **_: Any) -> Jit:
        self.minted_in.append(runner_group_id)
        if self.mint_breaks is not None:
            raise self.mint_breaks
        return Jit(runner_id=8, runner_name=name, config=Secret("jit"))


@pytest.fixture
def github(clusterless: Stage) -> AskedGitHub:
    stub = AskedGitHub()
    clusterless.rt.github = stub
    clusterless.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    return stub


def job(stage: Stage, job_id: int = 1) -> Row[Any]:
    (row,) = stage.rows("SELECT * FROM jobs WHERE id = :id", id=job_id)
    return row


def came(stage: Stage, *job_ids: int, **changes: Any) -> frozenset[int]:
    """Deliver the webhooks of jobs, and return the runs that GitHub must be asked about."""
    about = {"labels": ("self-hosted",), "public": True, "created_at": utcnow()} | changes
    applied = deliver(stage.rt.engine, *(queued(each, **about) for each in job_ids), now=utcnow())
    return applied.asks


# Allow lists


def test_a_job_that_a_rule_keeps_out_says_so_and_goes_on_when_the_rule_is_loosened(
    clusterless: Stage, github: AskedGitHub
) -> None:
    clusterless.rows("UPDATE pools SET allowed_repositories = '{acme/other}'")
    came(clusterless, 1, public=False)
    held = job(clusterless)
    assert (held.hold_reason, held.pool_id) == ("not_allowed", None)
    assert held.hold_detail == "pool small: its allowedRepositories do not name acme/app"

    clusterless.rows("UPDATE pools SET allowed_repositories = '{}', allowed_accounts = '{3}'")
    rematch.run()
    assert job(clusterless).hold_detail == "pool small: its allowedAccounts do not name account 77"

    clusterless.rows("UPDATE pools SET allowed_accounts = '{77}'")
    rematch.run()
    assert (job(clusterless).hold_reason, job(clusterless).hold_detail) == (None, None)
    assert clusterless.outbox.take("wake")
    assert github.asked == []


# Forks


def test_a_run_of_a_public_repository_is_asked_about_once_for_all_its_jobs(
    clusterless: Stage, github: AskedGitHub
) -> None:
    assert came(clusterless, 1, 2) == {900}
    assert {job(clusterless, each).hold_reason for each in (1, 2)} == {"origin_unknown"}

    for _ in range(2):
        ask_run.run(run_id=900)
    assert came(clusterless, 3) == frozenset()
    ask_run.run(run_id=900)

    assert github.asked == ["run 900"]
    assert {job(clusterless, each).hold_reason for each in (1, 2, 3)} == {None}
    assert clusterless.outbox.take("wake")


@pytest.mark.parametrize(("event", "head"), [("pull_request", FORK), ("push", None), ("pull_request_target", HERE)])
def test_a_job_of_a_fork_is_held_until_a_pool_says_that_it_may_come(
    clusterless: Stage, github: AskedGitHub, event: str, head: int | None
) -> None:
    github.event, github.head = event, head
    came(clusterless, 1)
    ask_run.run(run_id=900)
    held = job(clusterless)
    assert held.hold_reason == "not_allowed"
    assert held.hold_detail == "pool small: its allowForks is false, and the run comes from a fork of acme/app"
    assert clusterless.outbox.take("wake") == []

    clusterless.rows("UPDATE pools SET allow_forks = true")
    rematch.run()
    assert job(clusterless).hold_reason is None


def test_nobody_is_asked_about_private_repositories_nor_where_it_makes_no_difference(
    clusterless: Stage, github: AskedGitHub
) -> None:
    assert came(clusterless, 1, public=False) == frozenset()
    clusterless.rows("UPDATE pools SET allow_forks = true")
    assert came(clusterless, 2) == frozenset()
    assert {job(clusterless, each).hold_reason for each in (1, 2)} == {None}
    assert github.asked == []


@pytest.mark.parametrize(
    "breaks",
    [
        Retryable("down"),
        Forbidden("403"),
        Gone("404"),
        RateLimited("soon", after=3),
        RateLimited("later", after=30),
        None,
    ],
    ids=["down", "403", "404", "limited for a moment", "limited", "not shown"],
)
def test_a_question_without_an_answer_keeps_the_job_and_is_repeated_later(
    clusterless: Stage, github: AskedGitHub, breaks: UpstreamError | None
) -> None:
    came(clusterless, 1)
    github.breaks, github.knows_run = breaks, False
    message = execute(ask_run, run_id=900)
    # A longer wait is the sweep's: a worker holds no message for it.
    brief = isinstance(breaks, Retryable) or (isinstance(breaks, RateLimited) and breaks.after == 3)
    assert (message is not None) == brief
    clusterless.rows("UPDATE run_origins SET ask_after = ask_after + interval '1 h'")
    for _ in range(2):
        assert execute(ask_run, run_id=900) is None
    rematch.run()
    assert github.asked == ["run 900"]
    assert clusterless.outbox.take("ostler.ask_run") == []
    held = job(clusterless)
    assert held.hold_reason == "origin_unknown"
    assert held.hold_detail.startswith("it is not known whether the run of the job comes from a fork (")

    clusterless.rows("UPDATE run_origins SET ask_after = now()")
    rematch.run()
    assert clusterless.outbox.take("ostler.ask_run") == [{"run_id": 900}]
    github.breaks, github.knows_run = None, True
    ask_run.run(run_id=900)
    assert job(clusterless).hold_reason is None


def test_a_lost_question_is_sent_again_by_the_sweep(clusterless: Stage, github: AskedGitHub) -> None:
    came(clusterless, 1)
    rematch.run()
    assert clusterless.outbox.take("ostler.ask_run") == [{"run_id": 900}]
    assert github.asked == []


def test_a_job_that_its_environment_holds_is_asked_about_when_it_may_go(
    clusterless: Stage, github: AskedGitHub
) -> None:
    assert came(clusterless, 1, action="waiting", status="waiting") == frozenset()
    assert came(clusterless, 1) == {900}
    ask_run.run(run_id=900)
    assert job(clusterless).hold_reason is None
    assert github.asked == ["run 900"]


# Runner groups


def claim(stage: Stage, job_id: int = 1, **changes: Any) -> int:
    """Queue a job and claim a Pod for it, as dispatch would."""
    came(stage, job_id, **({"public": False, "installation_id": 501} | changes))
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT id, 'none', :name, :name, 'a', 'h', now() FROM pools
        """,
        name=f"small-{job_id}",
    )
    (row,) = stage.rows(
        """
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                            vcpu, memory, state, stamp, created_at, changed_at)
        SELECT 'job', j.id, p.id, p.uid, p.pool_id, j.account_id, j.installation_id, j.scope, 1, 1, 'claimed',
               'gave_up', now(), now()
        FROM jobs j, runner_pods p WHERE j.id = :job AND p.name = :name RETURNING id
        """,
        job=job_id,
        name=f"small-{job_id}",
    )
    stage.rows("UPDATE jobs SET state = 'claimed' WHERE id = :job", job=job_id)
    claim_id: int = row.id
    return claim_id


def wants_group(stage: Stage, group: int | str) -> None:
    stage.rows(
        "UPDATE pools SET runner_group_id = :number, runner_group_name = :name",
        number=group if isinstance(group, int) else 0,
        name=group if isinstance(group, str) else None,
    )


def test_a_group_is_resolved_by_its_name_once_for_many_mints(clusterless: Stage, github: AskedGitHub) -> None:
    wants_group(clusterless, "ci")
    github.groups = [DEFAULT, GroupSeen(id=4, name="ci", visibility="all", public=False)]
    for each in (1, 2, 3):
        mint.run(claim_id=claim(clusterless, each))
    assert github.minted_in == [4, 4, 4]
    assert github.asked == ["groups"]


def test_the_default_group_costs_no_question(clusterless: Stage, github: AskedGitHub) -> None:
    mint.run(claim_id=claim(clusterless))
    assert (github.minted_in, github.asked) == ([1], [])


def test_a_group_that_does_not_exist_holds_the_job_and_its_like_without_a_mint(
    clusterless: Stage, github: AskedGitHub
) -> None:
    wants_group(clusterless, "gone")
    claim_id = claim(clusterless)
    came(clusterless, 2, public=False, installation_id=501, repository="acme/other", repository_id=6)
    mint.run(claim_id=claim_id)

    assert github.minted_in == []
    (claimed,) = clusterless.rows("SELECT state FROM claims")
    assert claimed.state == "releasing"
    (other,) = clusterless.rows("SELECT hold_reason, hold_detail, not_before > now() AS waits FROM jobs WHERE id = 2")
    assert (other.hold_reason, other.waits) == ("runner_group", True)
    assert other.hold_detail == "runner group 'gone' does not exist in organisation acme"
    assert job(clusterless).hold_reason == "runner_group"
    # One that comes later is held before it has a Pod.
    came(clusterless, 3, public=False, installation_id=501)
    assert (job(clusterless, 3).hold_reason, job(clusterless, 3).pool_id) == (
        "runner_group",
        job(clusterless, 1).pool_id,
    )
    assert github.asked == ["groups"]


def test_a_group_that_was_mended_is_seen_after_the_wait_and_a_changed_pool_at_once(
    clusterless: Stage, github: AskedGitHub
) -> None:
    wants_group(clusterless, "gone")
    mint.run(claim_id=claim(clusterless))
    came(clusterless, 2, public=False, installation_id=501)
    rematch.run()
    assert job(clusterless, 2).hold_reason == "runner_group"

    github.groups.append(GroupSeen(id=9, name="gone", visibility="all", public=False))
    clusterless.rows("UPDATE runner_group_lists SET read_at = now() - interval '11 min'")
    clusterless.rows("UPDATE jobs SET not_before = now() - interval '1 s' WHERE id = 2")
    rematch.run()
    assert job(clusterless, 2).hold_reason is None
    mint.run(claim_id=claim(clusterless, 4))
    assert github.minted_in == [9]


def test_a_group_of_selected_repositories_is_asked_about_for_each(clusterless: Stage, github: AskedGitHub) -> None:
    wants_group(clusterless, 5)
    github.groups = [DEFAULT, GroupSeen(id=5, name="gpu", visibility="selected", public=False)]
    github.visible = [1]
    mint.run(claim_id=claim(clusterless))
    assert github.asked == ["groups", "groups of app"]
    assert job(clusterless).hold_detail == "runner group 5 of acme does not admit repository acme/app"
    github.visible = [1, 5]
    mint.run(claim_id=claim(clusterless, 2, repository="acme/tools", repository_id=6))
    assert github.minted_in == [5]


def test_a_public_repository_is_not_sent_to_a_group_that_admits_none(clusterless: Stage, github: AskedGitHub) -> None:
    clusterless.rows("UPDATE pools SET allow_forks = true")
    mint.run(claim_id=claim(clusterless, public=True))
    assert github.minted_in == []
    assert "does not admit public repositories" in job(clusterless).hold_detail


def retains(stage: Stage) -> None:
    """Let later runners of the pool get the volumes of earlier ones."""
    stage.rows("UPDATE pools SET workload = 'StatefulSet', volume_reclaim = 'Retain', volume_shape = 's'")


def test_a_runner_with_retained_volumes_joins_no_group_for_public_repositories(
    clusterless: Stage, github: AskedGitHub
) -> None:
    retains(clusterless)
    github.groups = [replace(DEFAULT, public=True)]
    mint.run(claim_id=claim(clusterless))
    assert (github.minted_in, github.asked) == ([], ["groups"])
    assert job(clusterless).hold_reason == "runner_group"
    assert job(clusterless).hold_detail == (
        "runner group 1 of acme admits public repositories, so a job of a fork could reach what the runners of the "
        "pool keep for later jobs"
    )
    came(clusterless, 2, public=False, installation_id=501, run_id=902)
    ask_run.run(run_id=902)
    assert job(clusterless, 2).hold_reason == "runner_group"

    github.groups = [DEFAULT]
    clusterless.rows("UPDATE runner_group_lists SET read_at = now() - interval '11 min'")
    clusterless.rows("UPDATE jobs SET not_before = now() - interval '1 s' WHERE id = 2")
    rematch.run()
    assert job(clusterless, 2).hold_reason is None
    mint.run(claim_id=claim(clusterless, 3))
    assert (github.minted_in, github.asked) == ([1], ["groups", "run 902", "groups"])


@pytest.mark.usefixtures("github")
def test_the_jobs_of_a_public_repository_go_to_the_pool_without_retained_volumes(clusterless: Stage) -> None:
    retains(clusterless)
    came(clusterless, 1)
    ask_run.run(run_id=900)
    assert job(clusterless).hold_detail == (
        "pool small: its volumes.reclaim is Retain, and acme/app is public, so a job of a fork could reach its volumes"
    )

    insert_pool(clusterless.rt.engine, uid="q", namespace="none", name="cold", labels=["self-hosted"])
    clusterless.rows("UPDATE pools SET allow_forks = true, routing_priority = -1 WHERE uid = 'q'")
    rematch.run()
    came(clusterless, 2)
    came(clusterless, 3, public=False, run_id=903)
    ask_run.run(run_id=903)
    names = {row.id: row.name for row in clusterless.rows("SELECT id, name FROM pools")}
    assert [names[job(clusterless, each).pool_id] for each in (1, 2, 3)] == ["cold", "cold", "small"]


def test_the_job_of_a_fork_of_a_private_repository_gets_no_retained_volume(
    clusterless: Stage, github: AskedGitHub
) -> None:
    retains(clusterless)
    github.event, github.head = "pull_request", FORK
    assert came(clusterless, 1, public=False) == {900}
    assert job(clusterless).hold_reason == "origin_unknown"
    ask_run.run(run_id=900)
    assert "the run comes from a fork of acme/app" in job(clusterless).hold_detail

    insert_pool(clusterless.rt.engine, uid="q", namespace="none", name="cold", labels=["self-hosted"])
    clusterless.rows("UPDATE pools SET routing_priority = -1 WHERE uid = 'q'")
    rematch.run()
    assert came(clusterless, 2, public=False) == frozenset()
    names = {row.id: row.name for row in clusterless.rows("SELECT id, name FROM pools")}
    assert [names[job(clusterless, each).pool_id] for each in (1, 2)] == ["cold", "cold"]
    assert github.asked == ["run 900"]


def test_a_public_repository_whose_job_was_claimed_before_gets_no_retained_volume(
    clusterless: Stage, github: AskedGitHub
) -> None:
    held = claim(clusterless, public=True)
    retains(clusterless)
    mint.run(claim_id=held)
    assert github.minted_in == []
    assert "acme/app is public, so a job of a fork could reach" in job(clusterless).hold_detail


def test_group_refused_by_github_is_looked_up_again(clusterless: Stage, github: AskedGitHub) -> None:
    wants_group(clusterless, "ci")
    github.groups = [GroupSeen(id=4, name="ci", visibility="all", public=False)]
    github.mint_breaks = Forbidden("403")
    mint.run(claim_id=claim(clusterless))
    assert clusterless.rows("SELECT * FROM runner_group_lists") == []


@pytest.mark.parametrize("breaks", [Forbidden("403"), Gone("404")])
def test_a_refused_list_of_groups_holds_the_jobs_of_its_pool_alone(
    clusterless: Stage, github: AskedGitHub, breaks: UpstreamError
) -> None:
    wants_group(clusterless, "ci")
    github.breaks = breaks
    mint.run(claim_id=claim(clusterless))
    assert job(clusterless).hold_reason == "runner_group"
    assert job(clusterless).hold_detail.startswith("GitHub did not list the runner groups of acme: ")
    assert clusterless.rows("SELECT 1 FROM backoffs WHERE failures > 0") == []


def test_failed_list_of_groups_leaves_no_attempt_to_look_up(clusterless: Stage, github: AskedGitHub) -> None:
    wants_group(clusterless, "ci")
    github.breaks = Retryable("down")
    with pytest.raises(Retryable):
        mint.run(claim_id=claim(clusterless))
    assert clusterless.rows("SELECT * FROM mint_attempts") == []
    github.breaks, github.groups = None, [GroupSeen(id=4, name="ci", visibility="all", public=False)]
    clusterless.rows("UPDATE claims SET leased_until = NULL")
    mint.run(claim_id=clusterless.rows("SELECT id FROM claims")[0].id)
    assert github.minted_in == [4]
