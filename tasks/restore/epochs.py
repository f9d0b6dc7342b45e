"""`ostler.epoch`: compares the epoch of Postgres with the epoch of the cluster, and raises both.

The epoch of Postgres is raised first. A higher epoch in the cluster therefore proves that Postgres was restored to an
earlier state. The rows are then frozen until `ostler restore`. If Postgres or the cluster cannot be read, no epoch is
raised, and the trust in the rows expires (law L8). This task is not a sweep: a pause of the sweeps must not stop the
comparison, because releases and retirements wait until the rows are trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Connection

from k8s_adapters.cluster.epochs import EpochSeen, read_epoch, write_epoch
from k8s_adapters.runners.pods import list_pods
from models.db import epochs
from models.sweeps import redelivery
from ostler import clock
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from ostler.task_names import EPOCH
from rules.claims.stamps import parse
from rules.restore.epochs import Epoch, EpochVerdict, Standing, judge_epoch
from tasks.worker.base import SWEEP, calls, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@task(EPOCH, policy=SWEEP)
def epoch() -> None:
    """Compare the two epochs once and raise them."""
    verdict = compare(runtime())
    if verdict is not None and verdict.older:
        log.error("epoch.postgres_older_than_cluster", why=verdict.why, remedy=epochs.CURE)


def compare(rt: Runtime) -> EpochVerdict | None:
    """Compare the epochs. The epoch of the cluster is read first.

    If Postgres was restored to an earlier state, its rows are frozen. Otherwise both epochs are raised and the rows are
    trusted. Returns None, without a renewal of the trust, if the comparison proves nothing. Raises what the Kubernetes
    client raises. After such an error, the trust in the rows is not renewed.
    """
    began = utcnow()
    with _noting(rt, "the cluster's epoch could not be read"):
        seen, ours, verdict = _read_epochs(rt)
    if ours.older_since is not None:
        return EpochVerdict(Standing.OLDER, ours.why or "")
    if seen is not None and seen.epoch is None:
        why = (
            "the ConfigMap of the cluster's epoch contains no epoch; delete the ConfigMap if no other program writes it"
        )
        rt.transaction(epochs.record_doubt, why=why)
        return None
    if verdict.older:
        kept = timedelta(seconds=rt.settings.redelivery_kept)
        rt.transaction(redelivery.mark_older, ours.epoch, why=verdict.why, kept=kept, now=NOW)
        return verdict
    risen = rt.transaction(epochs.advance, ours.epoch)
    if risen is None:
        return None  # another process has raised the epoch meanwhile
    with _noting(rt, "the cluster's epoch could not be written"):
        written = write_epoch(rt.kube, namespace=rt.settings.namespace, epoch=risen, seen=seen, policy=calls(SWEEP))
    return verdict if written and _trust(rt, risen, began=began) else None


def _trust(rt: Runtime, risen: Epoch, *, began: datetime) -> bool:
    """Store that the rows are trusted for `epoch_trusted_for` seconds, counted from the time `began`.

    Return True if the rows are trusted; False if the epoch changed meanwhile, or if the clock of Postgres jumped.
    """

    def body(db: Connection) -> bool:
        if clock.process.is_unsteady():  # a due measurement of the clock runs when a connection is taken
            epochs.record_doubt(db, why="the clock of Postgres jumped, and ages are not trusted for two minutes")
            return False
        return epochs.confirm(db, risen, trusted_for=trusted_for, now=began)

    trusted_for = timedelta(seconds=rt.timings.epoch_trusted_for)
    return rt.transaction(body)


@contextmanager
def _noting(rt: Runtime, what: str) -> Iterator[None]:
    """Record a failed call to the cluster as the reason why the epoch is not confirmed. `what` describes the call."""
    try:
        yield
    except UpstreamError as error:
        why = f"{what}: {meaning_of(error)}"
        rt.transaction(epochs.record_doubt, why=why)
        raise


def judge_only(rt: Runtime) -> EpochVerdict:
    """Compare the epochs without a write and return the verdict. Raises what the Kubernetes client raises."""
    return _read_epochs(rt)[2]


def _read_epochs(rt: Runtime) -> tuple[EpochSeen | None, epochs.EpochSeen, EpochVerdict]:
    """Return the epoch of the cluster, the epoch of Postgres and the verdict. The cluster is read first (law L8)."""
    seen = read(rt)
    stamps = stamped_by(rt) if seen is None else {}
    ours = rt.transaction(epochs.read, now=NOW)
    unknown = rt.transaction(epochs.unknown_claims, stamps) if stamps else 0
    return seen, ours, judge_epoch(ours.epoch, None if seen is None else seen.epoch, unknown_stamps=unknown)


def read(rt: Runtime) -> EpochSeen | None:
    """Return the cluster's epoch. Raises what the Kubernetes client raises."""
    return read_epoch(rt.kube, namespace=rt.settings.namespace, policy=calls(SWEEP))


def stamped_by(rt: Runtime) -> Mapping[str, int]:
    """Return the claim ids in the annotations of stamped Pods, by the UID of the Pod. Terminal Pods are left out.

    Raises what the Kubernetes client raises.
    """
    found = {}
    for namespace in rt.settings.namespaces:
        for pod in list_pods(rt.kube, namespace=namespace, policy=calls(SWEEP)):
            stamp = parse(pod.stamp)
            if pod.owner is not None and not pod.is_terminal and stamp is not None and stamp.claim_id:
                found[pod.uid] = stamp.claim_id
    return found
