"""Random pairing of queued jobs and idle runners.

A job fits a runner if the runner is registered in the job's organisation or repository and has all labels of the job.
The case of labels does not matter. A runner of the organisation must also be in a group that admits the
repository. Jobs and runners with equal properties are grouped, so that a pairing costs the same with ten of them and
with two thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lab.github.entities import Job, Runner


class Bag:
    """A set of ids that returns a random id in constant time."""

    def __init__(self) -> None:
        self._items: list[int] = []
        self._at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: int) -> None:
        """Add an id, unless it is in the set."""
        if item not in self._at:
            self._at[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: int) -> None:
        """Remove an id, if it is in the set."""
        at = self._at.pop(item, None)
        if at is None:
            return
        last = self._items.pop()
        if last != item:
            self._items[at] = last
            self._at[last] = at

    def take(self, rng: Random) -> int:
        """Remove a random id and return it."""
        item = self._items[rng.randrange(len(self._items))]
        self.discard(item)
        return item


class Need(NamedTuple):
    """Requirements of a group of jobs on a runner."""

    organization: str
    repository: str
    labels: frozenset[str]
    group: str | None = None


def need_of(job: Job) -> Need:
    """Return the requirements of a job."""
    repository = job.repository
    return Need(
        organization=f"orgs/{repository.account.login}",
        repository=f"repos/{repository.full_name}",
        labels=frozenset(label.lower() for label in job.labels),
        group=job.group,
    )


class Market:
    """Jobs that wait for a runner, and runners that wait for a job."""

    def __init__(self) -> None:
        self._queued: dict[Need, Bag] = {}
        self._idle: dict[str, dict[tuple[frozenset[str], int], Bag]] = {}

    def offer_job(self, job: Job) -> None:
        """Add a job that can be assigned."""
        self._queued.setdefault(need_of(job), Bag()).add(job.id)

    def withdraw_job(self, job: Job) -> None:
        """Remove a job, so that it is not assigned."""
        if bag := self._queued.get(need_of(job)):
            bag.discard(job.id)

    def offer_runner(self, runner: Runner) -> None:
        """Add a runner that can get a job."""
        self._idle.setdefault(runner.scope, {}).setdefault(_kind(runner), Bag()).add(runner.id)

    def withdraw_runner(self, runner: Runner) -> None:
        """Remove a runner, so that it gets no job."""
        if bag := self._idle.get(runner.scope, {}).get(_kind(runner)):
            bag.discard(runner.id)

    def pair(self, rng: Random, *, admits: Callable[[Need, int], bool] | None = None) -> list[tuple[int, int]]:
        """Remove as many random fitting pairs as possible, and return them as (job id, runner id).

        `admits(need, group_id)` says whether runners of an organisation's group may get jobs with that need. None
        allows all.
        """
        pairs = []
        self._queued = {need: bag for need, bag in self._queued.items() if bag}
        needs = list(self._queued)
        rng.shuffle(needs)
        for need in needs:
            jobs = self._queued[need]
            idle = [
                runners
                for scope in (need.organization, need.repository)
                for (labels, group), runners in self._idle.get(scope, {}).items()
                if runners
                and need.labels <= labels
                and (admits is None or scope == need.repository or admits(need, group))
            ]
            while jobs and idle:
                runners = rng.choices(idle, weights=[len(bag) for bag in idle])[0]
                pairs.append((jobs.take(rng), runners.take(rng)))
                idle = [bag for bag in idle if bag]
        return pairs


def _kind(runner: Runner) -> tuple[frozenset[str], int]:
    return frozenset(label.lower() for label in runner.labels), runner.group_id
