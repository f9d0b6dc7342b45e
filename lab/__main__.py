"""`python -m lab` is the `ostler-lab` command."""

from __future__ import annotations

from lab.command import main

if __name__ == "__main__":
    main()
