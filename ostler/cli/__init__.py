"""The `ostler` command: one program, one subcommand per process and per thing an operator does."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a bad setting is one line on stderr and exit status 2, a store that is away exit status 1.

    Ctrl-C says nothing and is exit status 130, also while the command is still being imported.
    """
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from ostler.cli.app import app  # noqa: PLC0415  it imports much
    from ostler.errors import ConfigurationError, StoreUnreachable  # noqa: PLC0415

    try:
        app()
    except ConfigurationError as error:
        sys.stderr.write(f"ostler: {error}\n")
        sys.exit(2)
    except StoreUnreachable as error:
        sys.stderr.write(f"ostler: {error}\n")
        sys.exit(1)
