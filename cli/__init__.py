"""The `ostler` command, with one subcommand for each process and for each task of an operator."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. An expected error is reported on stderr as one line, or as one line for each wrong setting.

    Exit status 1: the requested object does not exist, the request was refused, or a check failed. 2: wrong usage or a
    wrong setting. 3: a server did not answer, and a later attempt might succeed. 4: `ostler pool convert` printed the
    pools, and a person has to decide about parts of them. 130: the operator pressed Ctrl-C. This status comes without a
    message, even while Python still imports the command.
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
