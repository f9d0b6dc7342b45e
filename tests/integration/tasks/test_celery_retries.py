"""Steps that Celery repeats: one attempt at a time, even if messages are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from celery import Task
from kombu.exceptions import OperationalError

from models.db.engine import transaction
from models.state import claim_transitions
from ostler.clock import utcnow
from ostler.errors import Forbidden, RateLimited, Retryable, UpstreamError
from tasks.claims import release as of_release
from tasks.claims import retire as of_retire
from tasks.claims import stamp as of_stamp
from tasks.claims.release import release
from tasks.claims.retire import retire
from tasks.claims.stamp import unstamp
from tasks.sweeps.resume import resume
from tasks.worker.base import LATE, RELEASE
from tests.integration.tasks.conftest import RUNNER, Stage
from tests.messages import Message, execute

STEPS = ["release", "retire", "unstamp"]
AWAY = Retryable("503", status=503)


@dataclass(slots=True)
class Step:
    """A step that is due, and the upstream that it calls first. `error` is the answer of this upstream, or None."""

    stage: Stage
    task: Task
    claim: int
    calls: int = 0
    error: UpstreamError | None = None

    def run(self, message: Message | None = None, **how: Any) -> Message | None:
        """Execute the step for the first time, or execute the message that repeats it."""
        if message is None:
            return execute(self.task, claim_id=self.claim, **how)
        return execute(self.task, retries=message.retries, **message.arguments, **how)

    def chain_no(self) -> int:
        """Return the chain number of the claim."""
        number: int = self.stage.see(self.claim).chain_no
        return number

    def resumed(self) -> list[dict[str, Any]]:
        """Run `resume` and return the messages that it sent for this step."""
        resume.run()
        return self.stage.outbox.take(self.task.name)

    def pass_due_time(self) -> None:
        """Let the due time of the claim pass."""
        self.stage.rows("UPDATE claims SET due_at = now() - interval '1 s' WHERE id = :id", id=self.claim)

    def is_done(self) -> bool:
        """Return True if the step has finished."""
        row = self.stage.see(self.claim)
        return row.stamp == "off" if self.task is unstamp else row.ended_at is not None


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest, stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Each step in turn, with an upstream that answers."""
    where: ModuleType
    if request.param == "retire":
        made = Step(stage, retire, stage.retire_claim(pod))
        where, name = of_retire, "get_pod"
    elif request.param == "release":
        stage.job(7)
        claim = stage.claim(pod, job_id=7, state="claimed")
        ask = partial(claim_transitions.request_release, claim_id=claim, reason="test", now=utcnow(), who="test")
        assert transaction(stage.rt.engine, ask)
        made = Step(stage, release, claim)
        where, name = of_release, "read_pod"
    else:
        stage.job(7)
        made = Step(stage, unstamp, stage.claim(pod, job_id=7, state="minted", runner=RUNNER))
        stage.rows("UPDATE claims SET stamp = 'removing', due_at = now() WHERE id = :id", id=made.claim)
        where, name = of_stamp, "read_pod"
    real: Callable[..., Any] = getattr(where, name)

    def asked(*args: Any, **kwargs: Any) -> Any:
        made.calls += 1
        if made.error is not None:
            raise made.error
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, asked)
    return made


def test_failed_step_is_repeated_by_a_message_before_it_is_due(step: Step) -> None:
    step.error = AWAY
    began = utcnow()
    message = step.run()

    assert message is not None
    assert message.retries == 1
    assert 0 <= message.countdown <= 1
    row = step.stage.see(step.claim)
    assert (row.leased_until, row.last_error) == (None, "the server answered 503")
    assert (row.due_at - began).total_seconds() >= message.countdown + LATE
    assert message.arguments["chain_no"] == row.chain_no
    assert step.resumed() == []

    step.error = None
    assert step.run(message) is None
    assert step.is_done()


def test_events_of_a_step_name_its_task_and_its_attempt(step: Step) -> None:
    step.error = AWAY
    message = step.run()
    step.error = None
    step.run(message)
    events = step.stage.rows("SELECT task_id, attempt FROM claim_events WHERE task_id IS NOT NULL ORDER BY id")
    assert {each.task_id for each in events} == {"of-a-test"}
    assert events[-1].attempt == 2


def test_message_of_a_step_that_resume_sent_first_changes_nothing(step: Step) -> None:
    step.error = AWAY
    message = step.run()
    assert message is not None
    number = step.chain_no()
    step.pass_due_time()

    (sent,) = step.resumed()
    assert step.chain_no() == number + 1
    calls, step.error = step.calls, None
    assert step.run(message) is None
    assert (step.calls, step.chain_no()) == (calls, number + 1)

    assert execute(step.task, **sent) is None
    assert step.is_done()
    calls = step.calls
    assert step.run(message) is None  # redelivered, because the worker that had it was killed
    assert step.calls == calls


def test_step_is_left_to_resume_when_redis_refuses_its_message(step: Step) -> None:
    step.error = AWAY
    assert step.run(refusal=OperationalError("Redis is away")) is None
    number = step.chain_no()
    assert step.stage.see(step.claim).leased_until is None
    assert step.resumed() == []
    step.pass_due_time()

    (sent,) = step.resumed()
    assert step.chain_no() == number + 1
    step.error = None
    assert execute(step.task, **sent) is None
    assert step.is_done()


def test_attempts_of_a_step_count_over_messages_and_rows(step: Step) -> None:
    step.error = AWAY
    message = step.run()
    executions = 1
    while message is not None and message.retries <= RELEASE.task_retries:
        executions += 1
        try:
            message = step.run(message)
        except Retryable:
            message = None
    assert executions == RELEASE.task_retries + 1
    step.pass_due_time()

    (sent,) = step.resumed()
    retries = step.stage.outbox.retries[step.task.name]
    assert retries == RELEASE.task_retries
    with pytest.raises(Retryable):
        execute(step.task, retries=retries, **sent)


@pytest.mark.parametrize("error", [RateLimited("429", after=7), Forbidden("403")])
def test_step_sends_no_message_after_a_long_limit_or_a_refusal(step: Step, error: UpstreamError) -> None:
    step.error = error
    with pytest.raises(type(error)):
        step.run()
