"""A worker is killed while it holds messages that Celery delays: `resume` repeats their steps, and no call is doubled.

Redis delivers such a message again five minutes later. Here it does so as soon as the jobs are over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text

from lab.bootstrap import LabPool
from lab.faults import Fault, FaultPlan
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from ostler.clock import utcnow
from ostler.task_names import MINT, queue_of
from tests.waiting import eventually

LABELS = ("self-hosted", "linux", "crowd")
JOBS = 12
MINTS = ".*generate-jitconfig.*"


@pytest.mark.cluster  # a long story
@pytest.mark.timeout(300)
def test_messages_of_a_killed_worker_change_nothing_when_they_come_again(tmp_path: Path) -> None:
    options = Options(
        pools=(LabPool("crowd", LABELS, JOBS, cpu="1", memory="1Gi"),),
        beats=1,
        real_pods=0,
        settings={
            **timings(resume_every=1),
            "OSTLER_DEFAULT_BUDGET_COUNT": str(JOBS),
            "OSTLER_DEFAULT_BUDGET_VCPU": str(JOBS),
            "OSTLER_DEFAULT_BUDGET_MEMORY_GIB": str(JOBS),
        },
        github_faults=FaultPlan(()),
    )
    with System(tmp_path, options, say=print, cluster="embedded") as system:
        engine = create_engine(system.postgres.url("ostler"))
        broker = redis.Redis.from_url(system.redis.url, decode_responses=True)

        def rows(statement: str) -> Any:
            with engine.connect() as db:
                return db.execute(text(statement)).all()

        eventually(lambda: rows("SELECT count(*) FROM offers WHERE until > now()")[0][0] >= JOBS, within=60)
        system.faults("github", Fault(kind="status", method_regex="POST", path_regex=MINTS, status=503))
        job = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.2, "count": JOBS}
        system.lab("POST", "/jobs", job)
        eventually(lambda: delayed(broker, by=0.5), within=30)
        system.children["worker-0"].kill()
        held = delayed(broker, by=0)
        assert held, "no message was delayed when the worker was killed"
        system.no_faults("github")
        system.restart("worker-0")

        eventually(lambda: rows("SELECT count(*) FROM jobs WHERE state = 'completed'")[0][0] == JOBS, within=90)
        assert held.keys() <= delayed(broker, by=None).keys(), "Redis delivered them before the jobs were over"
        calls = minted(system)
        chains = dict(rows("SELECT id, chain_no FROM claims WHERE purpose = 'job'"))
        broker.zadd("unacked_index", dict.fromkeys(held, 0), xx=True)
        eventually(lambda: not held.keys() & delayed(broker, by=None).keys(), "they do not come again", within=60)
        left = set(held.values())
        eventually(
            lambda: not broker.llen(queue_of(MINT)) and not left & set(delayed(broker, by=None).values()),
            "they are not executed",
            within=30,
        )
        assert minted(system) == calls
        assert dict(rows("SELECT id, chain_no FROM claims WHERE purpose = 'job'")) == chains
        assert {chains[claim] for claim in held.values()} <= {1, 2}, "a chain number was raised needlessly"
        engine.dispose()
        broker.close()
    assert not judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True).problems


def delayed(broker: redis.Redis, *, by: float | None) -> Mapping[str, int]:
    """Return the claims of the delayed mints that a worker holds, by the tag of their message in Redis.

    `by`: the shortest time in seconds that such a message still waits. None: all messages.
    """
    found = {}
    for tag, entry in broker.hgetall("unacked").items():
        message = json.loads(entry)[0]
        headers = message["headers"]
        waits = headers.get("eta") and (datetime.fromisoformat(headers["eta"]) - utcnow()).total_seconds()
        if headers["task"] == MINT and waits is not None and (by is None or waits >= by):
            found[str(tag)] = int(json.loads(base64.b64decode(message["body"]))[1]["claim_id"])
    return found


def minted(system: System) -> int:
    """Return the number of mints that reached the lab's GitHub."""
    return sum(event["event"] in {"runner_registered", "mint_conflict"} for event in read_log(system.github_log))
