"""Outcomes of the writes (POST, PUT, PATCH, DELETE) that a run sends to the API server, for the status of its pool.

`KubeClient` notes each write of the thread that runs inside `recorded`. No write needs code of its own to be noted.
Some failures are not noted. A 404 or 409 is the normal answer if another client was faster. Only a 404 for a POST is
noted, because it shows that the namespace is missing. The refusal of a new object (`refusals.refusal_of`) is recorded
as a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from k8s_adapters.calls.refusals import refusal_of
from ostler.errors import Conflict, Gone, UpstreamError
from ostler.reasons import meaning_of

_READS = frozenset({"GET", "HEAD"})


class Writes:
    """The outcomes of one run, by call. A call is a method and a kind of object, for example `POST pods`."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str | None] = {}

    @property
    def outcomes(self) -> Mapping[str, str | None]:
        """Return for each call the text of its last failure, or None if no write of the call failed."""
        return self._outcomes

    @property
    def has_failures(self) -> bool:
        """Return whether a write failed."""
        return any(words is not None for words in self._outcomes.values())

    def note(self, call: str, words: str | None) -> None:
        """Note a write. `words`: the text of the failure, or None if the write succeeded."""
        if words is not None or call not in self._outcomes:
            self._outcomes[call] = words


_current: ContextVar[Writes | None] = ContextVar("writes", default=None)


@contextmanager
def recorded() -> Iterator[Writes]:
    """Note the writes of this thread in the body of this context manager."""
    token = _current.set(writes := Writes())
    try:
        yield writes
    finally:
        _current.reset(token)


def note_success(method: str, path: str) -> None:
    """Note that the API server carried out a write. A read is not noted."""
    if method not in _READS and (writes := _current.get()) is not None:
        writes.note(f"{method} {_kind_in(path)}", None)


def note_failure(method: str, path: str, error: UpstreamError) -> None:
    """Note that a write failed, unless the failure is one of those that are not noted."""
    writes = _current.get()
    if method in _READS or writes is None or isinstance(error, Conflict):
        return
    if refusal_of(error) is not None if method == "POST" else isinstance(error, Gone):
        return
    writes.note(f"{method} {_kind_in(path)}", error.words or meaning_of(error))


def _kind_in(path: str) -> str:
    """Return the resource in the path of an object or of a collection, with the subresource if there is one."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:  # noqa: PLR2004 - namespaces/name/resource
        rest = rest[2:]
    return "/".join([*rest[:1], *rest[2:3]])
