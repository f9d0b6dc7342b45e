"""Faults of a proxy, and the choice of the fault that a request meets.

A plan is a seed and a list of faults. `FaultPlan.load` reads a plan from a JSON file such as `{"seed": 7, "faults":
[{"kind": "status", "status": 502, "path_regex": "/orgs/.*", "probability": 0.05}]}`.
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
    """Effect of a fault on a request."""

    STATUS = "status"
    """The client gets `status`, `headers` and `body`. The upstream does not receive the request."""
    DELAY = "delay"
    """The request is forwarded `delay_seconds` late. Faults of the other kinds can be delayed too."""
    RESET_BEFORE = "reset_before"
    """The client's connection is reset. The upstream does not receive the request."""
    RESET_AFTER = "reset_after"
    """The upstream handles and answers the request. The client's connection is reset instead of the answer."""
    TRUNCATE = "truncate"
    """The upstream handles the request.

    The client gets half of the answer's body, then the end of the connection. If the answer has no body, the client
    gets half of its status line.
    """
    CUT = "cut"
    """The connection of an exec is reset after `after_bytes`."""
    CLOSE = "close"
    """The WebSocket of an exec is closed after `after_bytes`, and before the status of the process at the latest."""
    FREEZE = "freeze"
    """The connection of an exec stays open, but nothing goes through it after `after_bytes`."""
    NO_VERSION = "no_version"
    """The answer to the upgrade of an exec names no version of the protocol, as some proxies answer."""


OF_STREAMS = frozenset({Kind.CUT, Kind.CLOSE, Kind.FREEZE, Kind.NO_VERSION})
"""Kinds for WebSockets. Another request that meets `NO_VERSION` is forwarded.

Another request that meets a fault of the other kinds is reset, truncated or not answered.
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. `method_regex` must match the whole method, and `path_regex` the whole target (path and query)."""

    kind: Kind | str
    method_regex: str = ".*"
    path_regex: str = ".*"
    status: int = HTTPStatus.SERVICE_UNAVAILABLE
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    delay_seconds: float = 0
    after_bytes: int = 0
    """Bytes of a WebSocket that still reach the client, for `CUT`, `CLOSE` and `FREEZE`."""
    times: int | None = None
    """Number of requests that meet the fault before it ends. None: unlimited."""
    probability: float = 1.0
    """Share of the matching requests that meet the fault, from 0 to 1. Each fault has its own random numbers."""
    from_seconds: float = 0
    """Seconds between `FaultPlan.add` and the moment at which the fault takes effect."""
    until_seconds: float | None = None
    """Seconds between `FaultPlan.add` and the moment at which the fault ends. None: never."""

    def __post_init__(self) -> None:
        """Raise ValueError if a field has an impossible value."""
        if self.kind not in list(Kind):
            raise ValueError(f"kind: found {self.kind!r}; must be one of {', '.join(Kind)}")
        try:
            re.compile(self.method_regex)
            re.compile(self.path_regex)
        except re.error as error:
            raise ValueError(f"method_regex or path_regex is not a regular expression: {error}") from error
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: found {self.probability}; must be from 0 to 1")
        if self.delay_seconds < 0 or (self.kind == Kind.DELAY and not self.delay_seconds):
            raise ValueError(f"delay_seconds: found {self.delay_seconds}; must be 0 or more, and above 0 for a delay")
        if self.after_bytes < 0:
            raise ValueError(f"after_bytes: found {self.after_bytes}; must be 0 or more")
        if self.until_seconds is not None and self.until_seconds <= self.from_seconds:
            raise ValueError(f"until_seconds: found {self.until_seconds}; must be later than from_seconds")

    @classmethod
    def parse(cls, raw: Any) -> Fault:
        """Return the fault that a JSON object describes. Raises ValueError, which names the wrong field."""
        known = {each.name: _TYPES[str(each.type)] for each in fields(cls)}
        _refuse_unknown(raw, known, what="fault")
        for name, value in raw.items():
            types, words = known[name]
            texts = value.values() if isinstance(value, dict) else ()
            fits = isinstance(value, types) and not isinstance(value, bool)
            if not fits or not all(isinstance(each, str) for each in texts):
                raise ValueError(f"{name}: found {value!r}; must be {words}")
        if "kind" not in raw:
            raise ValueError(f"kind: not given; must be one of {', '.join(Kind)}")
        return cls(**raw)

    @property
    def route(self) -> str:
        """The requests that the fault matches: the pattern of the methods, a space, and the pattern of the targets."""
        return f"{self.method_regex} {self.path_regex}"

    def matches(self, *, method: str, target: str, seconds: float) -> bool:
        """Return whether a request can meet the fault.

        `seconds` is the time between `FaultPlan.add` and the request.
        """
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
    """Faults in force, in the order in which they were added, and the number of times each was played. Thread-safe.

    Each fault has its own random numbers, so that traffic on one route does not change the faults of another route.
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
        """Return the plan that a JSON object describes.

        Raises ValueError, which names the fault and the wrong field.
        """
        _refuse_unknown(raw, {"seed", "faults"}, what="plan")
        seed, listed = raw.get("seed", 0), raw.get("faults", [])
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed: found {seed!r}; must be a whole number")  # noqa: TRY004 - see below
        if not isinstance(listed, list):
            raise ValueError("faults: must be a list")  # noqa: TRY004 - one error type for every invalid plan
        found = []
        for number, each in enumerate(listed):
            try:
                found.append(Fault.parse(each))
            except ValueError as error:
                raise ValueError(f"faults[{number}]: {error}") from error
        return cls(found, seed=seed)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan from a JSON file. Raises ValueError, which names the file, the fault and the wrong field."""
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
        """Remove every fault. The counts are kept."""
        with self._lock:
            self._faults.clear()

    @property
    def counts(self) -> dict[str, int]:
        """Number of times that each kind of fault was played. `forwarded` counts the requests that met no fault."""
        with self._lock:
            return {name: self._counts[name] for name in [*Kind, "forwarded"]}

    @property
    def routes(self) -> dict[str, dict[str, int]]:
        """Number of times that each kind of fault was played, by route (`Fault.route`)."""
        with self._lock:
            return {route: dict(counts) for route, counts in self._routes.items()}

    def meet(self, *, method: str, target: str) -> Fault | None:
        """Return the first fault in force that this request meets, or None.

        The fault is counted as played. If there is none, the request is counted as forwarded.
        """
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
        raise ValueError(f"a {what} must be a JSON object")  # noqa: TRY004 - one error type for every invalid plan
    names = sorted(known)
    if unknown := sorted(raw.keys() - set(names)):
        raise ValueError(f"{unknown[0]}: unknown; a {what} has {', '.join(names)}")
