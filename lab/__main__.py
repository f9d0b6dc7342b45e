"""`python -m lab` runs the command `ostler-lab`."""

from __future__ import annotations

from lab.command import main

if __name__ == "__main__":
    main()
