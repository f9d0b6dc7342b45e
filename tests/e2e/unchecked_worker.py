"""`python -m tests.e2e.unchecked_worker worker`: a worker that never checks whether a Pod might hold a JIT.

The worker trusts the rows only. The bug replaces code of the product in this process before the worker starts.
"""

from __future__ import annotations

from typing import Any

from rules.claims.busy import PodEvidence
from tasks.claims import evidence
from tests.chaos.seeds import put


def main() -> None:
    """Install the bug and run `ostler`."""
    evidence_of = evidence.evidence_of

    def by_rows(recorded: Any, _pod: Any, *, gone: bool = False) -> PodEvidence:
        return evidence_of(recorded, None, gone=gone)

    put(evidence, evidence_of=by_rows)
    from cli import main as ostler  # noqa: PLC0415  after the bug

    ostler()


if __name__ == "__main__":
    main()
