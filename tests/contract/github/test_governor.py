"""The governor with real Redis, real processes of the real client, and a GitHub that counts the received calls.

`test_workers.py` tests Ostler's workers with one shared bucket. Here eight threads of two processes ask at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from github_adapters.calls import governor as governing
from github_adapters.calls.answers import EVERYTHING
from github_adapters.calls.governor import LONGEST_PLACE, UNKNOWN_APART, UNKNOWN_EVERY, CallClass, Governor, Pace, paces
from github_adapters.client import GitHub
from github_adapters.endpoints.pages import ListPage
from github_adapters.endpoints.runs import RunSeen
from lab.redis import Redis
from ostler.errors import Forbidden, RateLimited
from ostler.secrets import Secret
from rules.routing.scopes import Scope
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab
from tests.waiting import eventually

ACME = Scope.organization("acme")
MINTS = "POST /orgs/{org}/actions/runners/generate-jitconfig"
SLOW = 1 / 1000
"""Tokens per second. No token comes back during a test."""


class Caller:
    """A process of `caller.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, line: str) -> None:
        """Write a line to the process."""
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Read a line that the process has written."""
        assert self._process.stdout
        return self._process.stdout.readline()

    def minted(self) -> dict[str, int]:
        """Return the results of the mints that the process was told to make."""
        outcomes: dict[str, int] = json.loads(self.hear())
        return outcomes


@contextlib.contextmanager
def callers(lab: Lab, redis: Redis, memory: Path, count: int = 2, **options: Any) -> Iterator[list[Caller]]:
    """Run processes that share one Redis and one GitHub. All of them are ready."""
    memory.mkdir(exist_ok=True)
    given = {
        "api_url": lab.url,
        "app_id": APP_ID,
        "private_key": lab.private_key.reveal(),
        "redis_url": redis.url,
        "installation_id": ORG_INSTALLATION,
        "memory": str(memory),
        "rate": SLOW,
        "burst": 10,
        **options,
    }
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.github.caller"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            caller = Caller(process)
            caller.say(json.dumps(given))
            found.append(caller)
        assert [caller.hear().strip() for caller in found] == ["ready"] * count
        yield found


def mint_all(callers: list[Caller], each: int) -> list[dict[str, int]]:
    """Let all processes mint at once."""
    for caller in callers:
        caller.say(f"mint {each}")
    return [caller.minted() for caller in callers]


def mints(lab: Lab) -> int:
    """Return the number of mints that reached GitHub."""
    found: int = lab.call("GET", "/_lab/stats")[1]["calls"].get(MINTS, 0)
    return found


def known(callers: list[Caller]) -> None:
    """Make the bucket known to the processes by one call, whose headers describe it."""
    callers[0].say("mint 1")
    assert callers[0].minted() == {"made": 1}


@pytest.mark.parametrize("seed", ["", "a bucket per process", "read and write apart"])
def test_two_processes_share_one_bucket_of_ten(lab: Lab, redis_server: Redis, tmp_path: Path, seed: str) -> None:
    with callers(lab, redis_server, tmp_path / "memory", seed=seed) as both:
        known(both)
        mint_all(both, 40)
        mint_all(both, 5)

        assert (mints(lab) == 10) is (seed == "")


def test_processes_share_the_quota_that_github_tells(lab: Lab, redis_server: Redis, tmp_path: Path) -> None:
    lab.settings(rate_limit_per_hour=10)
    with callers(lab, redis_server, tmp_path / "memory", rate=1000, burst=1000) as both:
        known(both)
        outcomes = mint_all(both, 40)
        assert sum(each["limited"] for each in outcomes) == 71
        redis_server.flush()
        mint_all(both, 20)

    calls = lab.call("GET", "/_lab/stats")[1]
    assert calls["calls"][MINTS] == 10
    assert calls["refused"] == {}, "GitHub never had to refuse, not even after the flush"


# One process


@pytest.fixture(autouse=True)
def _patient_governor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Redis answer as late as on a busy machine. A Redis that is down refuses at once."""
    monkeypatch.setattr(governing, "TIMEOUT", 60.0)


class Limits:
    """The limits that the governor asked to remember."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, str, float]] = []

    def remember(self, installation_id: int, quota: str, seconds: float) -> None:
        """Store a limit."""
        self.kept.append((installation_id, quota, seconds))

    def recall(self, installation_id: int) -> Mapping[str, float]:
        """Return the limits of an installation."""
        return {quota: seconds for one, quota, seconds in self.kept if one == installation_id}


@contextlib.contextmanager
def governor_of(
    redis: Redis, limits: Limits | None = None, monotonic: Callable[[], float] = time.monotonic, **changes: Pace
) -> Iterator[Governor]:
    """A governor with the usual rates, except for `changes`."""
    limits = limits or Limits()
    usual = paces(mints_per_minute=6000)
    governor = Governor(
        Secret(redis.url),
        paces=usual | {CallClass(name): pace for name, pace in changes.items()},
        remember=limits.remember,
        recall=limits.recall,
        monotonic=monotonic,
    )
    yield governor
    governor.close()


@contextlib.contextmanager
def governed(
    lab: Lab,
    redis: Redis,
    limits: Limits | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **changes: Pace,
) -> Iterator[GitHub]:
    """A client with such a governor."""
    with governor_of(redis, limits, monotonic, **changes) as governor:
        client = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key, governor=governor)
        yield client
        client.close()


@dataclass(frozen=True)
class Place:
    """The time at which a denied caller may return: the wait, and the bounds of that time on our clock."""

    after: float
    earliest: float
    latest: float


def denied(governor: Governor, count: int) -> list[Place]:
    """Ask for mints that Ostler's own rate limit denies, and return the place of each."""
    places = []
    for _ in range(count):
        asked = time.monotonic()
        with pytest.raises(RateLimited) as limited, governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass
        assert limited.value.paced
        after = limited.value.after
        places.append(Place(after, asked + after, time.monotonic() + after))
    return places


def come_apart(places: Sequence[Place], seconds: float) -> bool:
    """Return whether consecutive places are at least `seconds` seconds apart, even if the asking itself was slow."""
    return all(
        later.latest - sooner.earliest > seconds - 0.01 and later.earliest - sooner.latest < seconds + 0.01
        for sooner, later in itertools.pairwise(places)
    )


def mint(github: GitHub, name: str) -> None:
    github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name=name, labels=["linux"], runner_group_id=1)


def test_a_class_that_was_never_answered_goes_once_a_second(
    lab: Lab, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNKNOWN_EVERY == 1
    monkeypatch.setattr(governing, "UNKNOWN_EVERY", 60.0)  # two calls may take longer than a second here
    with governed(lab, redis_server) as github:
        lab.fault(method="POST", path_regex="generate-jitconfig", status=502, times=1)
        with pytest.raises(Exception, match="502"):
            mint(github, "first")

        with pytest.raises(RateLimited) as limited:
            mint(github, "second")

        assert limited.value.paced
        assert 0 < limited.value.after <= 60


def test_a_server_that_tells_no_limits_is_not_slowed_for_ever(lab: Lab, redis_server: Redis) -> None:
    lab.settings(rate_limits=False)
    with governed(lab, redis_server) as github:
        for number in range(20):
            mint(github, f"r{number}")

        assert mints(lab) == 20


def test_what_can_be_done_without_is_shed_before_what_cannot(lab: Lab, redis_server: Redis) -> None:
    lab.settings(rate_limit_per_hour=100)
    with governed(lab, redis_server) as github:
        for _ in range(76):
            github.find_runner(installation_id=ORG_INSTALLATION, scope=ACME, name="nobody")
        with pytest.raises(RateLimited):
            github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME, optional=True)
        with pytest.raises(RateLimited):
            github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=5, optional=True)

        assert github.get_job(installation_id=ORG_INSTALLATION, repository="acme/app", job_id=5) is None
        github.find_runner(installation_id=ORG_INSTALLATION, scope=ACME, name="nobody")
        mint(github, "r")


def test_catching_up_is_shed_first_and_what_has_not_changed_uses_nothing_up(lab: Lab, redis_server: Redis) -> None:
    def runs(github: GitHub, etag: str | None = None) -> ListPage[RunSeen]:
        return github.list_runs(installation_id=ORG_INSTALLATION, repository="acme/app", status="queued", etag=etag)

    lab.settings(rate_limit_per_hour=20)
    with governed(lab, redis_server) as github:
        first = runs(github)
        for _ in range(30):
            assert runs(github, first.etag).unchanged
        for _ in range(9):
            runs(github)
        with pytest.raises(RateLimited) as limited:
            runs(github, first.etag)
        assert not limited.value.paced
        github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME, optional=True)
    assert lab.call("GET", "/_lab/stats")[1]["refused"] == {}


def test_a_secondary_limit_closes_everything_and_a_missing_permission_nothing(lab: Lab, redis_server: Redis) -> None:
    limits = Limits()
    with governed(lab, redis_server, limits) as github:
        mint(github, "r1")
        with pytest.raises(Forbidden):
            github.mint(
                installation_id=ORG_INSTALLATION,
                scope=Scope.organization("ada"),
                name="r",
                labels=["linux"],
                runner_group_id=1,
            )
        mint(github, "r2")
        lab.settings(points_per_minute=1, retry_after=7)
        with pytest.raises(RateLimited):
            mint(github, "r3")
        lab.settings(points_per_minute=1_000_000)

        with pytest.raises(RateLimited) as limited:
            github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)

    assert not limited.value.paced
    assert limits.kept == [(ORG_INSTALLATION, EVERYTHING, 7)]


def test_no_more_calls_are_out_at_once_than_the_class_may_have(lab: Lab, redis_server: Redis) -> None:
    def try_to(github: GitHub, number: int) -> bool:
        try:
            mint(github, f"r{number}")
        except RateLimited as limited:
            return not limited.paced
        return True

    with governed(lab, redis_server, mint=Pace(rate=1000, burst=1000, at_once=3)) as github:
        mint(github, "first")
        lab.settings(answer_delay=60, calls_at_once=3)
        with ThreadPoolExecutor(3) as threads:
            out = [threads.submit(try_to, github, number) for number in range(3)]
            eventually(lambda: mints(lab) == 1 + 3)
            assert not any(try_to(github, number) for number in range(3, 12))
            lab.settings(answer_delay=0)  # lets those go that wait for their answer
            assert all(each.result(90) for each in out)
        assert try_to(github, 100), "a call that is over leaves its place"

    assert lab.call("GET", "/_lab/stats")[1]["refused"] == {}


def test_those_who_are_denied_come_back_one_after_the_other(redis_server: Redis) -> None:
    with governor_of(redis_server, mint=Pace(rate=1 / 60, burst=1, at_once=90, told=True)) as governor:
        with governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass
        places = denied(governor, 2)

    assert come_apart(places, 60), places


def test_who_is_denied_a_place_that_is_far_does_not_push_the_others_farther(redis_server: Redis) -> None:
    with governor_of(redis_server, mint=Pace(rate=0.1, burst=1, at_once=90, told=True)) as governor:
        with governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass

        places = denied(governor, 40)

    assert come_apart(places[:10], 10), places
    assert 140 < max(place.after for place in places) <= LONGEST_PLACE + 10


def test_those_who_wait_for_the_first_answer_come_back_one_after_the_other(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governing, "UNKNOWN_EVERY", 60.0)
    with (
        governor_of(redis_server, mint=Pace(rate=2, burst=60, at_once=90)) as governor,
        governor.call(ORG_INSTALLATION, CallClass.MINT),
    ):
        places = denied(governor, 20)

    assert come_apart(places, UNKNOWN_APART), places
    longest = max(place.after for place in places)
    assert longest < 60 + 20 * UNKNOWN_APART + 0.01, "a fleet that starts waits no longer than that"


def test_those_who_find_too_many_calls_out_come_back_one_after_the_other(redis_server: Redis) -> None:
    with (
        governor_of(redis_server, mint=Pace(rate=1 / 60, burst=60, at_once=1, told=True)) as governor,
        governor.call(ORG_INSTALLATION, CallClass.MINT),
    ):
        places = denied(governor, 3)

    assert come_apart(places, 60), places


def test_without_redis_calls_go_on_slowly_and_limits_still_hold(lab: Lab, tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    limits = Limits()
    try:
        with governed(lab, server, limits, lambda: 1000.0) as github:
            mint(github, "before")
            server.stop()
            made = 0
            for number in range(20):
                with contextlib.suppress(RateLimited):
                    mint(github, f"r{number}")
                    made += 1
            assert made == 1, "one at once, then one in four seconds, which do not go by here"
            lab.fault(method="GET", path_regex="/actions/runners", status=429, headers={"Retry-After": "600"})
            with pytest.raises(RateLimited) as told:
                github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)
            with pytest.raises(RateLimited) as held:
                github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)
    finally:
        server.stop()
    assert (told.value.paced, held.value.paced) == (False, False)
    assert limits.kept == [(ORG_INSTALLATION, EVERYTHING, 600)]
    assert lab.call("GET", "/_lab/stats")[1]["calls"]["GET /orgs/{org}/actions/runners"] == 1


def test_a_limit_is_recalled_without_redis_too(lab: Lab, tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")  # never started
    limits = Limits()
    limits.remember(ORG_INSTALLATION, "core", 50)
    with governed(lab, server, limits) as github, pytest.raises(RateLimited) as limited:
        mint(github, "r")

    assert 45 < limited.value.after <= 50
    assert not limited.value.paced


class Tired(Limits):
    """Limits whose first read fails."""

    tired = True

    def recall(self, installation_id: int) -> Mapping[str, float]:
        """Fail at the first call."""
        if self.tired:
            self.tired = False
            raise ConnectionError("no database")
        return super().recall(installation_id)


def test_a_limit_that_could_not_be_recalled_at_first_still_holds_without_redis(tmp_path: Path) -> None:
    limits = Tired()
    limits.remember(ORG_INSTALLATION, "core", 50)
    with governor_of(Redis(tmp_path / "redis"), limits) as governor:
        with pytest.raises(ConnectionError), governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass

        with pytest.raises(RateLimited) as limited, governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass

    assert not limited.value.paced


def test_a_limit_that_others_met_while_redis_was_back_holds_when_it_is_away_again(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    limits = Limits()
    now = [0.0]
    with governor_of(server, limits, monotonic=lambda: now[0]) as governor:
        with governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass
        server.start()
        try:
            now[0] += 5
            with governor.call(ORG_INSTALLATION, CallClass.MINT):
                pass
            limits.remember(ORG_INSTALLATION, EVERYTHING, 600)
        finally:
            server.stop()
        now[0] += 5

        with pytest.raises(RateLimited) as limited, governor.call(ORG_INSTALLATION, CallClass.MINT):
            pass

    assert not limited.value.paced
