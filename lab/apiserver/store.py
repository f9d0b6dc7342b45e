"""Store of the objects in memory, with one revision for all writes and the events that watches follow.

Objects are never changed in place: a write stores a new one. They are stored without `kind` and `apiVersion`. The
answers add these fields where the real server does.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from lab.apiserver.kinds import Json, Kind

HISTORY = 20_000
"""Number of events that a watch can go back."""
SNAPSHOTS = 64
"""Number of paged lists that can be open at once."""
Key = tuple[str, str]


class Stored:
    """One version of an object, with its renderings."""

    def __init__(self, kind: Kind, content: Json) -> None:
        self.kind = kind
        self.content = content

    @property
    def metadata(self) -> Json:
        """Return the object's metadata."""
        metadata: Json = self.content["metadata"]
        return metadata

    @property
    def uid(self) -> str:
        """Return the object's UID."""
        return str(self.metadata["uid"])

    @property
    def terminating(self) -> bool:
        """Return whether the object is being deleted."""
        return "deletionTimestamp" in self.metadata

    @cached_property
    def bare(self) -> bytes:
        """Return the JSON without its type."""
        return _encode(self.content)

    @cached_property
    def whole(self) -> bytes:
        """Return the JSON with its type."""
        return _encode({"kind": self.kind.name, "apiVersion": self.kind.api_version})[:-1] + b"," + self.bare[1:]

    @cached_property
    def partial(self) -> bytes:
        """Return the JSON of the metadata alone."""
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + _encode(self.metadata) + b"}"

    def copy(self) -> Json:
        """Return a copy of the content that may be changed."""
        content: Json = json.loads(self.bare)
        return content


@dataclass(frozen=True, kw_only=True)
class Event:
    """A write. `before` is None for a new object. `gone`: the object was removed, and `after` is its last version."""

    revision: int
    before: Stored | None
    after: Stored
    gone: bool = False


class Store:
    """All objects. It belongs to one event loop."""

    def __init__(self) -> None:
        self.revision = 1
        self._objects: dict[Kind, dict[Key, Stored]] = {}
        self._history: deque[Event] = deque(maxlen=HISTORY)
        self._forgotten = 0
        self._dependents: dict[str, set[tuple[Kind, Key]]] = {}
        self._followers: set[asyncio.Queue[Event]] = set()
        self._snapshots: OrderedDict[tuple[Kind, str, int], list[Stored]] = OrderedDict()

    def get(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        """Return an object, or None."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: Kind, namespace: str = "") -> list[Stored]:
        """Return the objects of a kind, ordered by name, of one namespace or of all."""
        found = sorted(self._objects.get(kind, {}).items(), key=lambda pair: pair[0])
        return [stored for key, stored in found if not namespace or key[0] == namespace]

    def within(self, namespace: str) -> list[Stored]:
        """Return the objects of all kinds in a namespace."""
        return [stored for objects in self._objects.values() for key, stored in objects.items() if key[0] == namespace]

    def dependents(self, uid: str) -> list[Stored]:
        """Return the objects that name this UID as an owner."""
        places = sorted(self._dependents.get(uid, ()), key=lambda place: (place[0].plural, place[1]))
        return [self._objects[kind][key] for kind, key in places]

    def put(self, kind: Kind, content: Json) -> Stored:
        """Write an object under the next revision."""
        self.revision += 1
        content["metadata"]["resourceVersion"] = str(self.revision)
        stored = Stored(kind, content)
        objects = self._objects.setdefault(kind, {})
        key = key_of(content)
        before = objects.get(key)
        objects[key] = stored
        self._publish(Event(revision=self.revision, before=before, after=stored))
        return stored

    def remove(self, stored: Stored) -> Stored:
        """Remove an object. Return it as its last event shows it."""
        self.revision += 1
        content = stored.copy()
        content["metadata"]["resourceVersion"] = str(self.revision)
        last = Stored(stored.kind, content)
        before = self._objects[stored.kind].pop(key_of(content))
        self._publish(Event(revision=self.revision, before=before, after=last, gone=True))
        return last

    def keep_list(self, kind: Kind, namespace: str, listed: list[Stored]) -> None:
        """Store a list at the current revision for its later pages."""
        self._snapshots[kind, namespace, self.revision] = listed
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def kept_list(self, kind: Kind, namespace: str, revision: int) -> list[Stored] | None:
        """Return a stored list, or None if it was dropped."""
        return self._snapshots.get((kind, namespace, revision))

    def since(self, revision: int) -> list[Event] | None:
        """Return the events after a revision, or None if some of them were dropped."""
        if revision < self._forgotten:
            return None
        return [event for event in self._history if event.revision > revision]

    @contextmanager
    def following(self) -> Iterator[asyncio.Queue[Event]]:
        """Yield a queue of all events from now on."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._followers.add(queue)
        try:
            yield queue
        finally:
            self._followers.discard(queue)

    def _publish(self, event: Event) -> None:
        place = (event.after.kind, key_of(event.after.content))
        for owner in _owners(event.before):
            self._dependents.get(owner, set()).discard(place)
        for owner in _owners(None if event.gone else event.after):
            self._dependents.setdefault(owner, set()).add(place)
        if len(self._history) == HISTORY:
            self._forgotten = self._history[0].revision
        self._history.append(event)
        for queue in self._followers:
            queue.put_nowait(event)


def key_of(content: Json) -> Key:
    """Return the namespace (empty if none) and name of an object."""
    metadata: Json = content["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _owners(stored: Stored | None) -> list[str]:
    return [] if stored is None else [each["uid"] for each in stored.metadata.get("ownerReferences") or ()]


def _encode(content: Json) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
