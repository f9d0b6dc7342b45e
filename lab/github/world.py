"""The state of this GitHub and all its changes: accounts, jobs, runners, assignment and expiry.

All methods run on one event loop. None of them awaits, except for the timer `patrol`, so each change is atomic.
Changes of jobs and runners are written to the journal. Webhooks about jobs go out through `publish`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from lab.github.entities import (
    COMPLETED,
    QUEUED,
    RUNNING,
    WAITING,
    Account,
    Group,
    Job,
    Repository,
    Run,
    Runner,
    Session,
    now,
)
from lab.github.journal import Journal
from lab.github.market import Market, Need, need_of
from lab.github.payloads import tail_of

PATROL_SECONDS = 0.25
TOKEN_SECONDS = 3600.0

TOO_OLD = "2.300.0"
"""A runner version that is always refused."""


@dataclass(kw_only=True)
class Knobs:
    """Settings that a test can change while this GitHub runs. Times are in seconds."""

    accept_delay_seconds: float = 0.02
    lock_expiry_seconds: float = 5
    requeue_after_seconds: float = 60
    answer_delay_seconds: float = 0
    forgetful_rate: float = 0  # share of runners that a list omits, like a replica that lags behind
    # Limits of each installation. GitHub has 5,000 to 15,000 calls an hour, 900 points a minute, 100 concurrent calls.
    # Here a few accounts do the work of hundreds, so the limits are higher. Without `rate_limits` the answers have no
    # rate-limit headers, as on an Enterprise Server.
    rate_limits: bool = True
    rate_limit_per_hour: int = 1_000_000
    rate_window_seconds: int = 3600
    points_per_minute: int = 1_000_000
    calls_at_once: int = 1000
    retry_after_seconds: int = 60


class NameTaken(Exception):
    """A runner with this name is registered in the scope."""


class NoSuchGroup(Exception):
    """The organisation has no runner group with this number."""


class VersionDeprecated(Exception):
    """Runners of this version are no longer accepted."""


class RunnerBusy(Exception):
    """The runner executes a job."""


class World:
    """The complete state of this GitHub.

    `sabotage` causes one deliberate error, to prove that the verdict detects it. `run-twice` gives the first assigned
    job to a second runner too. `lose-job` drops the first queued job.
    """

    def __init__(
        self, *, journal: Journal, rng: Random, knobs: Knobs, publish: Callable[[str, Job], None], sabotage: str = ""
    ) -> None:
        self.journal = journal
        self.knobs = knobs
        self.accounts: dict[str, Account] = {}
        self.former: dict[str, Repository] = {}
        self.jobs: dict[int, Job] = {}
        self.runs: dict[int, Run] = {}
        self.check_runs: dict[int, tuple[Repository, dict[str, Any]]] = {}
        self.runner_ends: dict[str, str] = {}
        self.runners: dict[int, Runner] = {}
        self.sessions: dict[str, Session] = {}
        self._names: dict[tuple[str, str], Runner] = {}
        self._jits: dict[str, Runner] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        self._market = Market()
        self._rng = rng
        self._publish = publish
        self._sabotage = sabotage
        self._doubled: int | None = None
        self._owed: Job | None = None
        # Ids grow from run to run, so that they never collide with ids in a database that outlives this process.
        self._last_id = int(time.time()) * 100
        self._pairing: asyncio.TimerHandle | None = None

    # Accounts

    def add_account(
        self,
        *,
        account_id: int,
        login: str,
        kind: str,
        installation_id: int,
        repositories: dict[str, int],
        public: Collection[str] = (),
    ) -> Account:
        """Install the App on an account, or replace an existing account."""
        account = Account(id=account_id, login=login, type=kind, installation_id=installation_id)
        for name, repository_id in repositories.items():
            repository = Repository(id=repository_id, name=name, account=account, private=name not in public)
            repository.tail = tail_of(repository)
            account.repositories[name.lower()] = repository
        self.accounts[login.lower()] = account
        return account

    def repository(self, full_name: str) -> Repository | None:
        """Return a repository by `owner/name` in any case, or None."""
        login, _, name = full_name.lower().partition("/")
        account = self.accounts.get(login)
        return account.repositories.get(name) if account else None

    def installation(self, installation_id: int) -> Account | None:
        """Return the account of an installation, or None if the App is not installed there."""
        return next((a for a in self.accounts.values() if a.installation_id == installation_id and a.installed), None)

    def rename_account(self, account: Account, login: str) -> None:
        """Give an account another login.

        Its repositories can still be found under the old login, the account cannot.
        """
        former = account.login
        with self._renaming(account):
            for repository in account.repositories.values():
                self.former[repository.full_name.lower()] = repository
            del self.accounts[former.lower()]
            account.login = login
            self.accounts[login.lower()] = account
            for runner in self.runners.values():
                kind, owner, *rest = runner.scope.split("/")
                if owner.lower() == former.lower():
                    runner.scope = "/".join([kind, login, *rest])

    def rename_repository(self, repository: Repository, name: str) -> None:
        """Rename a repository. It can still be found under the old name."""
        account, former = repository.account, repository.full_name.lower()
        with self._renaming(account):
            self.former[former] = repository
            del account.repositories[repository.name.lower()]
            repository.name = name
            account.repositories[name.lower()] = repository
            for runner in self.runners.values():
                if runner.scope.lower() == f"repos/{former}":
                    runner.scope = f"repos/{repository.full_name}"

    @contextlib.contextmanager
    def _renaming(self, account: Account) -> Iterator[None]:
        """Update every index by name around a change of names in the `with` block."""
        jobs = [job for job in self.jobs.values() if job.repository.account is account and job.status == QUEUED]
        for job in jobs:
            self._market.withdraw_job(job)
        for runner in self.runners.values():
            self._market.withdraw_runner(runner)
        yield
        self._names = {(runner.scope.lower(), runner.name.lower()): runner for runner in self.runners.values()}
        for repository in account.repositories.values():
            repository.tail = tail_of(repository)
        for job in jobs:
            if not job.runners:
                self._market.offer_job(job)
        for runner in self.runners.values():
            if runner.job is None:
                self._set_idle(runner)
        self._pair_soon()

    # Jobs

    def add_job(
        self,
        *,
        repository: Repository,
        labels: tuple[str, ...],
        duration_seconds: float,
        name: str,
        workflow_name: str,
        head_branch: str,
        waiting: bool,
        run: Run | None = None,
        event: str = "push",
        fork: tuple[int, str] | None = None,
        group: str | None = None,
    ) -> Job:
        """Create a job and publish it. Without a `run`, the job gets a new run.

        With `waiting`, the job waits until `approve`, like a job of a protected environment. Otherwise it is queued.
        """
        job_id = self._next_id()
        if run is None:
            run = Run(id=self._next_id(), event=event, fork=fork)
            self.runs[run.id] = run
        job = Job(
            id=job_id,
            run_id=run.id,
            repository=repository,
            labels=labels,
            duration_seconds=duration_seconds,
            name=name,
            workflow_name=workflow_name,
            head_branch=head_branch,
            status=WAITING if waiting else QUEUED,
            created_at=now(),
            group=group,
        )
        self.jobs[job.id] = job
        run.jobs.append(job)
        self.journal.write("job_queued", job=job.id, repository=repository.full_name, waiting=waiting)
        if waiting:
            self._publish("waiting", job)
        elif self._sabotage == "lose-job":
            self._sabotage = ""
        else:
            self._queue(job)
        return job

    def approve(self, job: Job) -> bool:
        """Queue a job that waits for an approval. Return False if it does not wait."""
        if job.status != WAITING:
            return False
        job.status = QUEUED
        self.journal.write("job_approved", job=job.id)
        self._queue(job)
        return True

    def end_run(self, run: Run, conclusion: str) -> None:
        """End a run that could not start. Its queued and waiting jobs stay as they are, and no webhook is sent."""
        run.ended_as = conclusion
        left = [job for job in run.jobs if job.status in {QUEUED, WAITING} and not job.runners]
        for job in left:
            self._market.withdraw_job(job)
        self.journal.write("run_ended", run=run.id, conclusion=conclusion, jobs_left=[job.id for job in left])

    def postpone(self) -> None:
        """Pair jobs and runners again, because the possible pairs have changed."""
        self._pair_soon()

    def cancel(self, job: Job) -> bool:
        """End a job with the conclusion `cancelled`. Return False if it is already over.

        A runner that already received the job is deleted, so its next call is answered 404. A runner that has not
        received it yet becomes idle.
        """
        if job.status == COMPLETED:
            return False
        self.journal.write("job_cancelled", job=job.id, runner=job.runner.name if job.runner else None)
        self._market.withdraw_job(job)
        holders = [self.runners[runner] for runner in job.runners]
        self._complete(job, job.runner, "cancelled")
        for runner in holders:
            if runner.handed and not runner.persistent:
                self._remove(runner)
            else:
                self._unassign(runner)
                self._set_idle(runner)
        return True

    # Runners

    def register(self, *, scope: str, name: str, labels: tuple[str, ...], group_id: int) -> tuple[Runner, str]:
        """Register a just-in-time runner, which is offline until it starts. Return the runner and its JIT config.

        Raises `NameTaken` and `NoSuchGroup`.
        """
        if self.group(scope, group_id) is None:
            raise NoSuchGroup
        if (scope.lower(), name.lower()) in self._names:
            self.journal.write("mint_conflict", runner=name, scope=scope)
            raise NameTaken
        runner = Runner(id=self._next_id(), name=name, scope=scope, labels=labels, group_id=group_id)
        jit = base64.b64encode(secrets.token_bytes(1200)).decode()
        self.runners[runner.id] = runner
        self._names[scope.lower(), name.lower()] = runner
        self._jits[jit] = runner
        self.journal.write("runner_registered", runner=name, id=runner.id, scope=scope)
        return runner, jit

    def issue_token(self, scope: str) -> str:
        """Return a registration token of a scope. It is valid for an hour."""
        token = "A" + secrets.token_hex(14).upper()
        self._tokens[token] = (scope, time.monotonic() + TOKEN_SECONDS)
        self.journal.write("registration_token", scope=scope)
        return token

    def register_itself(
        self, token: str, *, url_path: str, name: str, labels: tuple[str, ...], group: str, replace: bool
    ) -> tuple[Runner, str] | None:
        """Register a persistent runner with a token. Return the runner and its credential.

        Return None if the token is unknown, expired, or for another organisation or repository than `url_path`. With
        `replace`, a runner of this name is replaced. Raises `NameTaken` and `NoSuchGroup`.
        """
        scope, until = self._tokens.get(token, ("", 0.0))
        if until < time.monotonic() or scope.partition("/")[2].lower() != url_path.strip("/").lower():
            return None
        account = self.accounts.get(scope.split("/")[1].lower())
        groups = {} if account is None else {each.name: each.id for each in account.groups.values()}
        group_id = groups.get(group) if group else 1
        if group_id is None:
            raise NoSuchGroup
        former = self.named(scope, name)
        if former is not None:
            if not replace:
                raise NameTaken
            self._remove(former)
        runner, credential = self.register(scope=scope, name=name, labels=labels, group_id=group_id)
        runner.persistent = True
        self.journal.write("runner_persists", runner=name)
        return runner, credential

    def tokens(self) -> list[str]:
        """Return every registration token that was ever issued."""
        return list(self._tokens)

    def group(self, scope: str, group_id: int) -> Group | None:
        """Return a runner group of a scope, or None.

        The scope of an organisation has the groups of that organisation. The scope of a repository has only the default
        group.
        """
        kind, login, *_ = scope.split("/")
        account = self.accounts.get(login.lower())
        if kind == "orgs" and account is not None:
            return account.groups.get(group_id)
        return Group(id=1, name="Default", public=True) if group_id == 1 else None

    def _admits(self, need: Need, group_id: int) -> bool:
        """Return whether runners of a group may get jobs with a need."""
        repository = self.repository(need.repository.removeprefix("repos/"))
        group = self.group(need.organization, group_id)
        named = group is not None and need.group in {None, group.name}
        return repository is not None and group is not None and named and group.admits(repository)

    def jits(self) -> list[str]:
        """Return every JIT config that was ever issued."""
        return list(self._jits)

    def in_scope(self, scope: str) -> list[Runner]:
        """Return the runners of a scope, oldest first."""
        return [runner for runner in self.runners.values() if runner.scope.lower() == scope.lower()]

    def named(self, scope: str, name: str) -> Runner | None:
        """Return the runner with that name in a scope, or None."""
        return self._names.get((scope.lower(), name.lower()))

    def deregister(self, runner: Runner) -> None:
        """Delete a runner and end its session, if it has one.

        Raises `RunnerBusy`.
        """
        if runner.job is not None:
            raise RunnerBusy
        self._remove(runner)

    # Started runners

    def connect(self, jit: str, *, version: str | None = None, updates: bool = False) -> Session | None:
        """Start a runner with its JIT config. Return None if the config is unknown or used, or its runner was deleted.

        A runner that `updates` itself gets no job in this session, and may start once more with the same config.

        Raises `VersionDeprecated`.
        """
        runner = self._jits.get(jit)
        spent = runner is not None and runner.jit_used and not runner.updating and not runner.persistent
        if runner is None or spent or runner.id not in self.runners:
            return None
        if runner.session is not None and runner.persistent:
            self._end_session(runner.session)
        if self.is_deprecated(version):
            self.journal.write("runner_too_old", runner=runner.name, version=version)
            raise VersionDeprecated
        runner.jit_used = True
        runner.updating = updates
        runner.version = version
        session = Session(id=secrets.token_hex(16), runner=runner, seen=time.monotonic())
        runner.session = session
        self.sessions[session.id] = session
        self._set_online(runner, online=True)
        if updates:
            self.journal.write("runner_updates", runner=runner.name)
        self._set_idle(runner)
        return session

    def is_deprecated(self, version: str | None) -> bool:
        """Return whether runners of a version are refused. Runners of `TOO_OLD` always are."""
        ends = None if version is None else self.runner_ends.get(version)
        return version == TOO_OLD or (ends is not None and datetime.fromisoformat(ends) <= now())

    def alive(self, session: Session) -> None:
        """Record a sign of life of a runner. A runner that was offline becomes online."""
        session.seen = time.monotonic()
        runner = session.runner
        if not runner.online and not session.over:
            self._set_online(runner, online=True)
            if runner.job is None:
                self._set_idle(runner)

    def start(self, session: Session, job_id: int) -> bool:
        """Begin the assigned job. Return False if it is no longer assigned to this runner."""
        runner, job = session.runner, session.runner.job
        if job is None or job.id != job_id:
            return False
        self.alive(session)
        if runner.started:
            return True
        runner.started = True
        job.runner = runner
        job.executions += 1
        self.journal.write("job_started", job=job.id, runner=runner.name)
        if job.status != COMPLETED:
            job.status = RUNNING
            job.started_at = now()
            self._publish("in_progress", job)
        return True

    def finish(self, session: Session, job_id: int, conclusion: str) -> bool:
        """End the job of a runner, and delete the runner if it is ephemeral.

        Return False if the runner does not execute this job.
        """
        runner, job = session.runner, session.runner.job
        if job is None or job.id != job_id or not runner.started:
            return False
        self._complete(job, runner, conclusion)
        self._let_go(runner)
        return True

    def disconnect(self, session: Session) -> None:
        """End a session. An idle runner stays registered and offline; the lock of a busy runner will expire."""
        self._end_session(session)

    # Expiry

    async def patrol(self) -> None:
        """Expire locks, assignments and idle sessions until cancelled."""
        while True:
            await asyncio.sleep(PATROL_SECONDS)
            clock = time.monotonic()
            for runner in [r for r in self.runners.values() if r.online or r.job]:
                self._expire(runner, clock)

    def _expire(self, runner: Runner, clock: float) -> None:
        session, job = runner.session, runner.job
        heard = session is not None and (session.polls > 0 or clock - session.seen <= self.knobs.lock_expiry_seconds)
        if job is not None and runner.started and not heard:
            self._complete(job, runner, "failure")
            self._let_go(runner)
        elif job is not None and not runner.started and clock - runner.assigned > self.knobs.requeue_after_seconds:
            self.journal.write("job_requeued", job=job.id, runner=runner.name)
            handed = runner.handed
            self._unassign(runner)
            if job.status == QUEUED:
                self._market.offer_job(job)
            if session is not None and handed:
                self._end_session(session)
            elif heard:
                self._set_idle(runner)
            self._pair_soon()
        elif job is None and not heard:
            self._set_online(runner, online=False)

    # Shared steps

    def _queue(self, job: Job) -> None:
        self._publish("queued", job)
        self._market.offer_job(job)
        self._pair_soon()

    def _pair_soon(self) -> None:
        if self._pairing is None:
            loop = asyncio.get_running_loop()
            self._pairing = loop.call_later(self.knobs.accept_delay_seconds, self._pair)

    def _pair(self) -> None:
        self._pairing = None
        pairs = list(self._market.pair(self._rng, admits=self._admits))
        for job_id, runner_id in pairs:
            job, runner = self.jobs[job_id], self.runners[runner_id]
            if owed := self._owed_instead_of(job, pairs):
                self._market.offer_job(job)  # its runner becomes the second runner of the job that must run twice
                self._pair_soon()
                job = owed
                self._market.withdraw_job(job)
            if job is self._owed:
                self._owed = None
            runner.job, runner.assigned = job, time.monotonic()
            job.runners.add(runner.id)
            self.journal.write("job_assigned", job=job.id, runner=runner.name)
            if runner.session:
                runner.session.wake.set()
            if self._sabotage == "run-twice":
                self._sabotage, self._doubled, self._owed = "", job.id, job
                self._market.offer_job(job)
                self._pair_soon()

    def _owed_instead_of(self, job: Job, pairs: list[tuple[int, int]]) -> Job | None:
        """Return the job that must run twice, if it takes over the runner of `job`. Otherwise return None.

        The result is None if `pairs` already contains the job that must run twice, or if the two jobs need different
        runners.
        """
        owed = self._owed
        if owed is None or need_of(job) != need_of(owed) or any(job_id == owed.id for job_id, _ in pairs):
            return None
        return owed

    def _unassign(self, runner: Runner) -> None:
        if runner.job is not None:
            runner.job.runners.discard(runner.id)
        runner.job, runner.handed, runner.started = None, False, False

    def _let_go(self, runner: Runner) -> None:
        """Delete an ephemeral runner after its job. A persistent runner becomes idle."""
        if runner.persistent:
            self._unassign(runner)
            self._set_idle(runner)
        else:
            self._remove(runner)

    def _complete(self, job: Job, runner: Runner | None, conclusion: str) -> None:
        self.journal.write("job_completed", job=job.id, runner=runner.name if runner else None, conclusion=conclusion)
        if job.id != self._doubled:
            self._market.withdraw_job(job)
        job.status, job.conclusion, job.completed_at, job.runner = COMPLETED, conclusion, now(), runner
        self._publish("completed", job)

    def _remove(self, runner: Runner) -> None:
        self._unassign(runner)
        self._market.withdraw_runner(runner)
        if runner.session:
            self._end_session(runner.session)
        del self.runners[runner.id]
        del self._names[runner.scope.lower(), runner.name.lower()]
        self.journal.write("runner_deleted", runner=runner.name, id=runner.id, scope=runner.scope)

    def _end_session(self, session: Session) -> None:
        session.over = True
        session.wake.set()
        self.sessions.pop(session.id, None)
        self._set_online(session.runner, online=False)

    def _set_online(self, runner: Runner, *, online: bool) -> None:
        if runner.online != online:
            runner.online = online
            self.journal.write("runner_online" if online else "runner_offline", runner=runner.name)
        if not online:
            self._market.withdraw_runner(runner)

    def _set_idle(self, runner: Runner) -> None:
        if runner.online and not runner.updating:
            self._market.offer_runner(runner)
            self._pair_soon()

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
