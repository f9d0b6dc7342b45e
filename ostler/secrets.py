"""Values that must not be seen: `Secret` prints as `***` everywhere (law L13)."""

from __future__ import annotations

LEAST = 16
"""Characters of a secret that a person chooses, at least: shorter ones can be guessed or tried out."""


class Secret:
    """A string that shows itself only to `reveal()`.

    It has no ordering, no length and no iteration, so that it cannot leak by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; call it at the last moment, where it leaves the process."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Secret must not be serialised")
