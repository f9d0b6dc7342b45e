"""The `ostler` command: one program, one subcommand per process and per thing an operator does."""

from __future__ import annotations

import sys

from ostler.cli.app import app
from ostler.errors import ConfigurationError, StoreUnreachable


def main() -> None:
    """Run the command; a bad setting is one line on stderr and exit status 2, a store that is away exit status 1."""
    try:
        app()
    except ConfigurationError as error:
        sys.stderr.write(f"ostler: {error}\n")
        sys.exit(2)
    except StoreUnreachable as error:
        sys.stderr.write(f"ostler: {error}\n")
        sys.exit(1)
