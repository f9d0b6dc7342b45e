"""Entry point of `python -m ostler`, which runs the `ostler` command."""

from __future__ import annotations

from cli import main

if __name__ == "__main__":
    main()
