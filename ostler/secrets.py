"""`Secret`: a string that prints as `***` everywhere (law L13)."""

from __future__ import annotations

LEAST = 16
"""Minimum number of characters of a secret that a person chooses. An attacker could guess a shorter secret."""


class Secret:
    """A string whose value only `reveal()` returns.

    The class has no ordering, length or iteration, so that code cannot leak the value by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Call it only where the value leaves the process."""
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
