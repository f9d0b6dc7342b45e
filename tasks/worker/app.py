"""The Celery application. A process checks the application's settings when it starts.

The settings come from measurements with Celery 5.7 on Redis. With late acknowledgement and reject-on-lost, the task of
a killed worker is delivered again. The prefetch multiplier is 1, so a worker reserves no more messages than it has
threads. A socket timeout and a health check are both needed. With only one of the two, a worker receives no more
messages after its connection was lost silently. Messages are JSON only, and there is no result backend.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import setup_logging
from kombu.entity import Queue

from beat_schedule import schedule
from ostler import transport
from ostler.errors import ConfigurationError
from ostler.settings import BeatSettings, Settings
from ostler.task_names import QUEUES, ROUTES
from tasks.worker.events import BatchedEvents

MODULES = (
    "tasks.claims.dispatch",
    "tasks.claims.stamp",
    "tasks.claims.mint",
    "tasks.claims.release",
    "tasks.claims.retire",
    "tasks.pools.mirror_pools",
    "tasks.pools.reconcile",
    "tasks.pools.autoscale",
    "tasks.restore.epochs",
    "tasks.pools.watch_reports",
    "tasks.claims.pod_events",
    "tasks.routing.run_origins",
    "tasks.intake.owner",
    "tasks.sweeps.resume",
    "tasks.sweeps.rematch",
    "tasks.sweeps.stale_claims",
    "tasks.sweeps.missing_pods",
    "tasks.sweeps.missing_stamps",
    "tasks.sweeps.unused_runners",
    "tasks.sweeps.redelivery",
    "tasks.sweeps.unresolved_jobs",
    "tasks.sweeps.orphaned_stamps",
    "tasks.sweeps.unresponsive_pods",
    "tasks.sweeps.finished_jobs",
    "tasks.sweeps.gone_nodes",
    "tasks.sweeps.orphaned_runners",
    "tasks.sweeps.persistent_runners",
    "tasks.sweeps.orphaned_service_accounts",
    "tasks.sweeps.unidentified_executions",
    "tasks.sweeps.gates",
    "tasks.sweeps.prune",
    "tasks.sweeps.catch_up",
    "tasks.intake.check_runs",
)

VISIBILITY_TIMEOUT = 300
"""Seconds after which a message that its worker has not acknowledged is delivered again.

The worker might be dead, or its task might still run. Two workers can therefore execute the same message.
"""

BEAT_INTERVAL = 2
"""Longest time in seconds between two extensions of the lock by the active beat.

A standby tries to take the lock at this interval.
"""

BEAT_LOCK_TIMEOUT = 12
"""Seconds after which the lock of a killed beat expires.

A standby takes the lock at most one interval later, so it becomes active within 14 seconds. Redbeat needs at least five
intervals. The active beat then extends its lock before the lock expires, even if a tick is slow.
"""

transport.install()
app = Celery("ostler", include=list(MODULES), set_as_current=True)
app.steps["consumer"].add(BatchedEvents)

SETTINGS: dict[str, Any] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_acks_on_failure": True,
    "worker_prefetch_multiplier": 1,
    "worker_eta_task_limit": 1000,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_hijack_root_logger": False,
    "worker_consumer": "tasks.worker.consumer:Consumer",
    "worker_send_task_events": True,
    # Any client that can write to Redis could otherwise stop the consumers of a worker, or the worker.
    "worker_enable_remote_control": False,
    "task_send_sent_event": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # If Redis is full, read-only or without replicas, it answers with channel errors. The worker must wait, not exit.
    "broker_channel_error_retry": True,
    "broker_transport_options": {
        "visibility_timeout": VISIBILITY_TIMEOUT,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "health_check_interval": 10,
        "socket_keepalive": True,
        "client_name": "ostler",
    },
    "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0, "interval_max": 0.1},
    "result_backend": None,
    "task_ignore_result": True,
    "task_track_started": False,
    "task_store_errors_even_if_ignored": False,
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_create_missing_queues": False,
    "task_queues": [Queue(name) for name in QUEUES],  # type: ignore[no-untyped-call]
    "task_default_queue": "dispatch",
    "task_routes": ROUTES,
    "beat_max_loop_interval": BEAT_INTERVAL,
    "redbeat_lock_timeout": BEAT_LOCK_TIMEOUT,
    "enable_utc": True,
    "timezone": "UTC",
}

_ASSERTED = (
    "task_acks_late",
    "task_reject_on_worker_lost",
    "worker_prefetch_multiplier",
    "worker_enable_remote_control",
    "broker_channel_error_retry",
    "task_create_missing_queues",
    "task_ignore_result",
    "accept_content",
)


def configure(settings: Settings | BeatSettings) -> Celery:
    """Apply the settings to the application, check that they are in force, and return the application.

    Raises `ConfigurationError` if another source, for example an environment variable of Celery, overrides one of the
    settings that `assert_in_force` checks.
    """
    app.conf.update(
        broker_url=settings.redis_url.reveal(),
        redbeat_redis_options={
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "health_check_interval": 10,
            "retry_period": 10,
        },
        beat_schedule=schedule(settings.timings),
        **SETTINGS,
    )
    assert_in_force(app)
    return app


def assert_in_force(celery: Celery) -> None:
    """Raise `ConfigurationError` if a setting that the laws depend on is not in force."""
    for name in _ASSERTED:
        if celery.conf[name] != SETTINGS[name]:
            raise ConfigurationError(
                f"celery setting {name}: found {celery.conf[name]!r}, must be {SETTINGS[name]!r}; remove the "
                "environment variable or the module that sets it"
            )
    options = celery.conf.broker_transport_options
    for name in ("socket_timeout", "health_check_interval", "visibility_timeout"):
        wanted = SETTINGS["broker_transport_options"][name]
        if options.get(name) != wanted:
            raise ConfigurationError(
                f"celery setting broker_transport_options.{name}: found {options.get(name)!r}, must be {wanted!r}; "
                "remove the environment variable or the module that sets it"
            )
    if celery.conf.result_backend not in {None, "disabled://"}:
        raise ConfigurationError(
            "celery setting result_backend: it must not be set, because Ostler stores all state in Postgres; remove "
            "the environment variable or the module that sets it"
        )


@setup_logging.connect  # type: ignore[untyped-decorator]
def _keep_own_logging(**_: Any) -> None:
    """Do nothing. While this receiver exists, Celery does not replace the logging of `ostler.logging`."""
