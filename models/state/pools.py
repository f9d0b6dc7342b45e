"""Table of pools: a copy of the `RunnerPool` objects. Statements that change its rows are in `models.pools`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text


class Pool(Base):
    """One `RunnerPool`.

    The row is kept after the pool's object is gone, because claims refer to the row. `deleted_at` is then set.
    """

    __tablename__ = "pools"
    __table_args__ = (
        Index("ix_pools_name_id", "name", "id"),
        Index("uq_pools_live_name", "namespace", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )

    id: Mapped[Serial]
    uid: Mapped[str] = mapped_column(unique=True)
    namespace: Mapped[str]
    spec: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB, comment="specification of the pool that can be used; NULL: written by an older release"
    )
    name: Mapped[str]
    image: Mapped[str]
    labels: Mapped[list[str]] = mapped_column(comment="labels as in the spec; the matching ignores case")
    runner_group_id: Mapped[int] = mapped_column(
        comment="id of the runner group; 0: `runner_group_name` selects the group"
    )
    runner_group_name: Mapped[str | None]
    allow_forks: Mapped[bool] = mapped_column(
        server_default="false", comment="whether the pool serves jobs from forks of public repositories"
    )
    pod_security: Mapped[str] = mapped_column(
        server_default="restricted", comment="Pod Security level that the spec requests"
    )
    workload: Mapped[str] = mapped_column(
        server_default="Pod", comment="kind of the object that owns a runner Pod: Pod (none) or StatefulSet"
    )
    volume_reclaim: Mapped[str | None] = mapped_column(
        comment="spec.volumes.reclaim; NULL: the runners have no volumes"
    )
    volume_shape: Mapped[str | None] = mapped_column(
        comment="digest of the volume claims in spec.volumes; NULL: the runners have no volumes"
    )
    registers_in: Mapped[str | None] = mapped_column(
        comment="scope of the persistent runners; NULL: each runner executes one job"
    )
    max_runner_age: Mapped[float | None] = mapped_column(
        comment="greatest age of a persistent runner, in seconds; NULL: no limit"
    )
    vcpu: Mapped[int] = mapped_column(comment="millicores of one Pod")
    memory: Mapped[int] = mapped_column(comment="MiB of one Pod")
    replicas: Mapped[int]
    replicas_writer: Mapped[str | None] = mapped_column(
        comment="other field manager that sets spec.replicas of an autoscaled pool; NULL: none"
    )
    generation: Mapped[int] = mapped_column(
        server_default="0", comment="generation of the spec that was read last, usable or not"
    )
    paused: Mapped[bool] = mapped_column(server_default="false")
    pause_request: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB, comment="request of a person to pause or resume the pool that no worker has carried out; NULL: none"
    )
    autoscaled: Mapped[bool] = mapped_column(server_default="false")
    min_warm: Mapped[int] = mapped_column(server_default="1")
    max_replicas: Mapped[int] = mapped_column(server_default="10")
    scale_down_delay: Mapped[float] = mapped_column(
        server_default="600", comment="seconds after a scale-up during which the pool is not scaled down"
    )
    max_unavailable_percent: Mapped[int] = mapped_column(server_default="10")
    max_surge: Mapped[int | None] = mapped_column(comment="most Pods above `replicas` during a rollout; NULL: default")
    start_timeout: Mapped[float] = mapped_column(
        server_default="300", comment="seconds that a Pod may take to its first poll"
    )
    max_concurrent: Mapped[int] = mapped_column(
        server_default="100", comment="most Pods that may be starting at the same time"
    )
    drain_timeout: Mapped[float | None] = mapped_column(
        comment="seconds of a drain after which the status of the pool reports it as late; NULL: no limit"
    )
    max_job_seconds: Mapped[float | None] = mapped_column(comment="seconds after which a job is ended; NULL: no limit")
    start_target: Mapped[float | None] = mapped_column(
        comment="seconds within which jobs should start, for reports; NULL: no target"
    )
    allowed_accounts: Mapped[list[int]]
    allowed_repositories: Mapped[list[str]]
    routing_priority: Mapped[int]
    serves_unlabelled: Mapped[bool] = mapped_column(server_default="false")
    template_hash: Mapped[str]
    template_at: Mapped[datetime | None] = mapped_column(comment="time at which `recorded_template` was written")
    recorded_template: Mapped[str | None] = mapped_column(
        comment="template hash that is kept for two minutes; no effect if `template_hash` differs"
    )
    draining: Mapped[bool] = mapped_column(server_default="false")
    wants_pods: Mapped[bool] = mapped_column(
        server_default="false",
        comment="whether the matcher left jobs without Pods, so that the next poll wakes the pool",
    )
    created_at: Mapped[datetime]
    routed_at: Mapped[datetime] = mapped_column(
        server_default=text("now()"),
        comment="time of the last change of the routing, which decides the jobs that the pool serves",
    )
    rerouting_since: Mapped[datetime | None] = mapped_column(
        comment="time of a routing change; no job is matched until queued jobs are taken out; NULL: done"
    )
    rerouting_jobs: Mapped[list[int]] = mapped_column(
        server_default="{}",
        comment="jobs that were locked when the others were taken out; not matched until they are out too",
    )
    scaled_up_at: Mapped[datetime | None] = mapped_column(
        comment="time of the last scale-up by the autoscaler; `scale_down_delay` begins here"
    )
    scaled_down_at: Mapped[datetime | None]
    scaling: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB, comment="last decision of the autoscaler, with its numbers"
    )
    typical_pods: Mapped[int | None] = mapped_column(
        comment="usual load: 95th percentile of the peaks of the last 60 minutes, in Pods with a job"
    )
    typical_at: Mapped[datetime | None] = mapped_column(comment="time at which `typical_pods` was computed")
    draining_since: Mapped[datetime | None] = mapped_column(
        comment="time of the request to delete the object of the pool; NULL: none was seen"
    )
    deleted_at: Mapped[datetime | None]
    failed_starts: Mapped[int] = mapped_column(server_default="0", comment="counted failed starts in a row")
    failed_at: Mapped[datetime | None] = mapped_column(comment="time of the last counted failed start")
    create_after: Mapped[datetime | None] = mapped_column(comment="time before which no Pod is created; NULL: no limit")
    start_trouble: Mapped[str | None] = mapped_column(comment="reason why no Pod starts; NULL: none is known")
    start_detail: Mapped[str | None] = mapped_column(comment="explanation of `start_trouble`")
    tick_at: Mapped[datetime | None] = mapped_column(comment="start of the period of the budget of retirements")
    tick_retired: Mapped[int] = mapped_column(
        server_default="0", comment="retirements in the period that began at `tick_at`"
    )
    failing_calls: Mapped[list[dict[str, Any]] | None] = mapped_column(
        JSONB, comment="failed writes to the API server in the last runs, with their number, times and messages"
    )
    problem: Mapped[str | None] = mapped_column(comment="reason why the spec cannot be used; NULL: it can be used")
    status: Mapped[dict[str, Any] | None] = mapped_column(JSONB, comment="status that was written to the object last")
    status_at: Mapped[datetime | None] = mapped_column(comment="time at which `status` was written to the object")
    status_checked_at: Mapped[datetime | None] = mapped_column(
        comment="time at which a reconcile last found `status` to be current"
    )
    listed_at: Mapped[datetime | None] = mapped_column(
        comment="start of the last Pod list whose missing Pods were all handled"
    )
