"""Leader election of the watch with a Lease. Each step reads and writes the Lease at most once."""

from __future__ import annotations

import time
from collections.abc import Callable

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.leases import create_lease, read_lease, write_lease
from rules.upstream.leadership import RENEW, LeaseSeen, LeaseStep, leads, next_step
from rules.upstream.retry import RetryPolicy

LEASE = "ostler-watch"


class Candidate:
    """A process that takes part in the leader election. All calls of `step` must come from the same thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        me: str,
        duration: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._me = me
        self._duration = duration
        self._clock = clock
        self._policy = RetryPolicy(attempts=1, deadline=max(1.0, duration * RENEW))
        self._seen: LeaseSeen | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def leads(self) -> bool:
        """True while this process is the leader. While the value is true, no other process can acquire the Lease."""
        since = None if self._renewed_at is None else self._clock() - self._renewed_at
        return leads(renewed_before=since, duration=self._duration)

    def step(self) -> None:
        """Make one step of the leader election.

        If this process holds the Lease, renew it. If the Lease is missing, free or expired, acquire it. Otherwise only
        read it.

        The method does not catch exceptions of the client.
        """
        began = self._clock()
        held = self._seen is not None and self._seen.holder == self._me
        lease = self._seen if held else self._read(began)
        match next_step(lease, me=self._me, unchanged_for=began - self._seen_at):
            case LeaseStep.WAIT:
                self._renewed_at = None
                return
            case LeaseStep.CREATE:
                written = create_lease(
                    self._client,
                    namespace=self._namespace,
                    name=LEASE,
                    holder=self._me,
                    duration=self._duration,
                    policy=self._policy,
                )
            case LeaseStep.TAKE | LeaseStep.RENEW:
                written = self._write(self._me, lease)
        self._seen, self._seen_at = written, began
        # The write returns None if the Lease had changed since the last read. Another process wrote it, or the answer
        # to an earlier write of this process was lost. The next step reads the Lease again.
        if written is not None:
            self._renewed_at = began

    def give_back(self) -> None:
        """Stop leading and release the Lease, so that a standby becomes the leader at once.

        The method does not catch exceptions of the client.
        """
        self._renewed_at = None
        if self._seen is not None and self._seen.holder == self._me:
            self._write("", self._seen)

    def _read(self, now: float) -> LeaseSeen | None:
        lease = read_lease(self._client, namespace=self._namespace, name=LEASE, policy=self._policy)
        if lease is None or self._seen is None or lease.version != self._seen.version:
            self._seen_at = now
        self._seen = lease
        return lease

    def _write(self, holder: str, lease: LeaseSeen | None) -> LeaseSeen | None:
        if lease is None:
            raise AssertionError("a Lease must be read before it is written")
        return write_lease(
            self._client,
            namespace=self._namespace,
            name=LEASE,
            seen=lease,
            holder=holder,
            duration=self._duration,
            policy=self._policy,
        )
