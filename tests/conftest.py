"""Fixtures that every kind of test may use."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair: never assert on wall time.
settings.register_profile("ostler", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ostler")

pytest_plugins = ["tests.cluster", "tests.database", "tests.programs"]
