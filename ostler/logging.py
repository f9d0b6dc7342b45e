"""Structured logs: one JSON line per event, with ids bound as fields.

`configure` is called once by each process. Events are named `noun.verb`; credentials are `Secret`s and print as `***`.

One vocabulary of ids in all processes (docs/operations/logs.md): `job`, `claim`, `pod` (a name), `pod_uid`, `pool` (a
name), `pool_id`, `account`, `installation`, `runner`, `delivery` (GitHub's GUID of a webhook), `task`, `sweep`. `about`
binds them for a block, `also_about` for the rest of the block around it; so a line need not repeat what it is about.
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
"""Names of fields that hold an id."""

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
"""Arguments of tasks that are logged, and as what; lists and reasons are not."""


def ids_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids among a task's arguments under the names of the logs."""
    return {_ARGUMENTS[name]: value for name, value in arguments.items() if name in _ARGUMENTS and value is not None}


@contextmanager
def about(**ids: Any) -> Iterator[None]:
    """Add ids to every line of this thread, or asyncio task, inside the block."""
    before = structlog.contextvars.get_contextvars()
    also_about(**ids)
    try:
        yield
    finally:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**before)


def also_about(**ids: Any) -> None:
    """Add ids to the lines that follow inside the block of `about`; None is left out."""
    structlog.contextvars.bind_contextvars(**{name: value for name, value in ids.items() if value is not None})


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of Celery says more than that a task was received or succeeded."""
    return record.levelno != logging.INFO or " succeeded in " not in str(record.msg)


def configure(*, process: str, level: str = "INFO", style: Literal["json", "console"] = "json") -> None:
    """Send the logs of this process, and those of its libraries, to stderr."""
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
    # Two lines per task, of which nothing follows: a worker's metrics count tasks, and DEBUG shows them.
    logging.getLogger("celery.worker.strategy").setLevel(logging.NOTSET if level == "DEBUG" else logging.WARNING)
    trace = logging.getLogger("celery.app.trace")
    trace.removeFilter(_is_news)
    if level != "DEBUG":
        trace.addFilter(_is_news)
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)  # a line per plugin at each start


def _name_process(process: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    return add


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module; `name` is its dotted name."""
    logger: FilteringBoundLogger = structlog.get_logger(name)
    return logger
