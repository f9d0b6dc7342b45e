"""What can go wrong, by route: the faults of a proxy, and which of them a request meets."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any


class Kind(StrEnum):
    """How a request fails."""

    STATUS = "status"
    """The upstream never hears of it; the client gets `status`, `headers` and `body`."""
    RESET_BEFORE = "reset_before"
    """The upstream never hears of it; the client's connection is reset."""
    RESET_AFTER = "reset_after"
    """The upstream did it and answered; the client's connection is reset instead of the answer."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. The regular expressions must match the whole method and the whole target (path and query)."""

    kind: Kind | str
    method_regex: str = ".*"
    path_regex: str = ".*"
    status: int = HTTPStatus.SERVICE_UNAVAILABLE
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    times: int | None = None
    """How often it is played; None for ever."""
    probability: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a kind or an expression that does not exist (ValueError)."""
        Kind(self.kind)
        try:
            re.compile(self.method_regex)
            re.compile(self.path_regex)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error

    @classmethod
    def parse(cls, raw: Any) -> Fault:
        """Return the fault that a JSON object describes; ValueError when it is none."""
        if not isinstance(raw, dict):
            raise ValueError("a fault is a JSON object")  # noqa: TRY004 - one error for whatever is not a fault
        try:
            return cls(**raw)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def matches(self, *, method: str, target: str) -> bool:
        """Say whether this request is one of those that fail."""
        return bool(re.fullmatch(self.method_regex, method) and re.fullmatch(self.path_regex, target))


class FaultPlan:
    """The faults in force, in the order they were added, and how often each kind was played. Thread-safe."""

    def __init__(self, *, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._left: list[int | None] = []
        self._counts: Counter[str] = Counter()

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        with self._lock:
            self._faults.append(fault)
            self._left.append(fault.times)

    def clear(self) -> None:
        """Take every fault out of force; the counts stay."""
        with self._lock:
            self._faults.clear()
            self._left.clear()

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind was played, and `forwarded` for the requests that met no fault."""
        with self._lock:
            return {name: self._counts[name] for name in [*Kind, "forwarded"]}

    def meet(self, *, method: str, target: str) -> Fault | None:
        """Return the first fault in force that this request meets, counted as played, or None."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                left = self._left[index]
                if left == 0 or not fault.matches(method=method, target=target):
                    continue
                if fault.probability < 1 and self._random.random() >= fault.probability:
                    continue
                if left is not None:
                    self._left[index] = left - 1
                self._counts[Kind(fault.kind)] += 1
                return fault
            self._counts["forwarded"] += 1
            return None
