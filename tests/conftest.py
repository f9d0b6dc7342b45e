"""Fixtures that every kind of test may use."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# How long an example takes is the machine's affair: never assert on wall time.
settings.register_profile("ostler", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A mutant's run needs to fail, not to explain: the same examples every time, and no search for a smaller one.
settings.register_profile(
    "mutants", settings.get_profile("ostler"), derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("ostler")

pytest_plugins = ["tests.cluster", "tests.database", "tests.programs"]
