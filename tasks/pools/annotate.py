"""Annotations with the job of each Pod, for people and for tools that compute costs.

They are off by default (`OSTLER_POD_JOB_ANNOTATIONS`), and no rule reads them. The reconciler writes them after GitHub
has named the job of the runner, so that they are right when GitHub gives a job to another runner. The claim path makes
no further call. A persistent runner keeps the annotations of its last job until its next job.
"""

from __future__ import annotations

import random
import time

import structlog

from k8s_adapters.runners.stamps import annotate_job
from models.state import executions
from models.state.executions import Running
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from ostler.server_words import without_controls
from tasks.pools.create_pods import RESERVE
from tasks.pools.plan import Planned
from tasks.worker.base import SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime

LONGEST = 200
"""Characters of a value. GitHub's users choose the names, and all annotations of an object may have 256 KiB."""
MOST = 50
"""Pods of one reconcile. The next one continues, because a Pod whose annotations are right is not written."""
SECONDS = 5.0

log = structlog.get_logger(__name__)


def annotate_pods(rt: Runtime, planned: Planned) -> None:
    """Write the annotations of the Pods whose job they do not name yet."""
    if not rt.settings.pod_job_annotations:
        return
    observed = planned.observed
    running = rt.transaction(executions.running_on_pods, observed.pool.id)
    until = time.monotonic() + SECONDS
    others = [
        (pod, pod.stamp)
        for uid, pod in observed.by_uid.items()
        if uid in running and pod.job != str(running[uid].job_id) and not (pod.terminating or pod.is_over)
    ]
    random.shuffle(others)  # so that Pods that cannot be annotated do not always come first (L14)
    for pod, stamp in others[:MOST]:
        if stamp is None or remaining() < RESERVE or time.monotonic() > until:
            continue
        try:
            annotate_job(
                rt.kube,
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                stamp=stamp,
                values=values_of(running[pod.uid]),
                policy=calls(SWEEP_ROW),
            )
        except UpstreamError as error:  # an error of one Pod must not stop the other Pods (L14)
            log.warning("pod.not_annotated", pod=pod.name, error=meaning_of(error))


def values_of(job: Running) -> tuple[str, ...]:
    """Return the values of `JOB_ANNOTATIONS`, cut and without characters that change the layout of text."""
    names = (job.repository, job.workflow, job.name)
    return (str(job.job_id), *(without_controls(name)[:LONGEST] for name in names))
