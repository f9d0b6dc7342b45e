"""Mints that wait for a rate limit block no worker thread: the worker runs every other message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from cryptography.fernet import Fernet

from github_adapters.endpoints.runners import Jit
from lab.redis import Redis
from ostler.encryption import Cipher
from ostler.errors import RateLimited
from ostler.secrets import Secret
from ostler.task_names import QUEUES
from rules.routing.scopes import Scope
from tasks.claims.mint import mint
from tasks.sweeps import resume as of_resume
from tasks.sweeps.resume import resume
from tasks.worker.app import SETTINGS, app
from tasks.worker.base import LONGEST_MESSAGE, MINT
from tests.integration.tasks.conftest import Stage
from tests.waiting import eventually

MOST_WAITING = 3
"""Maximum number of messages that the worker of this test prefetches."""
PACED = 8


class PacingGitHub:
    """A GitHub that requests a wait for every runner whose Pod is in `paced`."""

    def __init__(self) -> None:
        self.paced: set[str] = set()
        self.answer = RateLimited("Ostler's own rate limit", after=60, paced=True)

    def mint(self, *, name: str, scope: Scope, **_rest: Any) -> Jit:
        del scope
        if name.rpartition("-")[0] in self.paced:
            raise self.answer
        return Jit(runner_id=8, runner_name=name, config=Secret("jit"))


@pytest.fixture
def github(clusterless: Stage) -> PacingGitHub:
    clusterless.rt.github = github = PacingGitHub()
    clusterless.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    return github


@pytest.fixture
def worker(redis_server: Redis) -> Iterator[None]:
    """A real worker on all queues, in threads of this process."""
    before = app.conf.broker_url
    app.conf.update({**SETTINGS, "broker_url": redis_server.url, "worker_eta_task_limit": MOST_WAITING})
    with start_worker(
        app, pool="threads", concurrency=2, perform_ping_check=False, loglevel="WARNING", queues=list(QUEUES)
    ):
        yield
    app.conf.update(broker_url=before, worker_eta_task_limit=SETTINGS["worker_eta_task_limit"])
    app.close()


def claimed(stage: Stage, number: int) -> int:
    stage.add_pod(f"pod-{number}")
    stage.job(number)
    return stage.claim(f"pod-{number}", job_id=number, state="claimed")


@pytest.mark.usefixtures("worker")
def test_worker_consumes_other_messages_when_many_mints_are_paced(clusterless: Stage, github: PacingGitHub) -> None:
    stage = clusterless
    waiting = [claimed(stage, number) for number in range(PACED)]
    github.paced = {f"pod-{number}" for number in range(PACED)}
    github.answer = RateLimited("Ostler's own rate limit", after=145, paced=True)
    for claim_id in waiting:
        mint.apply_async(kwargs={"claim_id": claim_id, "chain_no": 1})
    eventually(lambda: all(stage.see(claim_id).last_error for claim_id in waiting), "every mint was paced")

    other = claimed(stage, PACED)
    mint.apply_async(kwargs={"claim_id": other, "chain_no": 1})
    eventually(lambda: stage.see(other).state == "minted", "the worker goes on")


def test_paced_mint_is_sent_again_by_resume_when_its_wait_is_over(
    clusterless: Stage, github: PacingGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = clusterless
    claim_id = claimed(stage, 1)
    github.paced = {"pod-1"}
    sent: list[tuple[list[int], int]] = []
    monkeypatch.setattr(of_resume, "start_chains", lambda ids, *, chain_no: sent.append((ids, chain_no)))

    mint.run(claim_id=claim_id, chain_no=1)
    resume.run()
    assert sent == [], "its time has not come"
    stage.rows("UPDATE claims SET due_at = due_at - interval '60 s'")
    resume.run()
    assert sent == [([claim_id], 2)]
    assert stage.rows("SELECT FROM repairs") == [], "a wait that was meant is no repair"
    assert stage.see(claim_id).stalled_cause is None

    github.paced = set()
    mint.run(claim_id=claim_id, chain_no=2)
    assert stage.see(claim_id).state == "minted"


def test_limit_of_github_that_repeats_backs_off_when_its_waits_are_long(
    clusterless: Stage, github: PacingGitHub
) -> None:
    stage = clusterless
    claim_id = claimed(stage, 1)
    github.paced = {"pod-1"}
    github.answer = RateLimited("GitHub asks to wait", after=LONGEST_MESSAGE + 1)
    for _ in range(MINT.task_retries):
        mint.run(claim_id=claim_id, chain_no=1)
        assert stage.see(claim_id).state == "claimed"

    mint.run(claim_id=claim_id, chain_no=1)

    assert stage.see(claim_id).state == "releasing"
    assert [row.kind for row in stage.rows("SELECT kind FROM backoffs")] == ["installation"]
