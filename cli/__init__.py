"""The `ostler` command: one program, one subcommand per process and per thing an operator does."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; what it cannot do is one line on stderr.

    Exit status 2: a wrong use or a wrong setting. 3: a server does not answer, and the next try may succeed. 1: what
    was asked for is not there, or was refused. Ctrl-C says nothing and is exit status 130, also while the command is
    still being imported.
    """
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from cli.app import app
    from cli.output import AWAY, MISTAKE, NOT_FOUND
    from ostler.errors import (
        ConfigurationError,
        RateLimited,
        Retryable,
        StoreUnreachable,
        UpstreamError,
    )

    try:
        app()
    except ConfigurationError as error:
        _end(error, MISTAKE)
    except (StoreUnreachable, Retryable, RateLimited) as error:
        _end(error, AWAY)
    except UpstreamError as error:
        _end(error, NOT_FOUND)


def _end(error: Exception, status: int) -> None:
    sys.stderr.writelines(f"ostler: {line}\n" for line in str(error).splitlines())
    sys.exit(status)
