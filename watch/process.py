"""Process of `ostler watch`. One replica holds the Lease and watches Pods and pools. Other replicas are standbys."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from pathlib import Path

from redis.exceptions import RedisError

from k8s_adapters.client import KubeClient, make_client
from k8s_adapters.pods import PodSeen
from k8s_adapters.pools import PoolSeen
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from ostler.wakes import Waker
from rules.upstream.leadership import RENEW
from watch.follower import Follower
from watch.hints import Hints, send_all
from watch.leader import Candidate
from watch.settings import WatchSettings
from watch.subjects import Pods, Pools

log = get_logger(__name__)


def run_watch(settings: WatchSettings) -> int:
    """Run until SIGTERM or SIGINT. Return the exit status.

    The exit status is 0, or 1 if a follower ended because of a bug.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    telemetry.serve(settings.metrics_port)
    client = make_client(kubeconfig=settings.kubeconfig, pool_size=4)
    me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    candidate = Candidate(client, namespace=settings.namespace, me=me, duration=settings.timings.watch_lease)
    return _Watch(settings, client, candidate, stopped).run()


class _Watch:
    """The parts of one process of `ostler watch`.

    The main thread runs the leader election. A second thread sends the hints. While the process is the leader, two more
    threads follow Pods and pools.
    """

    def __init__(
        self, settings: WatchSettings, client: KubeClient, candidate: Candidate, stopped: threading.Event
    ) -> None:
        self._settings = settings
        self._client = client
        self._candidate = candidate
        self._stopped = stopped
        self._hints = Hints(executing_after=settings.timings.watch_executing_after)
        self._waker = Waker(settings.redis_url)  # used by the thread of the sender
        self._signs = Waker(settings.redis_url)  # used by the main thread
        self._follower: Follower[PodSeen] | None = None
        self._of_pools: Follower[PoolSeen] | None = None

    def run(self) -> int:
        sender = threading.Thread(
            target=send_all,
            args=(self._hints, self._waker),
            kwargs={"namespace": self._settings.namespace, "stopped": self._stopped},
            name="sender",
            daemon=True,
        )
        sender.start()
        status = 0
        while not self._stopped.is_set():
            self._step()
            if any(each is not None and not each.is_alive() for each in (self._follower, self._of_pools)):
                log.error("watch.thread_ended_unexpectedly")
                status = 1
                break
            self._stopped.wait(self._settings.timings.watch_lease * RENEW)
        self._unfollow()
        self._stopped.set()
        self._hints.close()
        sender.join(5)
        try:
            self._candidate.give_back()
        except UpstreamError as error:
            log.warning("watch.lease_not_released", error=type(error).__name__)
        return status

    def _step(self) -> None:
        """Make one step of the leader election. Start the followers if this process leads, else stop them."""
        try:
            self._candidate.step()
        except UpstreamError as error:
            log.warning("watch.lease_request_failed", error=type(error).__name__, why=str(error))
        else:
            if self._settings.alive_file is not None:
                Path(self._settings.alive_file).touch()
        leads = self._candidate.leads
        telemetry.WATCH_LEADER.set(int(leads))
        if leads and self._follower is None:
            log.info("watch.leadership_acquired")
            namespace, seconds = self._settings.namespace, self._settings.timings.watch_timeout
            self._follower = Follower(Pods(self._client, self._hints, namespace=namespace), seconds=seconds)
            self._of_pools = Follower(Pools(self._client, self._hints, namespace=namespace), seconds=seconds)
            self._follower.start()
            self._of_pools.start()
        elif not leads and self._follower is not None:
            log.warning("watch.leadership_lost")
            self._unfollow()
            self._hints.clear()
        if self._follower is not None and self._follower.connected:
            self._say_so()

    def _say_so(self) -> None:
        """Record in Redis that the watch is connected.

        While the record exists, reconcilers expect that the watch wakes them.
        """
        try:
            self._signs.mark_watched(self._settings.namespace, seconds=self._settings.timings.watch_lease)
        except RedisError as error:
            log.warning("watch.connection_not_recorded_in_redis", error=type(error).__name__)

    def _unfollow(self) -> None:
        followers = [each for each in (self._follower, self._of_pools) if each is not None]
        for follower in followers:
            follower.stop()
        for follower in followers:
            follower.join(5)
        self._follower = self._of_pools = None
