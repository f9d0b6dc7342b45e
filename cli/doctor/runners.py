"""Checks of the runner versions of the pools, and of persistent runners without jobs.

GitHub refuses a version 30 days after the release of the next version. The version of a pool comes from GitHub's list
of runners, if the list has contained a runner of the current template. Otherwise the version comes from the tag of the
pool's image.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cli.doctor.context import CALL_WITHIN, Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from rules.pools.runner_versions import SOON, version_of

RELEASES = "compare with https://github.com/actions/runner/releases"


def runner_version(context: Context) -> Verdict:
    """Check that GitHub accepts the runner versions of the pools and will not refuse one soon."""
    images = context.rows.images or {}
    tagged = {name: version for name, image in images.items() if (version := version_of(image)) is not None}
    seen = {name: version for name, version in (context.rows.versions or {}).items() if name in images}
    versions = tagged | seen
    if images and not versions:
        cure = (
            "tag images by runner version, as in actions-runner:2.330.0; GitHub refuses a version 30 days after the "
            "next version"
        )
        said = "no runner of the pools has been listed yet, and the tags of their images have no version"
        return unknown(f"{said}: {', '.join(sorted(set(images.values())))}", cure)
    if not images:
        return ok("there is no pool")
    ends = _ends(context, sorted(set(versions.values())))
    if isinstance(ends, str) and context.lab_github:
        return ok("the lab's GitHub accepts every version of the runner")
    if isinstance(ends, str):
        return unknown(ends, RELEASES)
    return _judge(images, versions, ends, now=context.rows.now)


def unused_runners(context: Context) -> Verdict:
    """Check that each persistent runner that has been online for a day had a job."""
    found = context.rows.unused_runners
    if not found:
        return ok("every persistent runner that was online for a day had a job")
    named = ", ".join(f"{pool} ({count})" for pool, count in found)
    cure = (
        "check that the runner group of the pool admits the repositories, and that their jobs ask for runnerLabels of "
        "the pool; or lower replicas"
    )
    return warning(f"persistent runners were online for a day without a job: {named}", cure)


def _ends(context: Context, versions: list[str]) -> Mapping[str, datetime] | str:
    """Return for each version the time until which GitHub accepts it.

    If this time is unknown, return a text that says why.
    """
    place = next((each for each in context.installations if each.organization and not each.suspended), None)
    if place is None:
        return "GitHub can be asked about runner versions only for an organisation, and none has the App"
    ends: dict[str, datetime] = {}
    for version in versions:
        found = context.github.runner_ends(
            installation_id=place.id, login=place.login, version=version, deadline_seconds=CALL_WITHIN
        )
        if found is None:
            return f"GitHub does not say until when it accepts runner {version}"
        ends[version] = found
    return ends


def _judge(
    images: Mapping[str, str], versions: Mapping[str, str], ends: Mapping[str, datetime], *, now: datetime
) -> Verdict:
    told = ", ".join(f"{version} until {end:%Y-%m-%d}" for version, end in ends.items())
    over = {version for version, end in ends.items() if end <= now}
    soon = {version for version, end in ends.items() if now < end < now + SOON}
    pools = ", ".join(sorted(name for name, version in versions.items() if version in over | soon))
    cure = f"build a new image with a newer runner and set it in {pools}"
    if over:
        return failed(f"GitHub refuses runners that are too old: {told}", cure)
    if soon:
        return warning(f"GitHub will soon refuse a runner: {told}", cure)
    silent = ", ".join(sorted(set(images) - set(versions)))
    return ok(f"GitHub accepts runner {told}" + (f"; unknown for {silent}" if silent else ""))
