"""Faults of a proxy by route, and the selection of the fault for a request.

A plan is a seed and a list of faults. `FaultPlan.load` reads one from a JSON file such as
`{"seed": 7, "faults": [{"kind": "status", "status": 502, "path_regex": "/orgs/.*", "probability": 0.05}]}`.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self


class Kind(StrEnum):
    """Way in which a request fails."""

    STATUS = "status"
    """The upstream does not get the request. The client gets `status`, `headers` and `body`."""
    DELAY = "delay"
    """The request succeeds, `delay_seconds` late. Other kinds may have a delay too."""
    RESET_BEFORE = "reset_before"
    """The upstream does not get the request. The client's connection is reset."""
    RESET_AFTER = "reset_after"
    """The upstream answers the request. The client's connection is reset instead of the answer."""
    TRUNCATE = "truncate"
    """The upstream answers the request.

    The client gets half of the body, or of the first line if there is no body, then EOF.
    """


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. The regular expressions must match the whole method and the whole target (path and query)."""

    kind: Kind | str
    method_regex: str = ".*"
    path_regex: str = ".*"
    status: int = HTTPStatus.SERVICE_UNAVAILABLE
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    delay_seconds: float = 0
    times: int | None = None
    """Number of requests that the fault applies to; None for no limit."""
    probability: float = 1.0
    """Share of the matching requests that the fault applies to, by a random generator of its own."""
    from_seconds: float = 0
    """Seconds after its activation at which the fault begins."""
    until_seconds: float | None = None
    """Seconds after its activation at which the fault ends; None for never."""

    def __post_init__(self) -> None:
        """Validate the fields. Raises ValueError."""
        Kind(self.kind)
        try:
            re.compile(self.method_regex)
            re.compile(self.path_regex)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: found {self.probability}; it is a share, from 0 to 1")
        if self.delay_seconds < 0 or (self.kind == Kind.DELAY and not self.delay_seconds):
            raise ValueError(f"delay_seconds: found {self.delay_seconds}; a delay is longer than 0")
        if self.until_seconds is not None and self.until_seconds <= self.from_seconds:
            raise ValueError(f"until_seconds: found {self.until_seconds}; it is later than from_seconds")

    @classmethod
    def parse(cls, raw: Any) -> Fault:
        """Parse a fault from a JSON object. Raises ValueError, which names the problem."""
        known = {each.name: _TYPES[str(each.type)] for each in fields(cls)}
        _refuse_unknown(raw, known, what="fault")
        for name, value in raw.items():
            types, words = known[name]
            texts = value.values() if isinstance(value, dict) else ()
            fits = isinstance(value, types) and not isinstance(value, bool)
            if not fits or not all(isinstance(each, str) for each in texts):
                raise ValueError(f"{name}: found {value!r}; it is {words}")
        if "kind" not in raw:
            raise ValueError(f"kind: it is missing; there are {', '.join(Kind)}")
        return cls(**raw)

    @property
    def route(self) -> str:
        """Return the requests that the fault applies to, as one word for methods and one for targets."""
        return f"{self.method_regex} {self.path_regex}"

    def matches(self, *, method: str, target: str, seconds: float) -> bool:
        """Return whether the fault may apply to a request, `seconds` after its activation."""
        if seconds < self.from_seconds or (self.until_seconds is not None and seconds >= self.until_seconds):
            return False
        return bool(re.fullmatch(self.method_regex, method) and re.fullmatch(self.path_regex, target))


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "Kind | str": ((str,), f"one of {', '.join(Kind)}"),
    "str": ((str,), "a text"),
    "int": ((int,), "a whole number"),
    "int | None": ((int, type(None)), "a whole number or null"),
    "float": ((int, float), "a number"),
    "float | None": ((int, float, type(None)), "a number or null"),
    "Mapping[str, str]": ((dict,), "an object of texts"),
}


@dataclass(slots=True)
class _InForce:
    fault: Fault
    since: float
    left: int | None
    dice: random.Random


class FaultPlan:
    """Active faults in the order of their activation, and how often each was applied. Thread-safe.

    Each fault has a random generator of its own. The traffic of one route therefore does not change the faults of
    another.
    """

    def __init__(
        self, faults: Iterable[Fault] = (), *, seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seed = seed
        self._clock = clock
        self._lock = threading.Lock()
        self._added = 0
        self._faults: list[_InForce] = []
        self._counts: Counter[str] = Counter()
        self._routes: dict[str, Counter[str]] = {}
        for fault in faults:
            self.add(fault)

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Parse a plan from a JSON object. Raises ValueError, which names the fault and its problem."""
        _refuse_unknown(raw, {"seed", "faults"}, what="plan")
        seed, listed = raw.get("seed", 0), raw.get("faults", [])
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed: found {seed!r}; it is a whole number")  # noqa: TRY004 - as below
        if not isinstance(listed, list):
            raise ValueError("faults: it is a list")  # noqa: TRY004 - one error for whatever is not a plan
        found = []
        for number, each in enumerate(listed):
            try:
                found.append(Fault.parse(each))
            except ValueError as error:
                raise ValueError(f"faults[{number}]: {error}") from error
        return cls(found, seed=seed)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan from a JSON file. Raises ValueError, which names the file, the fault and its problem."""
        try:
            return cls.parse(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def dump(self) -> dict[str, Any]:
        """Return the plan in the form that `parse` reads."""
        with self._lock:
            return {"seed": self.seed, "faults": [asdict(each.fault) for each in self._faults]}

    def add(self, fault: Fault) -> None:
        """Activate a fault."""
        with self._lock:
            dice = random.Random(f"{self.seed}/{self._added}")
            self._faults.append(_InForce(fault, self._clock(), fault.times, dice))
            self._added += 1

    def clear(self) -> None:
        """Deactivate every fault. The counts stay."""
        with self._lock:
            self._faults.clear()

    @property
    def counts(self) -> dict[str, int]:
        """Return how often each kind was applied, and as `forwarded` the number of requests without a fault."""
        with self._lock:
            return {name: self._counts[name] for name in [*Kind, "forwarded"]}

    @property
    def routes(self) -> dict[str, dict[str, int]]:
        """Return how often each kind was applied on each route (`Fault.route`)."""
        with self._lock:
            return {route: dict(counts) for route, counts in self._routes.items()}

    def meet(self, *, method: str, target: str) -> Fault | None:
        """Return the first active fault that applies to this request and count it, or None."""
        with self._lock:
            now = self._clock()
            for each in self._faults:
                fault = each.fault
                if each.left == 0 or not fault.matches(method=method, target=target, seconds=now - each.since):
                    continue
                if fault.probability < 1 and each.dice.random() >= fault.probability:
                    continue
                if each.left is not None:
                    each.left -= 1
                kind = Kind(fault.kind)
                self._counts[kind] += 1
                self._routes.setdefault(fault.route, Counter())[kind] += 1
                return fault
            self._counts["forwarded"] += 1
            return None


def _refuse_unknown(raw: Any, known: Iterable[str], *, what: str) -> None:
    if not isinstance(raw, dict):
        raise ValueError(f"a {what} is a JSON object")  # noqa: TRY004 - one error for whatever is none
    names = sorted(known)
    if unknown := sorted(raw.keys() - set(names)):
        raise ValueError(f"{unknown[0]}: unknown; a {what} has {', '.join(names)}")
