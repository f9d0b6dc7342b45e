"""Log lines of requests from unauthenticated clients."""

from __future__ import annotations

import logging

from structlog.testing import capture_logs

from ostler.logging import get_logger
from web.edge.refused_log import LOG_EVERY, RefusedLog


def test_flood_of_refused_requests_logs_a_line_a_second_with_a_count() -> None:
    now = 100.0
    refused = RefusedLog(get_logger(__name__), "poll.refused", level=logging.INFO, clock=lambda: now)
    with capture_logs() as logs:
        for number in range(1000):
            refused.add(status=401, number=number)
        now += LOG_EVERY
        refused.add(status=403, number=1000)
        refused.add(status=403, number=1001)
    assert logs == [
        {"event": "poll.refused", "log_level": "info", "count_since_last_line": 1, "status": 401, "number": 0},
        {"event": "poll.refused", "log_level": "info", "count_since_last_line": 1000, "status": 403, "number": 1000},
    ]
