"""Identity of polling Pods. A poll is admitted only if its token belongs to a Pod of one of Ostler's pools.

The Pod must be in a namespace of runners, and its ServiceAccount must have the name of the Pod. The answer to a
refused poll has a status and no reason. If Ostler cannot decide now, the answer is 503. A 401 or 403 would make the Pod
exit, even if the Pod is valid.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

from k8s_adapters.names import POOL_LABEL
from k8s_adapters.runners.identity import LARGEST_TOKEN, KeyUnknown, PodIdentity, TokenRejected, Unjudged
from models.state import pod_births
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.logging import get_logger
from ostler.reasons import words_of
from ostler.secrets import Secret
from web.process.threads import Threads
from web.runners.cluster import Cluster
from web.runners.replies import Refusal

STRANGER_CACHED = 5.0
"""Seconds for which the refusal of a Pod without a row is cached.

During this time Ostler does not read the Pod again.
"""
_MOST_STRANGERS = 10_000
_SCHEME = "bearer "

log = get_logger(__name__)
T = TypeVar("T")


class Admission:
    """Verifies the tokens of polls. Inserts the rows of Pods that have none."""

    def __init__(
        self,
        *,
        namespaces: Collection[str],
        threads: Threads,
        cluster: Cluster,
        counts: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespaces = namespaces
        self._threads = threads
        self._cluster = cluster
        self._counts = counts
        self._clock = clock
        self._strangers: dict[str, tuple[float, int, str]] = {}
        self._fetching: asyncio.Task[Unjudged | None] | None = None

    def token(self, authorization: str) -> Secret:
        """Return the token of the `Authorization` header.

        Raises Refusal (401) if there is no bearer token, or if the token is too long.
        """
        if len(authorization) > LARGEST_TOKEN + len(_SCHEME):
            raise Refusal(401, f"the token has more than {LARGEST_TOKEN} characters")
        if not authorization.lower().startswith(_SCHEME) or not authorization[len(_SCHEME) :].strip():
            raise Refusal(401, "the Authorization header has no bearer token")
        return Secret(authorization[len(_SCHEME) :].strip())

    async def identify(self, token: Secret) -> PodIdentity:
        """Return the identity of the Pod that the token belongs to.

        Raises Refusal with one of these statuses:

        - 401: the token is not valid.
        - 403: the Pod must not poll.
        - 503: the token cannot be verified now.
        """
        try:
            identity = await self._verify(token)
        except TokenRejected as error:
            self._counts["token.rejected"] += 1
            raise Refusal(401, str(error)) from None
        except Unjudged as error:
            self._counts["token.unjudged"] += 1
            raise Refusal(503, str(error)) from None
        if identity.namespace not in self._namespaces:
            expected = " or ".join(map(repr, self._namespaces))
            raise Refusal(
                403, f"Pod {identity.pod_name!r} is in namespace {identity.namespace!r}; runner Pods are in {expected}"
            )
        if identity.service_account != identity.pod_name:
            raise Refusal(
                403,
                f"Pod {identity.pod_name!r} runs as ServiceAccount {identity.service_account!r}; the ServiceAccount of "
                "a runner Pod has the name of the Pod",
            )
        return identity

    async def _verify(self, token: Secret) -> PodIdentity:
        # The token is verified in the event loop, because this costs no more than the switch to a thread. Unknown
        # callers must not use up the threads that token reviews need.
        try:
            identity = self._cluster.verify(token.reveal())
        except KeyUnknown:
            is_late = self._fetching is not None
            unjudged = await asyncio.shield(self._fetch_keys())
            if unjudged is not None:
                raise unjudged from None
            try:
                return self._cluster.verify(token.reveal())
            except KeyUnknown:
                if is_late:
                    raise Unjudged(
                        "the token cannot be verified yet: its key is not among the signing keys of the cluster that "
                        "web requested before the token arrived; web requests the keys again at the next poll"
                    ) from None
                raise TokenRejected(
                    "the token is signed with a key that is not among the signing keys of the cluster"
                ) from None
        if self._cluster.keys_are_old:
            self._fetch_keys()
        return identity

    def _fetch_keys(self) -> asyncio.Task[Unjudged | None]:
        """Return the running task that fetches the keys of the cluster. If no such task is running, start one."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="fetch-keys")
        return self._fetching

    async def _fetch(self) -> Unjudged | None:
        try:
            await self._threads.cluster(self._cluster.fetch_keys)
        except Unjudged as error:
            self._counts["keys.missed"] += 1
            log.warning("token_keys.not_fetched", why=str(error))
            return error
        else:
            self._counts["keys.fetched"] += 1
            return None
        finally:
            self._fetching = None

    async def adopt(self, identity: PodIdentity) -> None:
        """Insert the row of a Pod that has none, if the Pod belongs to a pool of Ostler.

        Raises Refusal (403) if the Pod is over or gone, was not created by Ostler, or belongs to no pool of Ostler.
        Raises Refusal (503) if the API server does not answer, if Postgres has no row of the pool yet, or if the row of
        another Pod has the same name. Each refusal is cached for `STRANGER_CACHED` seconds.
        """
        now = self._clock()
        cached = self._strangers.get(identity.pod_uid)
        if cached is not None and now < cached[0]:
            raise Refusal(cached[1], cached[2])
        try:
            await self._adopt(identity)
        except Refusal as refusal:
            if len(self._strangers) >= _MOST_STRANGERS:
                self._strangers.clear()
            self._strangers[identity.pod_uid] = (now + STRANGER_CACHED, refusal.status, refusal.why)
            raise
        self._strangers.pop(identity.pod_uid, None)

    async def _adopt(self, identity: PodIdentity) -> None:
        self._counts["pods.looked_up"] += 1
        namespace, name = identity.namespace, identity.pod_name
        pod = await self._ask(lambda: self._cluster.pod(namespace=namespace, name=name))
        if pod is None or pod.uid != identity.pod_uid or pod.is_over:
            raise Refusal(403, f"no running Pod {name!r} has the UID that the token names")
        pool = pod.pool
        if pool is None:
            raise Refusal(403, f"Pod {name!r} has no label {POOL_LABEL}, so it belongs to no pool")
        if not pod.is_ours:
            raise Refusal(403, f"Pod {name!r} was not created by Ostler")
        adopted = await self._threads.transaction(lambda db: pod_births.adopt_pod(db, pod, now=utcnow()))
        if adopted is None:
            known = await self._ask(lambda: self._cluster.has_pool(namespace=namespace, name=pool))
            if known:
                raise Refusal(503, f"RunnerPool {pool!r} exists, but Postgres has no row of the pool yet")
            raise Refusal(403, f"Pod {name!r} belongs to pool {pool!r}, but no such RunnerPool exists")
        if not adopted:
            raise Refusal(503, f"Postgres still has the row of an earlier Pod with the name {name!r}")
        self._counts["pods.adopted"] += 1

    async def _ask(self, call: Callable[[], T]) -> T:
        try:
            return await self._threads.cluster(call)
        except UpstreamError as error:
            raise Refusal(503, f"a request to the API server failed: {words_of(error)}") from None
