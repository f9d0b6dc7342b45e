"""`python -m tests.e2e.unchecked_worker worker`: a worker that never checks a Pod to see whether it may hold a JIT.

It believes the rows alone. The code of the product is as it is, and is changed in that process before it starts.
"""

from __future__ import annotations

from typing import Any

from rules.claims.busy import PodEvidence
from tasks.claims import evidence
from tests.chaos.seeds import put


def main() -> None:
    """Put the bug in and become `ostler`."""
    evidence_of = evidence.evidence_of

    def by_rows(recorded: Any, _pod: Any, *, gone: bool = False) -> PodEvidence:
        return evidence_of(recorded, None, gone=gone)

    put(evidence, evidence_of=by_rows)
    from cli import main as ostler  # noqa: PLC0415  after the bug

    ostler()


if __name__ == "__main__":
    main()
