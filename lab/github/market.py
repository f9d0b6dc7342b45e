"""Random pairing of queued jobs with idle runners.

A job fits a runner of its organisation or of its repository. The runner's labels must cover the job's labels, whatever
their case. A runner of the organisation also needs a group that admits the repository.

Jobs and runners are stored in groups with equal needs, so that the cost of a pairing does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lab.github.entities import Job, Runner


class Bag:
    """A set of ids that returns a random one in constant time."""

    def __init__(self) -> None:
        self._items: list[int] = []
        self._at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: int) -> None:
        """Add an id. An id that is already there is ignored."""
        if item not in self._at:
            self._at[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: int) -> None:
        """Remove an id if it is there."""
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
    """Requirements of one group of jobs for a runner."""

    organization: str
    repository: str
    labels: frozenset[str]


def need_of(job: Job) -> Need:
    """Return the group of a job."""
    repository = job.repository
    return Need(
        organization=f"orgs/{repository.account.login}",
        repository=f"repos/{repository.full_name}",
        labels=frozenset(label.lower() for label in job.labels),
    )


class Market:
    """The jobs that wait for a runner and the runners that wait for a job."""

    def __init__(self) -> None:
        self._queued: dict[Need, Bag] = {}
        self._idle: dict[str, dict[tuple[frozenset[str], int], Bag]] = {}

    def offer_job(self, job: Job) -> None:
        """Make a job available for assignment."""
        self._queued.setdefault(need_of(job), Bag()).add(job.id)

    def withdraw_job(self, job: Job) -> None:
        """Make a job unavailable for assignment."""
        if bag := self._queued.get(need_of(job)):
            bag.discard(job.id)

    def offer_runner(self, runner: Runner) -> None:
        """Make a runner available for assignment."""
        self._idle.setdefault(runner.scope, {}).setdefault(_kind(runner), Bag()).add(runner.id)

    def withdraw_runner(self, runner: Runner) -> None:
        """Make a runner unavailable for assignment."""
        if bag := self._idle.get(runner.scope, {}).get(_kind(runner)):
            bag.discard(runner.id)

    def pair(self, rng: Random, *, admits: Callable[[Need, int], bool] | None = None) -> list[tuple[int, int]]:
        """Remove and return as many matching pairs (job id, runner id) as possible, at random.

        `admits` returns whether a runner group of the organisation may run jobs of a need. Without it every group may.
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
