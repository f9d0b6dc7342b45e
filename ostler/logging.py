"""Structured logs: one JSON line per event, with ids as fields.

Each process calls `configure` once. The name of an event is `subject.what_happened`. Credentials are `Secret` objects,
which print as `***`.

All processes use the same names for ids (docs/operations/logs.md): `job`, `claim`, `pod` (a name), `pod_uid`, `pool` (a
name), `pool_id`, `account`, `installation`, `runner`, `delivery` (GitHub's GUID of a webhook), `task` and `sweep`.
`about` adds ids to every line inside a block. `also_about` adds ids until the surrounding block of `about` ends.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


IDS = frozenset(
    {
        "job",
        "claim",
        "pod",
        "pod_uid",
        "pool",
        "pool_id",
        "account",
        "installation",
        "runner",
        "delivery",
        "task",
        "sweep",
    }
)
"""Names of the log fields that contain an id."""

_ARGUMENTS = {
    "job_id": "job",
    "claim_id": "claim",
    "pool_id": "pool_id",
    "account_id": "account",
    "installation_id": "installation",
    "pod_uid": "pod_uid",
    "namespace": "namespace",
    "pool": "pool",
    "chain_no": "chain_no",
}
"""Names of the task arguments that are logged, each with the name of the log field.

Arguments that contain a list or a reason are not logged.
"""


def ids_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids among the arguments of a task, under the names of their log fields."""
    return {_ARGUMENTS[name]: value for name, value in arguments.items() if name in _ARGUMENTS and value is not None}


@contextmanager
def about(**ids: Any) -> Iterator[None]:
    """Add ids to every log line that this thread or asyncio task writes inside the block."""
    before = structlog.contextvars.get_contextvars()
    also_about(**ids)
    try:
        yield
    finally:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**before)


def also_about(**ids: Any) -> None:
    """Add ids to all further log lines inside the surrounding block of `about`. Ids that are None are ignored."""
    structlog.contextvars.bind_contextvars(**{name: value for name, value in ids.items() if value is not None})


_REPEATED = (
    "Task %(name)s[%(id)s] retry: ",
    "Task %(name)s[%(id)s] %(description)s: ",
    "Task %(name)s[%(id)s] %(exc)s",
    "Connection to broker lost",
    "Trying to reconnect...",
)
"""Parts of Celery's log lines that Ostler logs itself.

The events of Ostler are `task.retried`, `task.failed`, `task.retry_not_sent` and `worker.redis_failed`.
"""


def _is_news(record: logging.LogRecord) -> bool:
    """Return False if a log line of Celery only reports the success of a task; True otherwise."""
    return record.levelno != logging.INFO or " succeeded in " not in str(record.msg)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    """Return False if a log line of Celery repeats an event of Ostler; True otherwise."""
    internal = isinstance(record.args, Mapping) and bool(record.args.get("internal"))
    return internal or not any(part in f"{record.msg} {record.args}" for part in _REPEATED)


def _is_step(record: logging.LogRecord) -> bool:
    """Return True if a log line of Alembic shows a migration that runs; False if it shows a check of the revision.

    Each readiness probe of web checks the revision of the database, and Alembic logs two lines for each check.
    """
    return record.levelno > logging.INFO or str(record.msg).startswith("Running")


def configure(*, process: str, level: str = "INFO", style: Literal["json", "console"] = "json") -> None:
    """Write the logs of this process and of its libraries to stderr.

    Every line contains `process`, the name of the process. Lines below `level` are not written.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _name_process(process),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.processors.format_exc_info],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # Celery logs two lines per task. These lines are written only at level DEBUG, because metrics count the tasks.
    logging.getLogger("celery.worker.strategy").setLevel(logging.NOTSET if level == "DEBUG" else logging.WARNING)
    trace = logging.getLogger("celery.app.trace")
    trace.removeFilter(_is_news)
    if level != "DEBUG":
        trace.addFilter(_is_news)
    for repeats in (trace, logging.getLogger("celery.worker.consumer.consumer")):
        repeats.removeFilter(_is_no_repetition)
        repeats.addFilter(_is_no_repetition)
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)  # it logs one line per plugin
    migration = logging.getLogger("alembic.runtime.migration")
    migration.removeFilter(_is_step)
    migration.addFilter(_is_step)


def _name_process(process: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    return add


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module. `name` is the dotted name of the module."""
    logger: FilteringBoundLogger = structlog.get_logger(name)
    return logger
