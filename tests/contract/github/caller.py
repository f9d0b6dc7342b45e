"""A process with the real client and the real governor, which mints on command and reports the results.

The process reads one JSON line of options and prints `ready`. For each line `mint N` it tries N mints from four threads
at once and prints one JSON line: how many succeeded, how many were denied, and the reasons. The limits that it must
remember are stored in a folder that the processes share, as they share the rows of Postgres.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from github_adapters.calls import governor as governing
from github_adapters.calls.governor import CallClass, Governor, Pace
from github_adapters.client import GitHub
from ostler.clock import utcnow
from ostler.errors import RateLimited, UpstreamError
from ostler.secrets import Secret
from rules.routing.scopes import Scope

THREADS = 4
PROCESSES = 2
PATIENCE = 30.0


class Memory:
    """Limits in a folder, with one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def remember(self, installation_id: int, quota: str, seconds: float) -> None:
        """Store a limit."""
        until = utcnow().timestamp() + seconds
        (self._folder / f"{installation_id}-{quota or 'all'}").write_text(str(until))

    def recall(self, installation_id: int) -> dict[str, float]:
        """Return the seconds that are left of each limit."""
        found = {}
        for file in self._folder.glob(f"{installation_id}-*"):
            quota = file.name.partition("-")[2]
            found["" if quota == "all" else quota] = float(file.read_text()) - utcnow().timestamp()
        return {quota: left for quota, left in found.items() if left > 0}


def seed(name: str, governor: Governor) -> None:
    """Install a known bug."""
    if name == "a bucket per process":
        keys = governing._keys
        governing._keys = lambda installation_id: keys(installation_id * 100_000 + os.getpid())
    elif name == "read and write apart":
        governor._take_script = apart(governor)  # type: ignore[assignment]


def apart(governor: Governor) -> Callable[[list[str], list[Any]], Any]:
    """Return a version of `take` that reads the tokens and later writes one less, without a lock.

    Two processes do this at the same time: both read before either writes, and none reads again before both wrote.
    """
    take, redis = governor._take_script, governor._redis
    turn, rounds = threading.Lock(), itertools.count()

    def meet(where: str) -> None:
        """Wait until both processes have reached this point."""
        redis.incr(where)
        end = time.monotonic() + PATIENCE
        while int(redis.get(where) or 0) < PROCESSES:
            assert time.monotonic() < end, f"the other process never came to {where}"
            time.sleep(0.001)

    def broken(keys: list[str], args: list[Any]) -> Any:
        token = f"{args[0]}.tokens"
        with turn:
            before = redis.hget(keys[0], token) if args[0] == CallClass.MINT else None
            if before is None:
                return take(keys, args)
            now = next(rounds)
            meet(f"read-{now}")
            answer = take(keys, args)
            if answer[0] == "go":
                redis.hset(keys[0], token, str(float(before) - 1))
            meet(f"written-{now}")
            return answer

    return broken


def main() -> None:
    """Handle commands until the input ends."""
    options = json.loads(sys.stdin.readline())
    memory = Memory(Path(options["memory"]))
    governing.TIMEOUT = 60.0  # a busy machine may make Redis late
    pace = Pace(rate=options["rate"], burst=options["burst"], at_once=90, quota="actions_runner_registration")
    plenty = Pace(rate=1000, burst=1000, at_once=90, told=True)
    governor = Governor(
        Secret(options["redis_url"]),
        paces=dict.fromkeys(CallClass, plenty) | {CallClass.MINT: pace},
        remember=memory.remember,
        recall=memory.recall,
    )
    seed(options.get("seed", ""), governor)
    github = GitHub(
        api_url=options["api_url"],
        app_id=options["app_id"],
        private_key=Secret(options["private_key"]),
        governor=governor,
    )
    numbers = iter(range(1, sys.maxsize))

    def mint(_: int) -> str:
        try:
            github.mint(
                installation_id=options["installation_id"],
                scope=Scope.organization("acme"),
                name=f"r-{os.getpid()}-{next(numbers)}",
                labels=["linux"],
                runner_group_id=1,
            )
        except RateLimited as limited:
            return "paced" if limited.paced else "limited"
        except UpstreamError as error:
            return type(error).__name__
        return "made"

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            outcomes = Counter(threads.map(mint, range(int(line.split()[1]))))
            sys.stdout.write(json.dumps(outcomes) + "\n")
            sys.stdout.flush()
    github.close()
    governor.close()


if __name__ == "__main__":
    main()
