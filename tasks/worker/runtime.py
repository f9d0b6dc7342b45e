"""Shared objects of all tasks in one process: engine, clients, cipher. Each object is created once.

Except for `wake_keys`, the properties of the clients raise an error inside a transaction (law L15).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from github_adapters.client import GitHub
from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.runners.runner_scripts import RunnerScripts
from models.db.connections import admit, worker_pool
from models.db.engine import in_transaction, make_engine
from ostler.encryption import Cipher
from ostler.settings import Settings, load
from ostler.task_names import QUEUES
from ostler.timings import Timings
from ostler.wakes import Waker
from tasks.worker.app import app
from tasks.worker.cluster_events import Recorder
from tasks.worker.limits import make_governor, make_left
from tasks.worker.transactions import Transactions


class HeldAcrossNetwork(AssertionError):
    """A network client was requested during a transaction, which law L15 forbids."""


def _outside() -> None:
    if in_transaction():
        raise HeldAcrossNetwork(
            "a network client was requested during a transaction; end the transaction before the call"
        )


class Runtime(Transactions):
    """The clients of one worker process.

    The constructor raises `ConfigurationError` if a setting cannot be used, and the errors of
    `models.db.connections.admit`.
    """

    def __init__(self, settings: Settings, *, queues: Sequence[str] = QUEUES) -> None:
        self.settings = settings
        self.who = f"worker:{os.getpid()}"
        connections = worker_pool(threads=settings.worker_threads, queues=queues)
        self.engine = make_engine(settings.database_url, pool_size=connections, application="ostler-worker")
        admit(self.engine, needs=connections, share=settings.connection_share, budget=settings.connection_budget)
        self.cipher = Cipher(settings.encryption_keys)
        self._waker = Waker(settings.redis_url, app=app)
        self._kube = make_client(kubeconfig=settings.kubeconfig, pool_size=settings.worker_threads)
        self.scripts = RunnerScripts()
        self.events = Recorder(self._kube, who=self.who)
        self._github = GitHub(
            api_url=settings.github_api_url,
            app_id=settings.github_app_id,
            private_key=settings.github_private_key,
            governor=make_governor(settings, self.engine),
            left=make_left(self.engine),
        )

    @property
    def timings(self) -> Timings:
        """Return the timings of the settings."""
        return self.settings.timings

    @property
    def kube(self) -> KubeClient:
        """Return the client of the Kubernetes API."""
        _outside()
        return self._kube

    @property
    def github(self) -> GitHub:
        """Return the client of GitHub."""
        _outside()
        return self._github

    @property
    def waker(self) -> Waker:
        """Return the client of Redis for wakes and messages."""
        _outside()
        return self._waker

    @property
    def wake_keys(self) -> Waker:
        """Return the client of Redis that may be used under the pool's lock. This use is the one exception of L15.

        The caller must use this client only to delete the wake key.
        """
        return self._waker


_made: list[Runtime] = []
_making = threading.Lock()


def runtime() -> Runtime:
    """Return the runtime of this process. The first call creates the runtime."""
    with _making:
        if not _made:
            _made.append(Runtime(load()))
        return _made[0]


def install(rt: Runtime | None) -> None:
    """Make the tasks of this process use `rt`, or discard the current runtime if `rt` is None."""
    with _making:
        _made[:] = [] if rt is None else [rt]
