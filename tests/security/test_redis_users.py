"""Users of Redis: each process has the rights for its work, and beat, watch and Flower have no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.events import EventReceiver
from redis.exceptions import NoPermissionError

from beat_schedule import QUEUES as BEAT_QUEUES
from lab.redis import Redis
from ostler import transport
from ostler.errors import ConfigurationError
from ostler.redis_users import RedisUser, as_user, passwords_from
from ostler.secrets import Secret
from ostler.task_names import MISSING_PODS, POD_GONE, PODS_CHANGED, POOL_CHANGED, POOLS, QUEUES, WATCH_QUEUES
from ostler.wakes import Waker, producer
from tasks.worker.flower import Silent
from tests.waiting import eventually

LIMITED = ("beat", "watch", "flower")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    running = Redis(tmp_path_factory.mktemp("redis"))
    running.start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _empty(server: Redis) -> None:
    server.flush()


def client(server: Redis, process: str) -> redis.Redis:
    return redis.Redis.from_url(server.url_of(process), socket_timeout=5)


FORBIDDEN = """
    FLUSHALL
    FLUSHDB
    CONFIG GET *
    CONFIG SET maxmemory 1
    ACL LIST
    ACL WHOAMI
    SHUTDOWN
    DEBUG SLEEP 0
    KEYS *
    SCAN 0
    MONITOR
    CLIENT LIST
    SCRIPT FLUSH
    REPLICAOF evil 6379
    SAVE
    SLOWLOG GET
    RENAME dispatch x
    INFO
    PUBLISH /0.celery.pidbox {}
    PUBLISH /0.celeryev/worker.heartbeat {}
    SUBSCRIBE /0.celery.pidbox
    LPUSH github {}
    LPUSH retire {}
    RPUSH sweeps {}
    BRPOP sweeps 1
    RPOP dispatch
    LRANGE dispatch 0 1
    HSET unacked a b
    ZADD unacked_index 1 a
    SET ostler:github:{1} x
    GET ostler:github:{1}
    DEL ostler:github:{1}
    HGETALL ostler:github:{1}:calls
    SET ostler:wake:1 1
    SADD _kombu.binding.github x
    SADD _kombu.binding.celery.pidbox x
"""
"""Forbidden commands, one per line."""

BY_PROCESS = {
    "beat": """
        LPUSH dispatch {}
        SET ostler:watched:a 1
    """,
    "watch": """
        SET redbeat::lock x
        DEL redbeat::lock
        DEL sweeps
        EVAL return 0
    """,
    "flower": """
        LPUSH dispatch {}
        SET redbeat::lock x
        DEL redbeat::lock
        DEL sweeps
        SADD _kombu.binding.celeryev x
        EVAL return 0
        PUBLISH /0.celeryev/task.sent {}
    """,
}


@pytest.mark.parametrize("process", LIMITED)
def test_forbidden_commands_are_refused(server: Redis, process: str) -> None:
    with client(server, process) as connection:
        assert connection.ping()
        done = []
        for command in filter(None, map(str.split, (FORBIDDEN + BY_PROCESS[process]).splitlines())):
            try:
                connection.execute_command(*command)
            except NoPermissionError:
                continue
            done.append(command)
    assert done == []


@pytest.mark.parametrize(
    "call",
    ["'FLUSHALL'", "'KEYS', '*'", "'LPUSH', 'github', 'x'", "'GET', 'ostler:github:{1}'"],
)
def test_script_of_beat_is_limited_to_its_commands_and_keys(server: Redis, call: str) -> None:
    with client(server, "beat") as connection:
        assert connection.eval("return redis.call('EXISTS', 'redbeat::lock')", 0) == 0
        with pytest.raises(redis.ResponseError, match=r"can't (run this command|access at least one)"):
            connection.eval(f"return redis.call({call})", 0)


def test_web_and_worker_may_not_administer_or_empty_the_database(server: Redis) -> None:
    with client(server, "worker") as connection:
        for command in (
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("SHUTDOWN",),
            ("MONITOR",),
        ):
            with pytest.raises(NoPermissionError):
                connection.execute_command(*command)
        assert connection.info()
        connection.set("ostler:github:{1}", "1")


@pytest.mark.parametrize(("process", "queues"), [("beat", BEAT_QUEUES), ("watch", WATCH_QUEUES)])
def test_each_sender_reaches_its_queues(server: Redis, process: str, queues: tuple[str, ...]) -> None:
    app = producer(Secret(server.url_of(process)))
    with server.client() as reader:
        for queue in QUEUES:
            if queue in queues:
                app.send_task("ostler.a", queue=queue, ignore_result=True)
                assert reader.llen(queue) == 1
            else:
                with pytest.raises(Exception, match=r"(?i)permission"):
                    app.send_task("ostler.a", queue=queue, ignore_result=True)
                assert reader.llen(queue) == 0
    app.close()


def test_watch_sends_every_hint_and_its_sign_of_life(server: Redis) -> None:
    waker = Waker(Secret(server.url_of("watch")))
    waker.mark_watched("runners", seconds=9)
    waker.send(POOLS)
    waker.send(MISSING_PODS)
    waker.send(POOL_CHANGED, namespace="n", pool="p")
    waker.send(PODS_CHANGED, namespace="n")
    with server.client() as reader:
        assert {queue: reader.llen(queue) for queue in WATCH_QUEUES} == {"dispatch": 1, "pools": 2, "sweeps": 1}
        assert reader.exists("ostler:watched:runners")
    waker.close()


def test_flower_hears_events_and_writes_nothing(server: Redis) -> None:
    transport.install()
    heard: list[str] = []
    listens = Celery("flower", broker=server.url_of("flower"), set_as_current=False)
    listens.control = Silent(listens)

    def listen() -> None:
        with listens.connection() as connection:
            receiver = EventReceiver(connection, handlers={"*": lambda event: heard.append(event["type"])}, app=listens)
            for _ in receiver.itercapture(limit=None, timeout=30, wakeup=True):
                if heard:
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    with server.client() as reader:
        eventually(lambda: reader.pubsub_numpat() == 1, "Flower listens")
    sender = producer(Secret(server.url_of("worker")))
    sender.send_task(POD_GONE, queue="dispatch", ignore_result=True)
    eventually(lambda: heard == ["task-sent"], "Flower heard of the task")
    thread.join(30)
    with server.client() as reader:
        assert reader.keys("*celeryev*") == []
    sender.close()
    listens.close()


def test_url_with_a_user_keeps_place_and_quotes_the_password() -> None:
    assert (
        as_user("rediss://:old@redis:6380/2", RedisUser.BEAT, Secret("a/b@c"))
        == "rediss://ostler-beat:a%2Fb%40c@redis:6380/2"
    )


def test_password_is_in_no_file_of_users(tmp_path: Path) -> None:
    server = Redis(tmp_path)
    told = (tmp_path / "users.acl").read_text()
    assert [user for user, password in server.passwords.items() if password.reveal() in told] == []


def test_command_names_a_password_that_is_missing_short_or_used_twice() -> None:
    given = {f"OSTLER_REDIS_PASSWORD{suffix}": f"{suffix:x>20}" for suffix in ("", "_BEAT", "_WATCH", "_FLOWER")}
    assert set(passwords_from(given)) == set(RedisUser)
    for changed, said in (("", "it is not set"), ("short", "it has 5 characters")):
        with pytest.raises(ConfigurationError, match=f"OSTLER_REDIS_PASSWORD_WATCH: {said}"):
            passwords_from(given | {"OSTLER_REDIS_PASSWORD_WATCH": changed})
    with pytest.raises(ConfigurationError, match="same password"):
        passwords_from(given | {"OSTLER_REDIS_PASSWORD_WATCH": given["OSTLER_REDIS_PASSWORD"]})
