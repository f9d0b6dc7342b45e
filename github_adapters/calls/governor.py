"""The governor: every call in the name of the App or an installation first takes a token from a bucket.

All processes share the buckets through Redis. Calls without a credential are not counted.

Redis has four kinds of data for an installation: its buckets (one for each class of calls), the quotas from GitHub's
headers, the end of a pause that GitHub asked for, and the calls in progress. Each call needs two atomic scripts, which
use the clock of the Redis server. The first script takes a token, and the second script records the answer. If the
governor denies a call, it raises `RateLimited`, and the call is not sent.

GitHub can ban clients that ignore a limit, so a limit must survive a flush of Redis. `remember` therefore also stores
each limit in Postgres. `recall` reads the stored limits of an installation when Redis has no data about the
installation or is unavailable. While Redis is unavailable, each process limits itself to a low rate (`ALONE`).
`docs/decisions/0010-the-governor.md` has the figures and the reasons.
"""

from __future__ import annotations

import contextlib
import enum
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

import redis
import structlog

from github_adapters.calls.answers import EVERYTHING, limit_of, quota_of
from github_adapters.calls.http import Answer
from ostler.clock import machine_now
from ostler.errors import RateLimited
from ostler.redis_clients import make_client
from ostler.secrets import Secret
from ostler.upstreams import SUCCESS

log = structlog.get_logger(__name__)

APP = 0
"""Value that stands for the App itself where the id of an installation is expected."""

UNKNOWN_EVERY = 1.0
"""Seconds between two calls of a class of an installation as long as no call of the class has succeeded."""

UNKNOWN_APART = 0.05
"""Seconds between the retry times of two denied calls of a class of an installation.

This interval applies as long as no call of the class has succeeded.
"""

LONGEST_PLACE = 150.0
"""Longest wait in seconds for which the governor reserves a retry time for a denied call.

If a mint would have to wait longer, the mint fails and its job is held.
"""

ALONE = 0.25
"""Calls per second that one process makes for one class of an installation while Redis is unavailable."""

AWAY_FOR = 1.0
"""Seconds for which the governor does not call Redis after a call to Redis failed.

Without this pause, every call to GitHub would first wait for the timeout of Redis.
"""

LONGEST_CALL = 30.0
"""Seconds after which a call is removed from the calls in progress if no answer was recorded.

No answer is recorded if the process died or could not call Redis.
"""

TIMEOUT = 0.5


class CallClass(enum.StrEnum):
    """Purpose of a call.

    When a quota runs low, calls of class `catch_up` are refused first, then calls of the classes `optional`, `read` and
    `write`, in this order. Calls of the other classes are refused when the quota is used up.
    """

    MINT = "mint"
    WRITE = "write"
    READ = "read"
    OPTIONAL = "optional"
    CATCH_UP = "catch_up"
    TOKEN = "token"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The bucket of a class of calls: `rate` tokens per second, and at most `burst` tokens.

    At most `at_once` calls of the class are in progress at the same time. `spared` is the share of GitHub's quota that
    this class leaves to other classes. `told` is True if the limit is known and no header reports it. Calls of such a
    class need not wait until the first call has succeeded. The calls count in `quota` until a header names another
    quota.
    """

    rate: float
    burst: float
    at_once: int
    spared: float = 0.0
    told: bool = False
    quota: str = "core"

    @classmethod
    def per_minute(
        cls, calls: int, *, at_once: int, spared: float = 0.0, told: bool = False, quota: str = "core"
    ) -> Pace:
        """Return a bucket that allows at most `calls` calls in any minute.

        At most a third of these calls, but at least one, can be made in one burst.
        """
        burst = max(1.0, calls / 3)
        rate = max(calls - burst, 1 / 3) / 60
        return cls(rate=rate, burst=burst, at_once=at_once, spared=spared, told=told, quota=quota)


def paces(*, mints_per_minute: int) -> dict[CallClass, Pace]:
    """Return the bucket of each class. `docs/decisions/0010-the-governor.md` has the reasons for the numbers."""
    return {
        CallClass.MINT: Pace.per_minute(mints_per_minute, at_once=90, quota="actions_runner_registration"),
        CallClass.WRITE: Pace.per_minute(180, at_once=90, spared=0.02),
        CallClass.READ: Pace.per_minute(600, at_once=90, spared=0.05),
        CallClass.OPTIONAL: Pace.per_minute(300, at_once=45, spared=0.25),
        CallClass.CATCH_UP: Pace.per_minute(240, at_once=45, spared=0.5),
        CallClass.TOKEN: Pace.per_minute(30, at_once=90, told=True),
    }


class Governs(Protocol):
    """Interface of the governor for the client. The governor allows each call, and then gets the answer."""

    def call(self, installation_id: int, call_class: CallClass) -> contextlib.AbstractContextManager[Ticket]:
        """Return a context in which the caller may make one call.

        Raises `RateLimited` on entry if the call is denied.
        """


@dataclass(slots=True)
class Ticket:
    """One call that was allowed. The caller sets `answer`. If GitHub gave no answer, `answer` stays None."""

    answer: Answer | None = None


class Ungoverned:
    """Allows every call. The operator's commands and tests use this class. Its calls are in no bucket."""

    @contextlib.contextmanager
    def call(self, installation_id: int, call_class: CallClass) -> Iterator[Ticket]:
        """Allow a call."""
        del installation_id, call_class
        yield Ticket()


# The hash of an installation has the fields closed and born. For each class C it has C.known, C.tokens, C.at,
# C.promised, C.next and C.resource. For each quota Q it has Q:limit, Q:remaining and Q:reset. All times are Unix
# seconds of the Redis server.
_TAKE = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local class, rate, burst, at_once, spared = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]),
    tonumber(ARGV[5])
local told, unknown_every, call, longest = ARGV[6] == '1', tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local guessed, unknown_apart, longest_place = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
local recalled = ARGV[13] == '1'
local have = redis.call('HMGET', KEYS[1], 'born', 'closed', class .. '.known', class .. '.tokens', class .. '.at',
    class .. '.promised', class .. '.next', class .. '.resource')
local function number(value) return tonumber(value or '') or 0 end
local function deny(why, after) return {why, string.format('%.3f', after)} end
-- Each caller that Ostler's own rate limit delays gets a different wait, so that they do not all retry at once.
local function put_off(why, soonest, apart)
    local promised = math.max(soonest, number(have[6]) + apart)
    if promised - now <= longest_place then redis.call('HSET', KEYS[1], class .. '.promised', promised) end
    return deny(why, promised - now)
end
if not have[1] then
    if not recalled then return deny('unknown', 0) end
    redis.call('HSET', KEYS[1], 'born', now)
    for at = 14, #ARGV, 2 do
        local until_then = now + tonumber(ARGV[at + 1])
        if ARGV[at] == '' then
            until_then = math.max(until_then, number(have[2]))
            redis.call('HSET', KEYS[1], 'closed', until_then)
            have[2] = until_then
        else
            local quota = ARGV[at]
            redis.call('HSET', KEYS[1], quota .. ':limit', 0, quota .. ':remaining', 0, quota .. ':reset', until_then)
        end
    end
    redis.call('EXPIRE', KEYS[1], 7200)
end
if number(have[2]) > now then return deny('closed', number(have[2]) - now) end
local quota, remaining = have[8] or guessed, nil
local told_of = redis.call('HMGET', KEYS[1], quota .. ':limit', quota .. ':remaining', quota .. ':reset')
if number(told_of[3]) > now then
    remaining = number(told_of[2])
    if remaining < 1 or remaining <= math.floor(number(told_of[1]) * spared) then
        return deny('quota', number(told_of[3]) - now + 1)
    end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if redis.call('ZCARD', KEYS[2]) >= at_once then return put_off('at_once', now + 0.5, 1 / rate) end
local known = told or have[3]
if not known and number(have[7]) > now then return put_off('unseen', number(have[7]), unknown_apart) end
local tokens = burst
if have[4] then tokens = math.min(burst, number(have[4]) + math.max(0, now - number(have[5])) * rate) end
if tokens < 1 then return put_off('pace', now + (1 - tokens) / rate, 1 / rate) end
redis.call('HSET', KEYS[1], class .. '.tokens', tokens - 1, class .. '.at', now)
if not known then redis.call('HSET', KEYS[1], class .. '.next', now + unknown_every) end
if remaining then redis.call('HINCRBY', KEYS[1], quota .. ':remaining', -1) end
redis.call('ZADD', KEYS[2], now + longest, call)
redis.call('EXPIRE', KEYS[1], 7200)
redis.call('EXPIRE', KEYS[2], 7200)
return {'go', '0'}
"""

_SETTLE = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local class, call, known, closed_for = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local quota, limit, remaining, reset = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local unchanged = ARGV[9] == '1'
redis.call('ZREM', KEYS[2], call)
local told = {}
if known then table.insert(told, class .. '.known'); table.insert(told, '1') end
if closed_for > 0 then
    local closed = tonumber(redis.call('HGET', KEYS[1], 'closed') or '0')
    table.insert(told, 'closed'); table.insert(told, math.max(closed, now + closed_for))
end
if quota ~= '' then
    table.insert(told, class .. '.resource'); table.insert(told, quota)
    local have = redis.call('HMGET', KEYS[1], quota .. ':remaining', quota .. ':reset')
    local old = tonumber(have[2] or '') or 0
    -- A 304 costs no quota, so the call that was counted before the request is given back.
    if unchanged and have[1] then have[1] = tostring(tonumber(have[1]) + 1) end
    -- Answers arrive in any order. Of the answers of one window, the smallest number is the newest.
    -- An answer of an older window is ignored.
    if reset >= old - 2 then
        if reset <= old + 2 then remaining = math.min(remaining, tonumber(have[1] or '') or remaining) end
        local window = {quota .. ':limit', limit, quota .. ':remaining', remaining, quota .. ':reset', reset}
        for _, value in ipairs(window) do table.insert(told, value) end
    end
end
if #told > 0 and (closed_for > 0 or redis.call('EXISTS', KEYS[1]) == 1) then
    redis.call('HSET', KEYS[1], unpack(told))
    redis.call('EXPIRE', KEYS[1], math.max(7200, math.ceil(closed_for)))
end
return 1
"""


@dataclass(slots=True)
class _Alone:
    """State that this process uses while Redis is unavailable.

    `next` is the time at which each class may call next. `closed` has the ends of the pauses that GitHub asked for.
    `recalled` has the installations whose stored pauses were read.
    """

    next: dict[tuple[int, CallClass], float] = field(default_factory=dict)
    closed: dict[tuple[int, str], float] = field(default_factory=dict)
    recalled: set[int] = field(default_factory=set)


Remember = Callable[[int, str, float], None]
"""Stores a pause that GitHub asked for. Arguments: installation, quota or `EVERYTHING`, seconds of the pause."""

Recall = Callable[[int], Mapping[str, float]]
"""Returns the stored pauses of an installation.

The key is a quota or `EVERYTHING`. The value is the number of seconds that are left of the pause.
"""


class Governor:
    """The governor of one process. Threads may share it."""

    def __init__(
        self,
        redis_url: Secret,
        *,
        paces: Mapping[CallClass, Pace],
        remember: Remember,
        recall: Recall,
        clock: Callable[[], datetime] = machine_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = make_client(
            redis_url.reveal(),
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            health_check_interval=10,
            decode_responses=True,
        )
        self._take_script = self._redis.register_script(_TAKE)
        self._settle_script = self._redis.register_script(_SETTLE)
        self._paces = dict(paces)
        self._remember = remember
        self._recall = recall
        self._clock = clock
        self._monotonic = monotonic
        self._alone = _Alone()
        self._lock = threading.Lock()
        self._away_until = -math.inf

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    @contextlib.contextmanager
    def call(self, installation_id: int, call_class: CallClass) -> Iterator[Ticket]:
        """Allow one call, and record `Ticket.answer` after the call.

        Raises `RateLimited` if the call is denied. The attribute `paced` of the error is True if the governor's own
        pace denies the call, and False if GitHub asked to wait or its quota is too low for this class.
        """
        call = secrets.token_hex(8)
        counted = self._take(installation_id, call_class, call)
        ticket = Ticket()
        try:
            yield ticket
        finally:
            self._settle(installation_id, call_class, call, ticket.answer, counted=counted)

    def _take(self, installation_id: int, call_class: CallClass, call: str) -> bool:
        """Take a token. Return True if Redis counted the call; False if only this process counted it.

        Raises `RateLimited` if the call is denied.
        """
        if not self._is_away():
            try:
                why, after = self._ask(installation_id, call_class, call)
            except redis.RedisError as error:
                self._went_away(error)
            else:
                with self._lock:
                    # While Redis works, other processes can store new limits. This process must read these limits when
                    # Redis is unavailable again.
                    self._alone.recalled.clear()
                if why == "go":
                    return True
                paced = why in {"pace", "unseen", "at_once"}
                raise _limited(call_class, after, paced=paced)
        self._take_alone(installation_id, call_class)
        return False

    def _ask(self, installation_id: int, call_class: CallClass, call: str) -> tuple[str, float]:
        pace = self._paces[call_class]
        arguments: list[str | float] = [
            call_class,
            pace.rate,
            pace.burst,
            pace.at_once,
            pace.spared,
            int(pace.told),
            UNKNOWN_EVERY,
            call,
            LONGEST_CALL,
            pace.quota,
            UNKNOWN_APART,
            LONGEST_PLACE,
        ]
        keys = _keys(installation_id)
        why, after = self._take_script(keys, [*arguments, 0])
        if why == "unknown":
            recalled: list[str | float] = []
            for quota, left in self._recall(installation_id).items():
                recalled += [quota, left]
            why, after = self._take_script(keys, [*arguments, 1, *recalled])
        return why, float(after)

    def _take_alone(self, installation_id: int, call_class: CallClass) -> None:
        """Take a token from the bucket of this process.

        Raises `RateLimited` if the bucket is empty or GitHub asked to wait. The rate is low, but the process can call
        GitHub while Redis is unavailable.
        """
        with self._lock:
            news = installation_id not in self._alone.recalled
        if news:
            for quota, left in self._recall(installation_id).items():
                self._close(installation_id, quota, left)
            with self._lock:
                self._alone.recalled.add(installation_id)
        # Only Redis stores the quota of each class. While Redis is unavailable, one empty quota therefore stops all
        # classes.
        with self._lock:
            untils = [until for (one, _), until in self._alone.closed.items() if one == installation_id]
        after = max(untils, default=-math.inf) - self._monotonic()
        if after > 0:
            raise _limited(call_class, after)
        key, now = (installation_id, call_class), self._monotonic()
        with self._lock:
            free = self._alone.next.get(key, now)
            if free > now:
                # The random factor spreads the retries of the denied calls.
                raise _limited(call_class, (free - now) * random.uniform(1, 2), paced=True)  # noqa: S311
            self._alone.next[key] = now + 1 / ALONE

    def _settle(
        self, installation_id: int, call_class: CallClass, call: str, answer: Answer | None, *, counted: bool
    ) -> None:
        now = self._clock()
        limit = None if answer is None else limit_of(answer, now)
        quota = None if answer is None else quota_of(answer)
        if limit is not None:
            self._close(installation_id, limit.quota, limit.after)
            self._remember(installation_id, limit.quota, limit.after)
        elif quota is not None and quota.remaining == 0 and quota.reset > now.timestamp():
            self._remember(installation_id, quota.resource, quota.reset - now.timestamp() + 1)
        if not counted or self._is_away():
            return
        # An answer without headers also makes the class known, because a server without limits sends no headers.
        unchanged = answer is not None and answer.status == HTTPStatus.NOT_MODIFIED
        known = answer is not None and (answer.status in SUCCESS or unchanged)
        closed_for = limit.after if limit is not None and limit.quota == EVERYTHING else 0
        told = (quota.resource, quota.limit, quota.remaining, quota.reset) if quota is not None else ("", 0, 0, 0)
        if limit is not None and limit.quota != EVERYTHING:
            told = (limit.quota, told[1], 0, math.ceil(now.timestamp() + limit.after))
        try:
            arguments = [call_class, call, int(known), closed_for, *told, int(unchanged)]
            self._settle_script(_keys(installation_id), arguments)
        except redis.RedisError as error:
            self._went_away(error)

    # State of this process alone

    def _close(self, installation_id: int, quota: str, seconds: float) -> None:
        key, until = (installation_id, quota), self._monotonic() + seconds
        with self._lock:
            self._alone.closed[key] = max(until, self._alone.closed.get(key, until))

    def _is_away(self) -> bool:
        return self._monotonic() < self._away_until

    def _went_away(self, error: redis.RedisError) -> None:
        self._away_until = self._monotonic() + AWAY_FOR
        log.warning("github_rate_limits.redis_unavailable", error=type(error).__name__)


def _keys(installation_id: int) -> list[str]:
    # Both keys have the same hash tag, so that a Redis cluster stores them on one node.
    return [f"ostler:github:{{{installation_id}}}", f"ostler:github:{{{installation_id}}}:calls"]


def _limited(call_class: CallClass, after: float, *, paced: bool = False) -> RateLimited:
    whose = "Ostler's own rate limit" if paced else "the rate limit of GitHub"
    return RateLimited(
        f"{whose} requires a wait of {after:.0f} s before the next {call_class} call", after=after, paced=paced
    )
