"""One list of the namespace's Pods per tick: taken once, kept in Postgres, used by the reconcile of each pool.

A list shows the Pods of the moment at which it began. The rows are read after it (L8), so they have what came later: a
claim, a Pod that was created, a Pod that went. What an older list cannot prove is left to one of now: a Pod that has no
row, one whose row says that it was gone, and whether a pool that drains may go. A wake never uses it.
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

from k8s_adapters.pods import PodSeen, pod_pages
from models.pools import pod_lists
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.halt import halt
from ostler.reasons import meaning_of, reason_of
from tasks.worker.base import SWEEP_LIST, begin_page, calls, stopping
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

LEAST = 2
"""Pools; the list of a single one is its own."""

WITHIN = 10.0
"""Seconds that the list of a tick may take: the period of the ticks. One that takes longer is given up, and each pool
lists for itself, so that no pool waits for the many Pods of another."""

_FIELDS = tuple(field.name for field in fields(PodSeen))
_values = attrgetter(*_FIELDS)
_TIMES = tuple(_FIELDS.index(name) for name in ("created_at", "deletion_at", "started_at"))


@dataclass(frozen=True, slots=True)
class Listed:
    """The Pods of one pool, by a list that began then.

    `shared`: it is that of a tick, and `dealt`: nothing is left to be done by it.
    """

    pods: Sequence[PodSeen]
    began: datetime
    shared: bool = False
    dealt: bool = False


def take(rt: Runtime, *, namespace: str, pools: Collection[str]) -> Collection[str]:
    """List the namespace's Pods for these pools, by name, and keep the share of each; return those that have one now.

    Whole or not at all (L8). A pool that has no share lists for itself.
    """
    if len(pools) < LEAST:
        return ()
    begin_page()
    began = utcnow()
    try:
        shares = _listed(rt, namespace=namespace, pools=pools)
        if shares is None:
            log.warning("pods.list_not_shared", why=f"it took more than {WITHIN:.0f} s, or its process is stopping")
            return ()
        whole_at = utcnow()
        halt("pod_lists.before_commit")
        rt.transaction(pod_lists.keep, namespace=namespace, shares=shares, taken_at=began, whole_at=whole_at)
        halt("pod_lists.after_commit")
    except UpstreamError as error:
        log.warning("pods.list_not_shared", why=meaning_of(error))
        return ()
    except SQLAlchemyError as error:
        log.warning("pods.list_not_shared", why=reason_of(error))
        return ()
    except Exception:  # a Pod that cannot be read stops its own pool alone, which meets it in its own list (L14)
        log.exception("pods.list_not_shared")
        return ()
    return shares.keys()


def _listed(rt: Runtime, *, namespace: str, pools: Collection[str]) -> dict[str, bytes] | None:
    """Return the packed share of each pool whose Pods can be packed; None when time is up before the list is whole."""
    until = time.monotonic() + WITHIN
    found: dict[str, list[PodSeen]] = {name: [] for name in pools}
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
        except TypeError as error:  # an owner label of thirty digits, say, which anybody may write
            log.warning("pods.share_not_packed", pool=name, why=str(error))
    return shares


def find(rt: Runtime, pool_id: int) -> Listed | None:
    """Return the share of a pool in the list of the last tick; None when the pool has to be listed now.

    Pods that went since then are not in it.
    """
    row = rt.transaction(pod_lists.find, pool_id=pool_id, now=NOW)
    if row is None:
        return None
    if row.dealt:
        return Listed((), row.taken_at, shared=True, dealt=True)
    try:
        pods = unpack(row.pods)
    except (ValueError, zlib.error) as error:
        log.warning("pods.share_unreadable", error=type(error).__name__)
        return None
    uids = [pod.uid for pod in pods if pod.is_ours]
    gone = rt.transaction(pod_lists.gone_since, uids=uids, taken_at=row.taken_at)
    if gone is None:
        return None
    return Listed([pod for pod in pods if pod.uid not in gone], row.taken_at, shared=True)


def pack(pods: Sequence[PodSeen]) -> bytes:
    """Return Pods as `unpack` takes them. Raises `TypeError` for a number that JSON does not take."""
    content = {"fields": _FIELDS, "pods": [_values(pod) for pod in pods]}
    return zlib.compress(orjson.dumps(content), level=1)


def unpack(packed: bytes) -> list[PodSeen]:
    """Return what was packed. Raises `ValueError` when another version of Ostler did, which knows other fields."""
    content = orjson.loads(zlib.decompress(packed))
    if tuple(content["fields"]) != _FIELDS:
        raise ValueError("the packed Pod list was written by another version of Ostler")
    for values in content["pods"]:
        for at in _TIMES:
            if values[at] is not None:
                values[at] = datetime.fromisoformat(values[at])
    return [PodSeen(**dict(zip(_FIELDS, values, strict=True))) for values in content["pods"]]
