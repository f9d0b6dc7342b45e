"""The retry layer as a table: the failure, its classification, and the reaction."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    IncompleteRead,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
)

from k8s_adapters.calls.retry import Answer, TruncatedAnswer, answer_of, find_failure, retry
from k8s_adapters.runners.stamps import STAMP_POLICY
from ostler.clock import Timing
from ostler.errors import Conflict, RateLimited, Retryable
from rules.upstream.retry import ONCE, Failure, Network, RetryPolicy

STEADY = RetryPolicy(jitter=(1.0, 1.0))
POOL = urllib3.HTTPConnectionPool("kubernetes")
CONNECTION = urllib3.connection.HTTPConnection("kubernetes")


def answered(status: int, *, retry_after: float | None = None, message: str = "") -> Answer:
    return Answer(status=status, reason="", message=message, retry_after=retry_after)


def caused(error: BaseException, *causes: BaseException, implicit: bool = False) -> BaseException:
    """Return `error` with a chain of causes behind it."""
    link = error
    for cause in causes:
        if implicit:
            link.__context__ = cause
        else:
            link.__cause__ = cause
        link = cause
    return error


def circle(first: BaseException, second: BaseException) -> BaseException:
    first.__cause__, second.__cause__ = second, first
    return first


def self_caused(error: BaseException) -> BaseException:
    error.__context__ = error
    return error


@dataclass
class Clock:
    """A clock that moves only by sleeps and by the duration of attempts."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def timing(self, roll: float = 0.5) -> Timing:
        return Timing(sleep=self.sleep, clock=lambda: self.now, roll=lambda: roll)


def play(
    clock: Clock, *outcomes: BaseException | str, policy: RetryPolicy, roll: float = 0.5, takes: float = 0.0
) -> str:
    """Run a call whose attempts end as planned, after `takes` seconds each."""
    plan = list(outcomes)

    def attempt(_left: float | None) -> str:
        clock.now += takes
        outcome = plan.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return retry(attempt, what="GET /x", policy=policy, timing=clock.timing(roll))


RETRIED = [408, 429, 500, 502, 503, 504]
NEVER = [400, 401, 403, 404, 405, 406, 409, 410, 411, 412, 413, 415, 416, 418, 422, 423, 428, 431, 451]
OTHER_SERVER_ERRORS = [501, 505, 507, 511, 599]


@pytest.mark.parametrize("status", RETRIED)
def test_a_passing_status_is_tried_again(status: int) -> None:
    clock = Clock()
    assert play(clock, answered(status), "done", policy=STEADY) == "done"
    assert clock.slept == [1.0]


@pytest.mark.parametrize("status", NEVER)
def test_an_answer_is_never_asked_for_twice(status: int) -> None:
    clock = Clock()
    with pytest.raises(Answer):
        play(clock, answered(status), policy=STEADY)
    assert clock.slept == []


@pytest.mark.parametrize("status", OTHER_SERVER_ERRORS)
def test_other_server_errors_are_left_to_the_caller_to_retry(status: int) -> None:
    clock = Clock()
    with pytest.raises(Retryable) as caught:
        play(clock, answered(status), policy=STEADY)
    assert caught.value.status == status
    assert clock.slept == []


@pytest.mark.parametrize("before", [answered(409), answered(422)])
def test_a_refusal_that_a_call_answers_is_no_cause_of_its_failure(before: Answer) -> None:
    def cut(_left: float | None) -> str:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    def refuse(_left: float | None) -> str:
        raise before

    def look_after_a_refusal() -> None:
        try:
            retry(refuse, what="PATCH /x", policy=ONCE)
        except Answer:
            retry(cut, what="GET /x", policy=ONCE)

    with pytest.raises(Retryable):
        look_after_a_refusal()


NETWORK_FAILURES: list[tuple[BaseException, Network]] = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Network.REFUSED),
    (ConnectionResetError(errno.ECONNRESET, "reset"), Network.RESET),
    (BrokenPipeError(errno.EPIPE, "pipe"), Network.RESET),
    (ConnectionAbortedError(errno.ECONNABORTED, "aborted"), Network.RESET),
    (TimeoutError("timed out"), Network.TIMEOUT),
    (TimeoutError(errno.ETIMEDOUT, "timed out"), Network.TIMEOUT),
    (OSError(errno.ENETUNREACH, "unreachable"), Network.UNREACHABLE),
    (OSError(errno.EHOSTUNREACH, "unreachable"), Network.UNREACHABLE),
    (OSError(errno.ENETDOWN, "down"), Network.UNREACHABLE),
    (OSError(errno.EHOSTDOWN, "down"), Network.UNREACHABLE),
    (OSError(errno.EADDRNOTAVAIL, "no ports"), Network.UNREACHABLE),
    (socket.gaierror(socket.EAI_AGAIN, "try again"), Network.NAME),
    (socket.gaierror(socket.EAI_NONAME, "unknown"), Network.NAME),
    (NameResolutionError("kubernetes", CONNECTION, socket.gaierror()), Network.NAME),
    (ssl.SSLError(1, "handshake failure"), Network.TLS),
    (ssl.SSLCertVerificationError(1, "self-signed"), Network.TLS),
    (ssl.SSLEOFError(8, "EOF"), Network.TLS),
    (urllib3.exceptions.SSLError("bad record"), Network.TLS),
    (ConnectTimeoutError(CONNECTION, "connect"), Network.TIMEOUT),
    (ReadTimeoutError(POOL, "/", "read"), Network.TIMEOUT),
    (ProtocolError("Connection aborted."), Network.RESET),
    (IncompleteRead(3, 5), Network.TRUNCATED),
    (NewConnectionError(CONNECTION, "no"), Network.UNREACHABLE),
    (ProxyError("proxy", OSError()), Network.UNREACHABLE),
    (TruncatedAnswer("half"), Network.TRUNCATED),
    (caused(ProtocolError("Connection aborted."), ConnectionResetError()), Network.RESET),
    (caused(NewConnectionError(CONNECTION, "no"), ConnectionRefusedError()), Network.REFUSED),
    (caused(NewConnectionError(CONNECTION, "no"), OSError(errno.EHOSTUNREACH, "")), Network.UNREACHABLE),
    (caused(MaxRetryError(POOL, "/"), ReadTimeoutError(POOL, "/", "read")), Network.TIMEOUT),
    (caused(RuntimeError("wrapped"), ValueError("again"), ConnectionResetError()), Network.RESET),
    (caused(RuntimeError("wrapped"), TimeoutError(), implicit=True), Network.TIMEOUT),
    (caused(RuntimeError("wrapped"), KeyError("a"), socket.gaierror(), implicit=True), Network.NAME),
    (circle(RuntimeError("a"), ConnectionRefusedError()), Network.REFUSED),
    (self_caused(ConnectionResetError()), Network.RESET),
]


@pytest.mark.parametrize(("error", "network"), NETWORK_FAILURES)
def test_a_network_failure_is_recognised_and_tried_again(error: BaseException, network: Network) -> None:
    assert find_failure(error) == Failure(network=network)
    clock = Clock()
    assert play(clock, error, "done", policy=STEADY) == "done"
    assert clock.slept == [1.0]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        KeyError("a bug"),
        OSError(errno.ENOENT, "no such file"),
        OSError("without a number"),
        PermissionError(errno.EACCES, "not yours"),
        caused(RuntimeError("a"), KeyError("b")),
        circle(RuntimeError("a"), KeyError("b")),
        self_caused(ValueError("a")),
    ],
)
def test_anything_else_is_a_bug_and_passes_through(error: BaseException) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        play(clock, error, policy=STEADY)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (caused(answered(404), ConnectionResetError()), 404),
        (caused(ConnectionResetError(), answered(404)), 404),
        (caused(RuntimeError("a"), TimeoutError(), answered(422)), 422),
        (caused(answered(503), answered(404)), 503),
        (caused(Conflict("c"), answered(409)), 409),
        (circle(TimeoutError(), answered(403)), 403),
        (caused(RuntimeError("a"), answered(503), implicit=True), 503),
    ],
)
def test_a_status_beats_every_cause(error: BaseException, status: int) -> None:
    failure = find_failure(error)
    assert failure is not None
    assert (failure.status, failure.network) == (status, None)


@pytest.mark.parametrize(
    "error", [caused(ConnectionResetError(), answered(404)), circle(TimeoutError(), answered(403))]
)
def test_a_final_status_behind_a_network_failure_is_not_retried(error: BaseException) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        play(clock, error, policy=STEADY)
    assert clock.slept == []


def test_the_wait_doubles_up_to_its_cap() -> None:
    clock = Clock()
    policy = RetryPolicy(attempts=8, base=1.0, cap=10.0, jitter=(1.0, 1.0))
    with pytest.raises(Retryable):
        play(clock, *[answered(500)] * 8, policy=policy)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


@pytest.mark.parametrize(("roll", "waits"), [(0.0, [0.5, 1.0, 2.0]), (0.5, [1.0, 2.0, 4.0]), (1.0, [1.5, 3.0, 6.0])])
def test_the_jitter_is_half_to_one_and_a_half(roll: float, waits: list[float]) -> None:
    clock = Clock()
    with pytest.raises(Retryable, match="4 of 4 attempts"):
        play(clock, *[ConnectionResetError()] * 4, policy=RetryPolicy(), roll=roll)
    assert clock.slept == waits


@pytest.mark.parametrize(
    ("status", "retry_after", "waited"),
    [
        (429, 7.0, 7.0),
        (503, 7.0, 7.0),
        (429, 0.0, 0.0),
        (429, 3600.0, 30.0),
        (503, 31.0, 30.0),
        (500, 7.0, 1.0),
        (502, 7.0, 1.0),
        (504, 7.0, 1.0),
        (408, 7.0, 1.0),
        (429, None, 1.0),
    ],
)
def test_retry_after_counts_for_429_and_503_only(status: int, retry_after: float | None, waited: float) -> None:
    clock = Clock()
    play(clock, answered(status, retry_after=retry_after), "done", policy=STEADY)
    assert clock.slept == [waited]


def test_retry_after_can_be_ignored() -> None:
    clock = Clock()
    play(clock, answered(429, retry_after=30.0), answered(503, retry_after=30.0), "done", policy=STAMP_POLICY)
    assert clock.slept == [0.1, 0.1]


def test_a_rate_limit_that_outlasts_the_attempts_says_how_long_to_wait() -> None:
    with pytest.raises(RateLimited) as caught:
        play(Clock(), answered(429, retry_after=12.0), policy=ONCE)
    assert caught.value.after == 12.0


def test_a_429_that_names_no_time_is_retryable() -> None:
    with pytest.raises(Retryable) as caught:
        play(Clock(), answered(429), policy=ONCE)
    assert caught.value.status == 429


def test_no_attempt_starts_past_the_deadline() -> None:
    clock = Clock()
    with pytest.raises(Retryable, match="deadline"):
        play(clock, *[answered(503)] * 4, policy=RetryPolicy(deadline=3.5, jitter=(1.0, 1.0)))
    assert clock.slept == [1.0, 2.0]
    assert clock.now - 100.0 <= 3.5


def test_a_wait_that_reaches_the_deadline_is_not_begun() -> None:
    clock = Clock()
    with pytest.raises(RateLimited):
        play(clock, answered(429, retry_after=2.0), policy=RetryPolicy(deadline=2.0))
    assert clock.slept == []


def test_slow_attempts_use_the_deadline_up() -> None:
    clock = Clock()
    with pytest.raises(Retryable, match="deadline"):
        play(clock, *[TimeoutError()] * 3, policy=STAMP_POLICY, takes=0.95)
    assert clock.slept == [0.1]


def test_each_attempt_is_given_what_is_left() -> None:
    clock = Clock()
    given: list[float | None] = []

    def attempt(left: float | None) -> None:
        given.append(left)
        clock.now += 0.5
        raise TimeoutError

    with pytest.raises(Retryable):
        retry(attempt, what="x", policy=STAMP_POLICY, timing=clock.timing())
    assert given == pytest.approx([2.0, 1.4, 0.8])


def test_without_time_no_attempt_is_made() -> None:
    with pytest.raises(Retryable, match="no time left"):
        play(Clock(), policy=RetryPolicy(deadline=0.0))


def test_what_stops_the_process_is_not_held_up() -> None:
    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        play(clock, KeyboardInterrupt(), policy=STEADY)
    assert clock.slept == []


def test_the_servers_words_are_not_in_the_message() -> None:
    with pytest.raises(Retryable) as caught:
        play(Clock(), answered(503, message="Bearer abc"), policy=ONCE)
    assert "abc" not in f"{caught.value}{caught.value.__cause__}{caught.value.__cause__!r}"


@pytest.mark.parametrize("make", [lambda: caused(Conflict("c"), answered(409)), lambda: answered(409)])
def test_the_answer_behind_an_error_can_be_found(make: Callable[[], BaseException]) -> None:
    found = answer_of(make())
    assert found is not None
    assert found.status == 409
    assert answer_of(ValueError("none")) is None
