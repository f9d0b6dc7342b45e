"""Shared lists of Pods: one list per namespace and run of `ostler.pools`, stored in Postgres for the reconciles.

A list shows the Pods at the moment at which the list began. The rows are read after the list (law L8), so the rows show
what happened since that moment: a new claim, a created Pod, a deleted Pod.

The Pods of a pool are listed again if the stored list is no evidence:

- There is no stored list of the pool, or the list is too old, or its time is in the future.
- The list cannot be read, for example because another version of Ostler stored it.
- The list shows a Pod without a row, or a Pod whose row says that it was gone before the list began.
- The pool is being deleted.

A reconcile that a wake requested never uses the stored list.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter

import orjson
import structlog
from sqlalchemy.exc import SQLAlchemyError

from k8s_adapters.runners.pods import pod_pages
from models.pools import pod_lists
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.halt import halt
from ostler.reasons import meaning_of, reason_of
from rules.claims.pod_view import PodView
from tasks.worker.base import SWEEP_LIST, begin_page, calls, stopping
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

LIST_SECONDS = 10.0
"""Longest time in seconds to make a shared list. The value equals the default period of the task `ostler.pools`.

A list that takes longer is abandoned, and each reconcile lists the Pods of its own pool. Otherwise a pool with many
Pods would delay all other pools.
"""

_FIELDS = tuple(field.name for field in fields(PodView))
_values = attrgetter(*_FIELDS)
TIMES = ("created_at", "deletion_at", "started_at", "ends_by", "register_ended_at")
_TIMES = tuple(_FIELDS.index(name) for name in TIMES)


@dataclass(frozen=True, slots=True)
class Listed:
    """The listed Pods of one pool, and when that list began.

    `shared`: True if the list was made for all pools of a namespace. `dealt`: True if a reconcile has already handled
    this list or a newer list. `ended`: True if the list has only Pods that have ended. A Pod that is missing from such
    a list might run.
    """

    pods: Sequence[PodView]
    began: datetime
    shared: bool = False
    dealt: bool = False
    ended: bool = False

    @property
    def own_pods(self) -> list[PodView]:
        """The Pods that Ostler created."""
        return [pod for pod in self.pods if pod.is_ours]


def share_list(rt: Runtime, *, namespace: str, pools: Collection[str]) -> Collection[str]:
    """List the namespace's Pods, and store the share of each of the given pools.

    Return the names of the pools whose share was stored. The list is stored completely or not at all (law L8). The
    reconcile of a pool without a share lists the pool's Pods itself.
    """
    if not pools:
        return ()
    begin_page()
    began = utcnow()
    try:
        shares = _list_shares(rt, namespace=namespace, pools=pools)
        if shares is None:
            log.warning(
                "pod_list.not_stored",
                namespace=namespace,
                why=f"the list took more than {LIST_SECONDS:.0f} s, or this worker is stopping",
            )
            return ()
        whole_at = utcnow()
        halt("pod_lists.before_commit")
        rt.transaction(pod_lists.store, namespace=namespace, shares=shares, taken_at=began, whole_at=whole_at)
        halt("pod_lists.after_commit")
    except UpstreamError as error:
        log.warning("pod_list.not_stored", namespace=namespace, why=meaning_of(error))
        return ()
    except SQLAlchemyError as error:
        log.warning("pod_list.not_stored", namespace=namespace, why=reason_of(error))
        return ()
    except Exception:  # each pool then lists its own Pods, so a Pod that cannot be read stops only its pool (L14)
        log.exception("pod_list.not_stored", namespace=namespace)
        return ()
    return shares.keys()


def _list_shares(rt: Runtime, *, namespace: str, pools: Collection[str]) -> dict[str, bytes] | None:
    """Return the packed share of each pool, or None if the list took too long or the worker is stopping."""
    until = time.monotonic() + LIST_SECONDS
    found: dict[str, list[PodView]] = {name: [] for name in pools}
    for page in pod_pages(rt.kube, namespace=namespace, policy=calls(SWEEP_LIST)):
        for pod in page:
            if pod.pool in found:
                found[pod.pool].append(pod)
        if stopping() or time.monotonic() > until:
            return None
    shares = {}
    for name, pods in found.items():
        try:
            shares[name] = pack(pods)
        except TypeError as error:  # for example an owner label of thirty digits
            log.warning("pod_list.pool_share_not_stored", namespace=namespace, pool=name, why=str(error))
    return shares


def find(rt: Runtime, pool_id: int) -> Listed | None:
    """Return the Pods of this pool from the last shared list, or None if the pool's Pods must be listed now.

    Pods that disappeared after the list began are left out. If a reconcile of the pool has already handled this list,
    the result has no Pods, and `dealt` is True.
    """
    row = rt.transaction(pod_lists.find, pool_id=pool_id, now=NOW)
    if row is None:
        return None
    if row.dealt:
        return Listed((), row.taken_at, shared=True, dealt=True)
    try:
        pods = unpack(row.pods)
    except (ValueError, zlib.error) as error:
        log.warning("pod_list.pool_share_not_read", pool_id=pool_id, error=str(error))
        return None
    uids = [pod.uid for pod in pods if pod.is_ours]
    gone = rt.transaction(pod_lists.gone_since, uids=uids, taken_at=row.taken_at)
    if gone is None:
        return None
    return Listed([pod for pod in pods if pod.uid not in gone], row.taken_at, shared=True)


def pack(pods: Sequence[PodView]) -> bytes:
    """Return Pods in the form that `unpack` reads. Raises `TypeError` for a number that JSON cannot hold."""
    content = {"fields": _FIELDS, "pods": [_values(pod) for pod in pods]}
    return zlib.compress(orjson.dumps(content), level=1)


def unpack(packed: bytes) -> list[PodView]:
    """Return the packed Pods.

    Raises `ValueError` if they are not JSON, or if a version of Ostler with other fields packed them. Raises
    `zlib.error` if they are not compressed data.
    """
    content = orjson.loads(zlib.decompress(packed))
    if tuple(content["fields"]) != _FIELDS:
        raise ValueError("another version of Ostler stored the list of Pods; the reconcile lists the Pods itself")
    for values in content["pods"]:
        for at in _TIMES:
            if values[at] is not None:
                values[at] = datetime.fromisoformat(values[at])
    return [PodView(**dict(zip(_FIELDS, values, strict=True))) for values in content["pods"]]
