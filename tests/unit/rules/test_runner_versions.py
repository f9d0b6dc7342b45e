"""Warnings about the version of a runner."""

from datetime import UTC, datetime, timedelta

import pytest

from rules.pools.runner_versions import SOON, version_of, warn

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ends_at", "said"),
    [
        (None, None),
        (NOW + SOON + timedelta(seconds=1), None),
        (NOW + SOON, "GitHub will refuse runner 2.330.0 from 2026-12-07 on; use an image with a newer runner"),
        (
            NOW + timedelta(days=1),
            "GitHub will refuse runner 2.330.0 from 2026-11-24 on; use an image with a newer runner",
        ),
        (NOW, "GitHub has refused runner 2.330.0 since 2026-11-23; use an image with a newer runner"),
    ],
)
def test_a_version_is_told_of_from_two_weeks_before_its_end_on(ends_at: datetime | None, said: str | None) -> None:
    assert warn("2.330.0", ends_at, now=NOW) == said


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("ghcr.io/actions/actions-runner:2.328.0", "2.328.0"),
        ("registry:5000/our-actions-runner:v2.330.1-gpu", "2.330.1"),
        ("actions-runner:2.330.1@sha256:0", "2.330.1"),
        ("actions-runner:latest", None),
        ("registry.example/ci/runner:2.330.1", None),
    ],
)
def test_version_is_read_only_from_the_tag_of_a_runner_image(image: str, version: str | None) -> None:
    assert version_of(image) == version
