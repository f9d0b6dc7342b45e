"""Structured logs: one JSON line per event, with ids bound as fields.

`configure` is called once by each process. Events are named `noun.verb` and carry `claim`, `job`,
`pod`, `pool` as fields; credentials are `Secret`s and print as `***`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


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
