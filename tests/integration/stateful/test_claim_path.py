"""The claim path under all events at once: hypothesis drives it, and the laws hold after each rule."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

from tests.database import Database
from tests.integration.stateful import world
from tests.integration.stateful.machine import ClaimPath
from tests.integration.stateful.seeds import SEEDS

STEPS = 50
EXAMPLES = 60
MORE = 600
"""Number of examples in `make test-slow`."""

SEARCH = 2000
"""Number of examples within which a seeded bug must be found."""

CHEAP = "registration takes a job"
"""The seed of the default run. `-m seeds` runs the others."""


def _marked(name: str) -> Any:
    return name if name == CHEAP else pytest.param(name, marks=pytest.mark.seeds)


def profile(examples: int, *phases: Phase) -> settings:
    """Return settings for the same examples in every run, without a database of earlier ones."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases or (Phase.generate, Phase.shrink),
    )


@pytest.fixture
def machine(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ClaimPath]]:
    with database.engine.connect() as db:
        name = db.execute(text("SELECT current_database()")).scalar_one()
        db.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
        db.commit()
    quick = create_engine(database.url.reveal(), pool_size=30, max_overflow=0, hide_parameters=True)
    configured = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    class Machine(ClaimPath):
        engine = quick
        settings = world.settings_of(database.url)

    world.install(monkeypatch, lambda: Machine.worlds[0])
    yield Machine
    structlog.configure(**configured)
    quick.dispose()


@pytest.mark.timeout(3600)  # a failure is made small before it is shown
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MORE, marks=pytest.mark.slow)])
def test_the_laws_hold_in_any_order(machine: type[ClaimPath], examples: int) -> None:
    run_state_machine_as_test(machine, settings=profile(examples))


@pytest.mark.timeout(1200)  # the search takes up to 4 minutes alone, and several times that beside other tests
@pytest.mark.parametrize("seed", [_marked(name) for name in SEEDS])
def test_a_seeded_bug_is_found(machine: type[ClaimPath], monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    machine.prepare = [SEEDS[seed](monkeypatch)]
    with pytest.raises((AssertionError, IntegrityError)):
        run_state_machine_as_test(machine, settings=profile(SEARCH, Phase.generate))
