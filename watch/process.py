"""Process of `ostler watch`. One replica holds the Lease, and watches Pods, hook Pods and pools.

Other replicas are standbys.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from pathlib import Path
from typing import TypeAlias

from redis.exceptions import RedisError

from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.runners.hook_pods import HookPodView
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from ostler.reasons import meaning_of, reason_of
from ostler.wakes import Waker
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec
from rules.upstream.leadership import RENEW
from watch.follower import Follower
from watch.hints import Hints, send_all
from watch.leader import Candidate
from watch.settings import WatchSettings
from watch.subjects import HookPods, Pods, Pools

log = get_logger(__name__)

_Follower: TypeAlias = Follower[PodView] | Follower[HookPodView] | Follower[PoolSpec]


def run_watch(settings: WatchSettings) -> int:
    """Run until SIGTERM or SIGINT. Return the exit status.

    The exit status is 0, or 1 if a follower ended because of a bug.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    telemetry.serve(settings.metrics_port)
    client = make_client(kubeconfig=settings.kubeconfig, pool_size=2 + 3 * len(settings.namespaces))
    me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    candidate = Candidate(client, namespace=settings.namespace, me=me, duration=settings.timings.watch_lease)
    return _Watch(settings, client, candidate, stopped).run()


class _Place:
    """The watch of one namespace: its queue of hints, and the threads that follow its Pods, hook Pods and pools."""

    def __init__(self, namespace: str, settings: WatchSettings, client: KubeClient) -> None:
        self.namespace = namespace
        self.hints = Hints(executing_after=settings.timings.watch_executing_after)
        self._client = client
        self._seconds = settings.timings.watch_timeout
        self._pods: Follower[PodView] | None = None
        self._others: list[_Follower] = []

    @property
    def ended(self) -> bool:
        """True if a thread ended although nobody stopped it."""
        return any(not each.is_alive() for each in self._followers)

    @property
    def connected(self) -> bool:
        """True while the watch of the Pods is connected."""
        return self._pods is not None and self._pods.connected

    def follow(self) -> None:
        """Start the threads."""
        of = {"namespace": self.namespace}
        self._pods = Follower(Pods(self._client, self.hints, **of), seconds=self._seconds)
        self._others = [
            Follower(HookPods(self._client, self.hints, **of), seconds=self._seconds),
            Follower(Pools(self._client, self.hints, **of), seconds=self._seconds),
        ]
        for follower in self._followers:
            follower.start()

    def unfollow(self) -> None:
        """End the threads, and wait for their end."""
        followers = self._followers
        for follower in followers:
            follower.stop()
        for follower in followers:
            follower.join(5)
        self._pods, self._others = None, []

    @property
    def _followers(self) -> list[_Follower]:
        return [*([] if self._pods is None else [self._pods]), *self._others]


class _Watch:
    """The parts of one process of `ostler watch`.

    The main thread runs the leader election. One more thread per namespace sends the hints. While the process is the
    leader, three more threads per namespace follow Pods, hook Pods and pools.
    """

    def __init__(
        self, settings: WatchSettings, client: KubeClient, candidate: Candidate, stopped: threading.Event
    ) -> None:
        self._settings = settings
        self._client = client
        self._candidate = candidate
        self._stopped = stopped
        self._places = [_Place(namespace, settings, client) for namespace in settings.namespaces]
        self._signs = Waker(settings.redis_url)  # used by the main thread
        self._following = False

    def run(self) -> int:
        senders = [
            threading.Thread(
                target=send_all,
                args=(place.hints, Waker(self._settings.redis_url)),
                kwargs={"namespace": place.namespace, "stopped": self._stopped},
                name=f"sender of {place.namespace}",
                daemon=True,
            )
            for place in self._places
        ]
        for sender in senders:
            sender.start()
        status = 0
        while not self._stopped.is_set():
            self._step()
            if any(place.ended for place in self._places):
                ended = [place.namespace for place in self._places if place.ended]
                log.error("watch.thread_ended_unexpectedly", namespaces=ended)
                status = 1
                break
            self._stopped.wait(self._settings.timings.watch_lease * RENEW)
        self._unfollow()
        self._stopped.set()
        for place in self._places:
            place.hints.close()
        for sender in senders:
            sender.join(5)
        try:
            self._candidate.give_back()
        except UpstreamError as error:
            log.warning("watch.lease_not_released", error=meaning_of(error))
        return status

    def _step(self) -> None:
        """Make one step of the leader election. Start the followers if this process leads, else stop them."""
        try:
            self._candidate.step()
        except UpstreamError as error:
            log.warning("watch.lease_request_failed", error=meaning_of(error), why=str(error))
        else:
            if self._settings.alive_file is not None:
                Path(self._settings.alive_file).touch()
        leads = self._candidate.leads
        telemetry.WATCH_LEADER.set(int(leads))
        if leads and not self._following:
            log.info("watch.leadership_acquired")
            self._following = True
            for place in self._places:
                place.follow()
        elif not leads and self._following:
            log.warning("watch.leadership_lost")
            self._unfollow()
            for place in self._places:
                place.hints.clear()
        connected = [place for place in self._places if place.connected]
        if len(self._places) > 1:  # each follower sets the gauge for its own namespace only
            telemetry.WATCH_CONNECTED.set(int(len(connected) == len(self._places)))
        for place in connected:
            self._say_so(place.namespace)

    def _say_so(self, namespace: str) -> None:
        """Record in Redis that the watch of a namespace is connected.

        While the record exists, reconcilers of this namespace expect that the watch wakes them.
        """
        try:
            self._signs.mark_watched(namespace, seconds=self._settings.timings.watch_lease)
        except RedisError as error:
            log.warning("watch.connection_not_recorded_in_redis", namespace=namespace, error=reason_of(error))

    def _unfollow(self) -> None:
        for place in self._places:
            place.unfollow()
        self._following = False
