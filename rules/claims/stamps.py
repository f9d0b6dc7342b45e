"""Value of the annotation `ostler.dev/claim`: `<claim id>.<n>`, a compare-and-swap register.

The annotation exists from the Pod's creation and is never removed. Three steps write the annotation: stamp, un-stamp
and release. Each write of a claim has a higher n than the write before. A write succeeds only if the annotation still
has the value that the writer expects. The annotation shows the claim that wrote last. Only the owner label shows
whether the Pod is stamped.

Any authorised client of the cluster might have written the value. `parse` returns None for a value that Ostler would
not write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

INITIAL = "0.0"
MAX_NUMBER = 2**63 - 1
_VALUE = re.compile(r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class StampValue:
    """The id of the claim that wrote last, and the number of that write. An id of 0 means that no claim wrote yet.

    Raises ValueError if one of the numbers is negative or does not fit into a bigint.
    """

    claim_id: int
    n: int

    def __post_init__(self) -> None:
        if not (0 <= self.claim_id <= MAX_NUMBER and 0 <= self.n <= MAX_NUMBER):
            raise ValueError(
                f"a stamp must consist of two numbers from 0 to 2**63 - 1, but got {self.claim_id} and {self.n}"
            )


def format_stamp(value: StampValue) -> str:
    """Return the text of the annotation."""
    return f"{value.claim_id}.{value.n}"


def parse(text: str | None) -> StampValue | None:
    """Return the value of the annotation. Return None if the annotation is missing or not in Ostler's format."""
    found = _VALUE.fullmatch(text or "")
    if found is None:
        return None
    claim_id, n = int(found[1]), int(found[2])
    if max(claim_id, n) > MAX_NUMBER:
        return None
    return StampValue(claim_id=claim_id, n=n)


def owned_by(text: str | None, claim_id: int) -> bool:
    """Return whether this claim wrote the annotation last. The initial value belongs to no claim."""
    value = parse(text)
    return value is not None and value.claim_id == claim_id != 0
