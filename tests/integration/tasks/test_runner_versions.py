"""Runners that update themselves, and the versions that GitHub's runner lists show."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.db.engine import transaction
from models.pools import runner_versions
from ostler.clock import utcnow
from tasks.pools.runner_versions import outdated
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub

VERSION = "2.336.0"


@pytest.fixture
def github(clusterless: Stage) -> StubGitHub:
    clusterless.rt.github = made = StubGitHub()
    return made


def delivered(stage: Stage, *, age: float = 100) -> int:
    """Return a claim that was delivered some seconds ago, to a runner that executes nothing."""
    stage.job(1)
    stage.add_pod("pod")
    return stage.claim("pod", job_id=1, state="delivered", age=age, runner=RUNNER)


def versions(stage: Stage) -> list[tuple[str, str]]:
    """Return pools with the version of their runner."""
    return [(each.pool, each.version) for each in transaction(stage.rt.engine, runner_versions.read)]


def test_a_runner_that_updates_itself_is_waited_for(clusterless: Stage, github: StubGitHub) -> None:
    claim = delivered(clusterless)
    github.runner = "updating"

    unused_runners.run()

    assert clusterless.see(claim).state == "delivered"
    assert github.deleted == []


def test_a_runner_that_was_never_online_is_released_as_before(clusterless: Stage, github: StubGitHub) -> None:
    claim = delivered(clusterless)
    github.runner = "offline"

    unused_runners.run()

    assert clusterless.see(claim).state == "releasing"


def test_an_update_that_takes_longer_than_ten_minutes_is_waited_for_no_more(
    clusterless: Stage, github: StubGitHub
) -> None:
    claim = delivered(clusterless, age=700)
    github.runner = "updating"

    unused_runners.run()

    assert clusterless.see(claim).state == "releasing"


@pytest.mark.parametrize("ended", ["terminal_at = now()", "runner_exit_code = 0"])
def test_a_runner_whose_container_has_ended_is_not_waited_for(
    clusterless: Stage, github: StubGitHub, ended: str
) -> None:
    claim = delivered(clusterless)
    clusterless.rows(f"UPDATE runner_pods SET {ended}")  # noqa: S608  one of the two above
    github.runner = "updating"

    unused_runners.run()

    assert clusterless.see(claim).state == "releasing"


def test_the_versions_of_a_list_are_those_of_the_pools(clusterless: Stage, github: StubGitHub) -> None:
    delivered(clusterless)
    github.runner = "updating"
    github.version_ends = utcnow() + timedelta(days=3)

    unused_runners.run()

    assert versions(clusterless) == [("small", VERSION)]
    (pool,) = clusterless.rows("SELECT id FROM pools")
    assert f"will refuse runner {VERSION}" in (outdated(clusterless.rt, pool.id) or "")  # type: ignore[arg-type]


def test_lasting_version_is_not_reported_and_is_checked_once_a_day(clusterless: Stage, github: StubGitHub) -> None:
    delivered(clusterless)
    github.runner = "updating"
    github.version_ends = utcnow() + timedelta(days=20)
    unused_runners.run()
    (pool,) = clusterless.rows("SELECT id FROM pools")
    assert outdated(clusterless.rt, pool.id) is None  # type: ignore[arg-type]

    def due(days: float) -> str | None:
        now = utcnow() + timedelta(days=days)
        return transaction(clusterless.rt.engine, lambda db: runner_versions.to_ask(db, now=now))

    assert (due(0.9), due(1.1), due(1.103), due(1.2)) == (None, VERSION, None, VERSION)  # no answer, so asked again


def test_the_version_of_an_old_template_is_forgotten(clusterless: Stage, github: StubGitHub) -> None:
    delivered(clusterless)
    github.runner = "updating"
    unused_runners.run()
    clusterless.rows("UPDATE pools SET template_hash = 'mended'")

    assert versions(clusterless) == []


def test_a_list_that_another_process_took_shows_versions_too(clusterless: Stage, github: StubGitHub) -> None:
    claim = delivered(clusterless)
    github.runner = "updating"
    unused_runners.run()
    github.broken = True  # nobody asks GitHub: the list is a moment old

    unused_runners.run()

    assert clusterless.see(claim).state == "delivered"
