"""Jobs in the shapes that real CI produces: pushes with a matrix, dependency updates, a nightly run.

The same seed creates the same jobs in the same order, independent of the fleet. `ostler-lab traffic` sends some jobs to
a running lab and waits until they end. Its exit status is 0 only if each of them completed exactly once.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.bootstrap import ACCOUNTS, POOLS, LabAccount, LabPool
from lab.levers import pull

Say = Callable[[str], None]

STALLED = 90.0
"""Seconds without the end of a job after which `follow` stops waiting."""

EVERY = 0.5
"""Seconds between two checks of the jobs."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow: the names of its jobs, and the shortest and longest duration of a job in seconds.

    A workflow with a larger `weight` is chosen more often, in proportion to the weights of all workflows.
    """

    name: str
    jobs: Sequence[str]
    branch: str
    takes: tuple[float, float]
    weight: int


WORKFLOWS = (
    Workflow("CI", ("lint", "test (3.11)", "test (3.12)", "test (3.13)", "build"), "main", (0.5, 2.5), 6),
    Workflow("Pull request", ("lint", "unit", "integration", "preview"), "feature/checkout", (0.5, 2.5), 6),
    Workflow("Dependencies", ("audit", "test"), "dependabot/urllib3", (0.5, 1.5), 3),
    Workflow("Release", ("package", "sign", "publish"), "release/2.4", (0.5, 2.0), 2),
    Workflow("Nightly", tuple(f"e2e ({shard}/8)" for shard in range(1, 9)), "main", (1.0, 2.5), 1),
)


class Traffic:
    """An endless series of workflow runs for some accounts and pools."""

    def __init__(self, accounts: Sequence[LabAccount], pools: Sequence[LabPool], *, seed: int) -> None:
        self._dice = random.Random(seed)
        self._accounts = accounts
        self._pools = pools

    def run(self, *, most: int) -> list[Mapping[str, Any]]:
        """Return the jobs of the next workflow run, `most` at most, as bodies for the lab's GitHub."""
        dice = self._dice
        account = dice.choice(self._accounts)
        workflow = dice.choices(WORKFLOWS, weights=[each.weight for each in WORKFLOWS])[0]
        pool = dice.choices(self._pools, weights=[each.replicas for each in self._pools])[0]
        if pool.persistent:
            account = self._accounts[0]  # the runners are registered in its organisation
        repository = dice.choice(account.repositories)
        return [
            {
                "repository": f"{account.login}/{repository}",
                "labels": list(pool.labels),
                "name": name,
                "workflow_name": workflow.name,
                "head_branch": workflow.branch,
                "duration_seconds": round(dice.uniform(*workflow.takes), 1),
            }
            for name in workflow.jobs[:most]
        ]


def send(github_url: str, *, jobs: int, seed: int) -> list[int]:
    """Create `jobs` jobs for the lab's accounts and pools. Return their ids."""
    traffic = Traffic(ACCOUNTS, POOLS, seed=seed)
    ids: list[int] = []
    while len(ids) < jobs:
        ids += pull(github_url, "POST", "/jobs", traffic.run(most=jobs - len(ids)))["ids"]
    return ids


def follow(github_url: str, ids: Sequence[int], *, say: Say, stalled: float = STALLED, every: float = EVERY) -> bool:
    """Wait until the jobs are completed. Return whether each of them succeeded and was executed exactly once.

    Stops waiting after `stalled` seconds in which no further job was completed. `every` is the number of seconds
    between two checks.
    """
    ours = set(ids)
    over, moved_at = -1, time.monotonic()
    while True:
        found = [job for job in pull(github_url, "GET", "/jobs")["jobs"] if job["id"] in ours]
        states = Counter(job["status"] for job in found)
        now = time.monotonic()
        if states["completed"] != over:
            over, moved_at = states["completed"], now
            say(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
        if over == len(ours) or now - moved_at > stalled:
            break
        time.sleep(every)
    wrong = [job for job in found if (job["conclusion"], job["executions"]) != ("success", 1)]
    for job in wrong:
        say(f"job {job['id']}: {job['status']} ({job['conclusion']}), executed {job['executions']} times")
    say(f"{len(ours) - len(wrong)} of {len(ours)} jobs completed exactly once")
    return not wrong


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Read the arguments, send the jobs and wait. The exit status is 0 only if every job completed exactly once."""
    parser = argparse.ArgumentParser(prog="ostler-lab traffic", description=__doc__)
    parser.add_argument("--github-url", required=True, help="address of the lab's GitHub (http://…)")
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs to send")
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same jobs")
    arguments = parser.parse_args()
    ids = send(arguments.github_url, jobs=arguments.jobs, seed=arguments.seed)
    sys.exit(0 if follow(arguments.github_url, ids, say=_say) else 1)


if __name__ == "__main__":
    main()
