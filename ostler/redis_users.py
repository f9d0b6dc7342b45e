"""Redis users of Ostler's processes: the rights of each user, as lines of an ACL file for Redis 6.2 and later.

Beat and watch have no secret except their access to Redis, and Flower has only its logins in addition. Each of these
three processes has a user of its own. The users of beat and watch can send only to their own queues, and the user of
Flower sends no messages. None of the three can publish control messages, empty the database, or change the keys that
limit the rate of calls to GitHub.

In Redis 6.2, a user may run each permitted command on each permitted key. Beat can therefore also delete the queues
that it sends to. A user that can push to a queue can push any task to that queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, urlsplit, urlunsplit

from beat_schedule import QUEUES as BEAT_QUEUES
from ostler.errors import ConfigurationError
from ostler.secrets import LEAST, Secret
from ostler.task_names import QUEUES, WATCH_QUEUES


class RedisUser(StrEnum):
    """Name of a Redis user. `OSTLER` is the user of web and of the workers."""

    OSTLER = "ostler"
    BEAT = "ostler-beat"
    WATCH = "ostler-watch"
    FLOWER = "ostler-flower"


@dataclass(frozen=True, slots=True)
class _Rules:
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]


_CONNECT = (
    "+ping",
    "+hello",
    "+auth",
    "+select",
    "+client|setname",
    "+multi",
    "+exec",
    "+discard",
    "+watch",
    "+unwatch",
)
_SEND = ("+lpush", "+llen", "+sadd", "+publish")
_BOUND_BY_ALL = "dispatch"
"""The default queue of Celery, which every sender binds."""
_BEAT = (
    "+get",
    "+set",
    "+exists",
    "+del",
    "+pttl",
    "+pexpire",
    "+smembers",
    "+srem",
    "+hget",
    "+hset",
    "+hsetnx",
    "+hdel",
    "+zadd",
    "+zcard",
    "+zrem",
    "+zrange",
    "+zrangebyscore",
    "+zscore",
    "+evalsha",
    "+eval",
    "+script|load",
    "+script|exists",
)


def _queue_keys(queues: tuple[str, ...]) -> tuple[str, ...]:
    """Return key patterns of the Redis lists of `queues`.

    The list of the highest priority has the name of the queue. The list of each lower priority has the same name with a
    suffix of three characters.
    """
    return tuple(pattern for queue in queues for pattern in (queue, f"{queue}??[369]"))


def _sender_keys(queues: tuple[str, ...]) -> tuple[str, ...]:
    """Return patterns of the keys that a sender writes: the lists and the bindings of its queues."""
    bound = sorted({*queues, _BOUND_BY_ALL})
    bindings = (f"_kombu.binding{kind}.{queue}" for queue in bound for kind in ("", "_permanent"))
    return (*_queue_keys(queues), *bindings)


def _rules(user: RedisUser, *, database: int) -> _Rules:
    events = f"/{database}.celeryev/"
    sent = (f"{events}task.sent",)
    match user:
        case RedisUser.OSTLER:
            return _Rules(("*",), ("*",), ("+@all", "-@admin", "-@dangerous", "+info", "+client|setname"))
        case RedisUser.BEAT:
            keys = (*_sender_keys(BEAT_QUEUES), "redbeat:*", "ostler:beat:*")
            return _Rules(keys, sent, (*_CONNECT, *_SEND, *_BEAT))
        case RedisUser.WATCH:
            return _Rules((*_sender_keys(WATCH_QUEUES), "ostler:watched:*"), sent, (*_CONNECT, *_SEND, "+set"))
        case RedisUser.FLOWER:
            reads = ("+llen", "+exists", "+subscribe", "+psubscribe", "+unsubscribe", "+punsubscribe")
            # Redis allows a PSUBSCRIBE only if its pattern equals a permitted pattern literally.
            return _Rules((*_queue_keys(QUEUES), "celeryev.*"), (f"{events}*",), (*_CONNECT, *reads))


def acl_line(user: RedisUser, password: Secret, *, database: int = 0) -> str:
    """Return the line of an ACL file that creates a user. The line contains the SHA-256 digest of the password."""
    digest = hashlib.sha256(password.reveal().encode()).hexdigest()
    return f"user {user} reset on #{digest} {rules_of(user, database=database)}"


def rules_of(user: RedisUser, *, database: int = 0) -> str:
    """Return the rights of a user, in the form that `ACL SETUSER` expects after `reset` and the password."""
    rules = _rules(user, database=database)
    return " ".join(
        ("resetchannels", *(f"~{key}" for key in rules.keys), *(f"&{each}" for each in rules.channels), *rules.commands)
    )


def acl_file(passwords: Mapping[RedisUser, Secret], *, database: int = 0) -> str:
    """Return the text of the ACL file that creates every user."""
    return "".join(f"{acl_line(user, passwords[user], database=database)}\n" for user in RedisUser)


def password_variable(user: RedisUser) -> str:
    """Return the name of the variable with the password of a user."""
    return f"OSTLER_REDIS_PASSWORD{user.removeprefix(RedisUser.OSTLER).replace('-', '_').upper()}"


def passwords_from(environment: Mapping[str, str]) -> dict[RedisUser, Secret]:
    """Return the password of each user from the variables `OSTLER_REDIS_PASSWORD…` of an environment.

    Raises `ConfigurationError` if a password is missing, too short, or equal to that of another user.
    """
    found = {}
    for user in RedisUser:
        name = password_variable(user)
        password = environment.get(name, "")
        if len(password) < LEAST:
            told = f"it has {len(password)} characters" if password else "it is not set"
            raise ConfigurationError(
                f"{name}: {told}; a password must have {LEAST} characters or more: `openssl rand -hex 24` creates one"
            )
        found[user] = Secret(password)
    if len({password.reveal() for password in found.values()}) < len(found):
        raise ConfigurationError(
            "OSTLER_REDIS_PASSWORD…: two users have the same password; set a different one for each"
        )
    return found


def as_user(url: str, user: RedisUser, password: Secret) -> str:
    """Return the URL of a Redis server with the given user and password as its login."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password.reveal(), safe='')}@{place}"))
