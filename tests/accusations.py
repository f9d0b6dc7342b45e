"""Explanations that blame another client for the end of a Pod, in a run in which no other client touched a Pod."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from lab.system import System
from models.browse.jobs import job_story
from models.claims import pod_ends
from ostler.clock import utcnow
from ostler.timings import Timings
from rules.claims.pod_ends import describe
from rules.waiting.jobs import explain

ACCUSED = "other than Ostler"


def accusations(system: System) -> list[str]:
    """Return the statements of `ostler pod` and `ostler job` about another client, for all Pods and jobs of a system.

    Raises AssertionError if the system ran no job, because the result would then prove nothing.
    """
    engine = create_engine(system.postgres.url("ostler"))
    try:
        with engine.connect() as db:
            pods = db.execute(text("SELECT uid, name FROM runner_pods WHERE uid IS NOT NULL ORDER BY id")).all()
            jobs = db.execute(text("SELECT id FROM jobs ORDER BY id")).scalars().all()
            assert pods
            assert jobs
            told = [describe(pod_ends.read(db, pod.uid), pod=f"Pod {pod.name}") or "" for pod in pods]
            for job in jobs:
                story = job_story(db, job, timings=Timings(), now=utcnow())
                assert story is not None
                told.append(f"job {job}: {explain(story.facts)}")
    finally:
        engine.dispose()
    return [each for each in told if ACCUSED in each]
