"""Shared state of the steps of one example: real tables and real task bodies, a list as broker, and a clock.

A message can run late, twice or never. A step runs in a separate thread and halts at its outside calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from celery.exceptions import Retry
from sqlalchemy import Connection, Engine, text

import tasks.claims.dispatch
import tasks.claims.mint
import tasks.pools.reconcile
import tasks.sweeps.frame.runner_lists
import tasks.sweeps.resume
import tasks.worker.base
import tasks.worker.runtime
from models.db.engine import in_transaction, transaction
from models.db.epochs import EpochRow
from models.schema import metadata
from ostler.errors import UpstreamError
from ostler.secrets import Secret
from ostler.settings import Settings
from ostler.task_names import AUTOSCALE, DISPATCH, MINT, RECONCILE, TaskName, queue_of
from ostler.timings import Timings
from tasks.worker.app import MODULES, app
from tasks.worker.base import MINT as RETRIES
from tasks.worker.base import Again
from tasks.worker.transactions import Transactions
from tests.integration.models.webhook_rows import NOW
from tests.integration.stateful.cluster import NAMESPACE, Cluster
from tests.integration.stateful.github import GitHub
from tests.integration.stateful.steps import CallOutcome, Killed, Step
from web.runners.handover import Handover, Missed, Recipient

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """A sent task. `chained` are the arguments of the errback of its chain."""

    name: str
    kwargs: dict[str, Any]
    chained: bool = False
    retries: int = 0


class _Cipher:
    def encrypt(self, secret: Secret) -> bytes:
        return secret.reveal().encode()

    def decrypt(self, token: bytes) -> Secret:
        return Secret(bytes(token).decode())


class _Threads:
    """The threads of web, in the form that web uses. Here everything runs in the step's own thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def deliver(self, body: Callable[[Connection], T]) -> T:
        return transaction(self._engine, body)

    async def cluster(self, call: Callable[[], T], *, within: float | None = None) -> T:
        del within
        return call()


@dataclass
class World(Transactions):
    """The state of one example. It is also the runtime of the tasks."""

    engine: Engine
    settings: Settings
    now: datetime = NOW
    messages: list[Message] = field(default_factory=list)
    stopped: list[Step] = field(default_factory=list)
    who: str = "worker"
    cipher: Any = field(default_factory=_Cipher)

    def __post_init__(self) -> None:
        self.cluster = Cluster()
        self.events = SimpleNamespace(record=lambda *_recorded: None)
        self.github = GitHub(late=self.cluster.late.append, clock=lambda: self.now)
        self.handover = Handover(
            threads=cast("Any", _Threads(self.engine)),
            cluster=cast("Any", SimpleNamespace(review=self._review)),
            cipher=self.cipher,
            publisher=cast("Any", self),
            counts=Counter(),
        )
        self.received: dict[str, str] = {}

    # The runtime of tasks

    @property
    def timings(self) -> Timings:
        """The timings among the settings."""
        return self.settings.timings

    @property
    def kube(self) -> Cluster:
        return self.cluster

    @property
    def waker(self) -> World:
        assert not in_transaction(), "a message is sent while a transaction is open"
        return self

    @property
    def wake_keys(self) -> World:
        return self

    def clear_wake(self, _pool_id: int) -> None:
        """Do nothing: there is no wake key. A wake is not sent while an equal one waits."""

    def wake(self, pool_id: int) -> None:
        self.send(DISPATCH, pool_id=pool_id)

    def autoscale(self) -> None:
        self.send(AUTOSCALE)

    def reconcile(self, pool_id: int, *, after: float = 0, shared: bool = False, ended: bool = False) -> None:
        how: dict[str, Any] = {"after": after, "shared": shared, "ended": ended}
        self.send(RECONCILE, pool_id=pool_id, **{name: value for name, value in how.items() if value})

    def is_watched(self, _namespace: str) -> bool:
        """Return False: no watch runs."""
        return False

    def clear_reconcile(self, _pool_id: int, *, shared: bool = False, ended: bool = False) -> None:
        """Do nothing: the reconciler has begun."""

    def record_pod_count(self, _pool_id: int, *, pods: int) -> None:
        """Do nothing: no code reads the count."""

    def may_reconcile(self, _pool_id: int) -> bool:
        """Return True: reconciles run as often as the machine draws them."""
        return True

    def oldest(self, _queue: str) -> None:
        """Return None: any message might have been lost."""

    @contextmanager
    def single_flight(self, _what: str) -> Iterator[bool]:
        yield True

    def send(self, name: TaskName, *, retries: int = 0, **kwargs: Any) -> None:
        queue_of(name)
        message = Message(name, kwargs, retries=retries)
        if message not in self.messages:
            self.messages.append(message)

    # Web

    def _review(self, _token: str, *, pod_uid: str) -> bool | None:
        try:
            self.cluster.call(f"review {pod_uid}", lambda: None)
        except UpstreamError:
            return None
        return True

    # Steps

    def begin(self, what: str, body: Callable[[], None], outcome: CallOutcome, *, at: int = 1) -> None:
        """Run a step to its outside call number `at`, which has `outcome`, and on. `HELD` halts it there."""
        step = Step(what, body)
        step.advance()
        for _ in range(at - 1):
            if not step.over:
                step.advance()
        self.go_on(step, outcome)

    def go_on(self, step: Step, outcome: CallOutcome) -> None:
        """Give the call at which a step is halted this outcome. All later calls succeed."""
        if step in self.stopped:
            self.stopped.remove(step)
        if not step.over:
            step.advance(outcome)
        while not step.over and outcome is not CallOutcome.HELD:
            step.advance()
        if not step.over:
            self.stopped.append(step)
        elif step.error is not None and not isinstance(step.error, Killed):
            raise step.error

    def stop_before(self, what: str, body: Callable[[], None], *, at: int) -> None:
        """Run a step up to its outside call number `at`, which is not applied yet."""
        step = Step(what, body)
        for _ in range(at):
            if not step.over:
                step.advance()
        if not step.over:
            self.stopped.append(step)
        elif step.error is not None:
            raise step.error

    def kill_all(self) -> None:
        """End every halted step like that of a dead process."""
        while self.stopped:
            step = self.stopped.pop()
            while not step.over:
                step.advance(CallOutcome.KILLED)

    def runs(self, message: Message) -> Callable[[], None]:
        """Return the body that runs a message as a worker would."""
        task = app.tasks[message.name]

        def body() -> None:
            task.push_request(retries=message.retries, called_directly=True)
            try:
                task.run(**message.kwargs)
            except Retry as again:
                self._again(message, again.arguments if isinstance(again, Again) else {})
            except UpstreamError:
                self._failed(message)
            else:
                if message.chained and message.name != MINT:
                    self.messages.append(Message("ostler.mint", message.kwargs, chained=True))
            finally:
                task.pop_request()

        return body

    def _again(self, message: Message, arguments: dict[str, Any]) -> None:
        if message.retries < RETRIES.task_retries:
            kwargs = message.kwargs | arguments
            self.messages.append(Message(message.name, kwargs, chained=message.chained, retries=message.retries + 1))
        else:
            self._failed(message)

    def _failed(self, message: Message) -> None:
        if message.chained:
            self.messages.append(Message("ostler.release", {"claim_id": message.kwargs["claim_id"]}))

    def start_chains(self, claim_ids: list[int], *, chain_no: int) -> None:
        """Replace `tasks.claims.dispatch.start_chains`."""
        for claim_id in claim_ids:
            self.messages.append(Message("ostler.stamp", {"claim_id": claim_id, "chain_no": chain_no}, chained=True))

    def hands_over(self, claim_id: int, pod_uid: str, poll_id: str, *, again: bool) -> Callable[[], None]:
        """Return the body of the answer that delivers a claim's JIT to the polling Pod."""

        def body() -> None:
            to = Recipient(
                pod_uid=pod_uid, pod_name=pod_uid, poll_id=poll_id, token=Secret("token"), accept="text/plain"
            )
            response = finished(self.handover.hand_over(claim_id, to, again=again))
            if isinstance(response, Missed):
                return
            try:
                self.cluster.call(f"answer {pod_uid}", lambda: self.receive(pod_uid, bytes(response.body).decode()))
            except UpstreamError:
                return
            if response.background is not None:
                finished(response.background())

        return body

    def receive(self, pod_uid: str, jit: str) -> None:
        """Let the poller write the JIT and exit 0, unless its Pod is gone or the poller has ended before."""
        before = self.received.setdefault(jit, pod_uid)
        assert before == pod_uid, f"{jit} was handed to {before} and to {pod_uid}"
        pod = self.cluster.by_uid(pod_uid)
        if pod is not None and pod.polls:
            pod.jits.append(jit)
            pod.given_at = self.now
            pod.poller_exit = 0

    def rows(self, statement: str, **values: Any) -> Any:
        """Return the rows of a query."""
        with self.engine.connect() as db:
            return db.execute(text(statement), values).all()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise AssertionError("the coroutine waits")


def settings_of(url: Secret) -> Settings:
    """Return settings with short queues."""
    return Settings(
        database_url=url,
        redis_url=Secret("redis://localhost/0"),
        github_app_id="1",
        github_private_key=Secret("k"),
        webhook_secrets=(Secret("of-these-tests-alone"),),
        encryption_keys=(Secret("e"),),
        new_accounts="serve",
        namespace=NAMESPACE,
        timings=Timings(match_batch=10),
    )


def empty_tables(engine: Engine) -> None:
    """Empty the tables except the row of the epoch, and restart all numbers at 1."""
    tables = [table.name for table in reversed(metadata.sorted_tables) if table.name != EpochRow.__tablename__]
    with engine.begin() as db:
        for name in tables:
            db.execute(text(f"DELETE FROM {name}"))  # noqa: S608
            if metadata.tables[name].c[0].identity is not None:
                db.execute(text(f"ALTER TABLE {name} ALTER id RESTART"))


def install(monkeypatch: pytest.MonkeyPatch, current: Callable[[], World]) -> None:
    """Let the tasks of this process use the current world: its clock, its broker and no deadline."""
    for name in MODULES:
        __import__(name)
    for name, module in list(sys.modules.items()):
        if name.startswith(("tasks.", "web.runners.handover")) and hasattr(module, "utcnow"):
            monkeypatch.setattr(module, "utcnow", lambda: current().now)
        if name.startswith("tasks.") and hasattr(module, "runtime") and name != "tasks.worker.runtime":
            monkeypatch.setattr(module, "runtime", current)
    for module in (tasks.claims.dispatch, tasks.sweeps.resume):
        monkeypatch.setattr(
            module, "start_chains", lambda ids, *, chain_no: current().start_chains(ids, chain_no=chain_no)
        )
    numbers = iter(range(10**9))
    monkeypatch.setattr(tasks.claims.mint, "new_suffix", lambda: f"{next(numbers):08x}")
    monkeypatch.setattr(tasks.worker.base, "time", SimpleNamespace(monotonic=lambda: 0.0))
    # `Again` comes out of the task: the broker of this machine sends the message that repeats it.
    monkeypatch.setattr(tasks.worker.base, "_execute", lambda _task, body, arguments: body(**arguments))
    monkeypatch.setattr(tasks.sweeps.frame.runner_lists, "LONGEST_WAIT", 0.0)  # who has the turn was killed
    for step in ("act", "report", "record"):  # Pods come by a rule
        monkeypatch.setattr(tasks.pools.reconcile, step, lambda *_, **_more: None)
    monkeypatch.setattr(tasks.pools.reconcile, "plan", planned_nothing)


def planned_nothing(_rt: object, observed: object) -> SimpleNamespace:
    """Return a plan that creates and retires no Pod."""
    return SimpleNamespace(
        observed=observed,
        given=SimpleNamespace(pool=SimpleNamespace(terminating=False, max_job_seconds=None)),
        pool_row=SimpleNamespace(volume_reclaim=None),
        pod_rows=(),
        plan=SimpleNamespace(goes_on=False),
    )


def later(now: datetime, seconds: float) -> datetime:
    """Return a time after `now`."""
    return now + timedelta(seconds=seconds)
