"""The stage of the tasks' tests, with a Postgres that is not trusted yet."""

from __future__ import annotations

import pytest

from tests.integration.tasks.conftest import Stage, StubGitHub, github, pod, stage

__all__ = ["Stage", "StubGitHub", "github", "pod", "stage", "untrusted"]


@pytest.fixture
def untrusted(stage: Stage) -> Stage:
    """A stage in the state after a new installation."""
    stage.rows("UPDATE epochs SET trusted_until = NULL")
    return stage
