"""Pairing of queued jobs and idle runners, at random.

A job fits a runner of its organisation or of its repository whose labels cover its own, in any case; one of the
organisation only if its group admits the repository.
Jobs and runners are kept in groups of equal needs, so that a pairing costs the same with ten and with
two thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lab.github.entities import Job, Runner


class Bag:
    """A set of ids that gives out a random one in constant time."""

    def __init__(self) -> None:
        self._items: list[int] = []
        self._at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: int) -> None:
        """Put an id in; it may be there already."""
        if item not in self._at:
            self._at[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: int) -> None:
        """Take an id out if it is there."""
        at = self._at.pop(item, None)
        if at is None:
            return
        last = self._items.pop()
        if last != item:
            self._items[at] = last
            self._at[last] = at

    def take(self, rng: Random) -> int:
        """Take out any id."""
        item = self._items[rng.randrange(len(self._items))]
        self.discard(item)
        return item


class Need(NamedTuple):
    """What jobs of one group ask of a runner."""

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
        """Let a job be assigned."""
        self._queued.setdefault(need_of(job), Bag()).add(job.id)

    def withdraw_job(self, job: Job) -> None:
        """Keep a job from being assigned."""
        if bag := self._queued.get(need_of(job)):
            bag.discard(job.id)

    def offer_runner(self, runner: Runner) -> None:
        """Let a runner be given a job."""
        self._idle.setdefault(runner.scope, {}).setdefault(_kind(runner), Bag()).add(runner.id)

    def withdraw_runner(self, runner: Runner) -> None:
        """Keep a runner from being given a job."""
        if bag := self._idle.get(runner.scope, {}).get(_kind(runner)):
            bag.discard(runner.id)

    def pair(self, rng: Random, *, admits: Callable[[Need, int], bool] | None = None) -> list[tuple[int, int]]:
        """Take out as many (job id, runner id) as fit, at random.

        `admits` says whether runners of a group of the organisation may be given such jobs; without it all may.
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
