"""The handover of a JIT: review the token, commit `delivered`, then answer. The order must not change.

No transaction is open while the token is reviewed. The commit precedes the first byte of the answer. A claim that is
still `minted` therefore proves that its JIT never left Ostler. The only exception is a commit that Postgres lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection
from starlette.background import BackgroundTask
from starlette.responses import Response

from models.claims.deliver import ClaimLocked, Delivery, deliver, delivered_before
from ostler import telemetry
from ostler.clock import utcnow
from ostler.encryption import Cipher, Undecryptable
from ostler.logging import get_logger
from ostler.secrets import Secret
from ostler.task_names import STAMP
from rules.claims.machines import Stamp
from web.process.publisher import Publisher
from web.process.threads import Threads
from web.runners.cluster import Cluster
from web.runners.replies import Refusal, work

REVIEW_WITHIN = 0.5
"""Seconds that a delivery waits for the result of a token review (law L10).

This time includes the wait for a free thread.
"""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recipient:
    """The poll that gets a JIT."""

    pod_uid: str
    pod_name: str
    poll_id: str
    token: Secret
    accept: str


class Missed(StrEnum):
    """Reasons why a claim was not delivered.

    `Handover.counts` has one counter for each reason.
    """

    MOVED_ON = "moved_on"  # the claim must not be delivered to this poll any more
    LOCKED = "locked"  # another transaction holds a lock on the claim; retry


class Handover:
    """Delivers JITs to polls. `counts` has the number of deliveries and of token reviews for each outcome."""

    def __init__(
        self,
        *,
        threads: Threads,
        cluster: Cluster,
        cipher: Cipher,
        publisher: Publisher,
        counts: Counter[str],
        stamp_returns_after: float = 5.0,
    ) -> None:
        """Set up the handover.

        If the Pod of a delivered claim has no stamp, Ostler puts the stamp on the Pod `stamp_returns_after` seconds
        after the answer.
        """
        self._threads = threads
        self._cluster = cluster
        self._cipher = cipher
        self._publisher = publisher
        self._counts = counts
        self._stamp_returns_after = stamp_returns_after

    async def hand_over(
        self,
        claim_id: int,
        to: Recipient,
        *,
        again: bool,
        reviewed: bool = False,
        cancels_unstamp: bool = False,
    ) -> Response | Missed:
        """Commit the delivery of a claim, and return the answer 200.

        If the claim could not be delivered, return the reason instead. `again` is True if the claim was delivered
        before and the answer was lost. With `again`, the transaction also handles a stamp that is not on: it cancels an
        un-stamp that has begun, and sets the time at which Ostler stamps the Pod again. If `reviewed` is True, the
        token was already reviewed for this poll. For `cancels_unstamp` see `models.claims.deliver.deliver`.

        Raises Refusal (401) if the token review refuses the token, and Refusal (503) if the JIT cannot be decrypted.
        """
        if not reviewed:
            await self._review(to)

        def body(db: Connection) -> tuple[Delivery, Secret] | None:
            if again:
                delivery = delivered_before(
                    db,
                    claim_id=claim_id,
                    pod_uid=to.pod_uid,
                    stamp_returns_after=self._stamp_returns_after,
                    now=utcnow(),
                    who="web",
                )
            else:
                delivery = deliver(
                    db,
                    claim_id=claim_id,
                    pod_uid=to.pod_uid,
                    poll_id=to.poll_id,
                    cancels_unstamp=cancels_unstamp,
                    stamp_returns_after=self._stamp_returns_after,
                    now=utcnow(),
                    who="web",
                )
            # The JIT is decrypted before the commit. If decryption fails, the claim must not count as delivered.
            return None if delivery is None else (delivery, self._cipher.decrypt(delivery.jit))

        try:
            result = await self._threads.deliver(body)
        except ClaimLocked:
            log.info(
                "jit.delivery_postponed_because_claim_is_locked", claim=claim_id, pod=to.pod_name, pod_uid=to.pod_uid
            )
            return self._missed(Missed.LOCKED)
        except Undecryptable as error:
            log.error(  # noqa: TRY400  the trace says nothing more
                "jit.not_decrypted", claim=claim_id, pod=to.pod_name, pod_uid=to.pod_uid, error=str(error)
            )
            raise Refusal(503, str(error)) from None
        if result is None:
            return self._missed(Missed.MOVED_ON)
        delivery, jit = result
        if delivery.queued is not None:
            queued_at, pool = delivery.queued
            telemetry.JOB_WAIT_SECONDS.labels(*pool).observe(max(0.0, (utcnow() - queued_at).total_seconds()))
        self._counts["delivery.again" if again else "delivery.first"] += 1
        log.info(
            "claim.delivered",
            claim=claim_id,
            job=delivery.job_id,
            pod=to.pod_name,
            pod_uid=to.pod_uid,
            runner=delivery.runner_name,
            repeated=again,
        )
        late_stamp = delivery.stamp is Stamp.OFF or (again and delivery.stamp is not Stamp.ON)
        after = BackgroundTask(self._stamp, claim_id) if late_stamp else None
        return work(delivery, jit, accept=to.accept, after=after)

    def _missed(self, why: Missed) -> Missed:
        self._counts[f"delivery.{why}"] += 1
        return why

    async def _review(self, to: Recipient) -> None:
        try:
            verdict = await self._threads.cluster(
                lambda: self._cluster.review(to.token.reveal(), pod_uid=to.pod_uid), within=REVIEW_WITHIN
            )
        except TimeoutError:
            verdict = None
        if verdict is None:
            self._counts["token_review.missed"] += 1
            log.warning("token_review.not_answered", pod=to.pod_name, pod_uid=to.pod_uid)
        elif not verdict:
            self._counts["token_review.refused"] += 1
            raise Refusal(
                401, "the API server does not confirm this token for this Pod, which was probably deleted or replaced"
            )

    async def _stamp(self, claim_id: int) -> None:
        # Without the delay, the stamp could cut off the answer. If this process is killed before it sends the task, the
        # sweep `resume` sends the task.
        self._publisher.send(STAMP, after=self._stamp_returns_after, claim_id=claim_id, chain_no=None)
