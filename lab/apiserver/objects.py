"""Operations on objects: create, change, bind and delete, with the consequences of a deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab.apiserver import creation, managed_fields, pods, rules
from lab.apiserver.creation import timestamp
from lab.apiserver.kinds import BUILT_IN, DEFINITION, NAMESPACE, POD, SERVICE_ACCOUNT, Json, Kind, defined_by
from lab.apiserver.refusals import (
    already_exists,
    another_uid,
    bad_request,
    cause,
    invalid,
    modified,
    no_such_resource,
    not_found,
    precondition_failed,
)
from lab.apiserver.store import Store, Stored

_KEPT = (
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "resourceVersion",
)
_MAY_BE_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences")
_POLICIES = {"Background": None, "Orphan": "orphan", "Foreground": "foregroundDeletion"}
_DELETE_OPTIONS = Kind(group="meta.k8s.io", version="v1", plural="", name="DeleteOptions")


class Objects:
    """The served kinds and their objects."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}

    @property
    def kinds(self) -> list[Kind]:
        """Return all kinds that are served."""
        return [*self._kinds.values()]

    def serves(self, group: str, version: str) -> bool:
        """Return whether the server has any resource in this group and version."""
        return any(place[:2] == (group, version) for place in self._kinds)

    def kind(self, group: str, version: str, plural: str) -> Kind:
        """Return a kind. Raises `Refused` if it is not served."""
        found = self._kinds.get((group, version, plural))
        if found is None:
            raise no_such_resource()
        return found

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Return an object. Raises `Refused` if it does not exist."""
        stored = self.store.get(kind, namespace, name)
        if stored is None:
            raise not_found(kind, name)
        return stored

    def create(self, kind: Kind, namespace: str, body: Json, *, manager: str = managed_fields.CONTROLLER) -> Stored:
        """Create an object. `manager` is the field manager of the request. Raises `Refused`."""
        _check_type(kind, body)
        if (body.get("metadata") or {}).get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if namespace:
            self.get(NAMESPACE, "", namespace)
        content = creation.prepare(kind, body, namespace=namespace, store=self.store)
        name = content["metadata"]["name"]
        if (taken := self.store.get(kind, namespace, name)) is not None:
            raise already_exists(kind, name, terminating=taken.terminating)
        stored = self.store.put(kind, _with_managers(kind, None, content, manager=manager))
        self._register(stored)
        if kind == NAMESPACE:
            self.create(SERVICE_ACCOUNT, name, {"metadata": {"name": "default"}})
        if stored.metadata.get("ownerReferences") and not self._has_owner(stored):
            self._delete(stored)
        return stored

    def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        edit: Callable[[Json], Any],
        *,
        status: bool = False,
        manager: str = managed_fields.CONTROLLER,
    ) -> Stored:
        """Store the result of `edit` for an object. `manager` is the field manager of the request. Raises `Refused`.

        With `status`, only the object's status is written; otherwise everything else is. The result of `edit` may
        contain both.
        """
        old = self.get(kind, namespace, name)
        edited: Json = edit({"kind": kind.name, "apiVersion": kind.api_version, **old.copy()})
        edited = {key: value for key, value in edited.items() if key not in {"kind", "apiVersion"}}
        new = _changed(kind, old, edited, status=status)
        if new == old.content:
            return old
        new = _with_managers(kind, old, new, manager=manager, status=status)
        if _is_over(new["metadata"]):
            last = Stored(kind, new)
            self._remove(last)
            return last
        stored = self.store.put(kind, new)
        self._register(stored)
        return stored

    def replace(self, kind: Kind, namespace: str, name: str, body: Json, *, manager: str) -> Stored:
        """Store another content of an object, except for its status. Raises `Refused`."""
        _check_type(kind, body)
        there, uid = self.get(kind, namespace, name).uid, (body.get("metadata") or {}).get("uid")
        if uid not in {None, there}:
            raise another_uid(kind, namespace, name, wanted=uid, found=there)
        return self.change(kind, namespace, name, lambda _: body, manager=manager)

    def add_containers(self, namespace: str, name: str, edit: Callable[[Json], Any]) -> Stored:
        """Store the ephemeral containers in the result of `edit` for a Pod. Other changes are ignored.

        Raises `Refused`.
        """
        old = self.get(POD, namespace, name)
        edited: Json = edit({"kind": POD.name, "apiVersion": POD.api_version, **old.copy()})
        _changed_metadata(POD, old, edited.get("metadata") or {})
        containers = (edited.get("spec") or {}).get("ephemeralContainers") or []
        if causes := list(pods.ephemeral_problems(old.content, containers)):
            raise invalid(POD, name, causes)
        if containers == (old.content["spec"].get("ephemeralContainers") or []):
            return old
        new = old.copy()
        new["spec"]["ephemeralContainers"] = containers
        new["metadata"]["generation"] += 1
        return self.store.put(POD, new)

    def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Assign a Pod to a node. Raises `Refused`."""
        self.store.put(POD, pods.bound(self.get(POD, namespace, name), binding, now=timestamp()))

    def delete(self, kind: Kind, namespace: str, name: str, options: Json) -> Stored:
        """Begin or complete a deletion, and return the object afterwards. Raises `Refused`."""
        stored = self.get(kind, namespace, name)
        check_preconditions(stored, options.get("preconditions") or {})
        policy = options.get("propagationPolicy") or "Background"
        if policy not in _POLICIES:
            known = ", ".join(f'"{each}"' for each in ("Foreground", "Background", "Orphan", "nil"))
            why = f'Unsupported value: "{policy}": supported values: {known}'
            raise invalid(_DELETE_OPTIONS, "", [cause("propagationPolicy", "NotSupported", why)])
        if kind == NAMESPACE:
            return self._delete_namespace(stored)
        return self._delete(stored, grace=options.get("gracePeriodSeconds"), finalizer=_POLICIES[policy])

    def _delete(self, stored: Stored, *, grace: int | None = None, finalizer: str | None = None) -> Stored:
        stored = self._mark(stored, grace=grace, finalizer=finalizer)
        metadata = stored.metadata
        if not metadata.get("finalizers") and metadata.get("deletionGracePeriodSeconds", 0) == 0:
            return self._remove(stored)
        self._settle(stored)
        return stored

    def _mark(self, stored: Stored, *, grace: int | None, finalizer: str | None) -> Stored:
        """Store the deletion timestamp in an object, unless the object can be removed immediately."""
        content = stored.copy()
        metadata = content["metadata"]
        if finalizer is not None and finalizer not in metadata.get("finalizers", ()):
            metadata["finalizers"] = [*metadata.get("finalizers", ()), finalizer]
        if stored.terminating:
            if grace is None or grace >= metadata["deletionGracePeriodSeconds"]:
                return stored
            seconds = grace
        else:
            seconds = pods.grace(stored, grace) if stored.kind == POD else 0
            if stored.kind != POD and not metadata.get("finalizers"):
                return stored
            if "generation" in metadata:
                metadata["generation"] += 1
        metadata |= {"deletionTimestamp": timestamp(ahead=seconds), "deletionGracePeriodSeconds": seconds}
        return self.store.put(stored.kind, content)

    def _delete_namespace(self, stored: Stored) -> Stored:
        """Delete a namespace and its content at once, and return the namespace in its terminating state."""
        content = stored.copy()
        content["metadata"]["deletionTimestamp"] = timestamp()
        content["status"] = {"phase": "Terminating"}
        terminating = self.store.put(NAMESPACE, content)
        for each in self.store.within(stored.metadata["name"]):
            self.store.remove(each)
        self.store.remove(terminating)
        return terminating

    def _remove(self, stored: Stored) -> Stored:
        """Remove an object, and delete its dependents that have no other owner."""
        last = self.store.remove(stored)
        if stored.kind == DEFINITION:
            kind = defined_by(stored.content)
            self._kinds.pop((kind.group, kind.version, kind.plural), None)
            for each in self.store.all(kind):
                self.store.remove(each)
        for dependent in self.store.dependents(stored.uid):
            if not dependent.terminating and not self._has_owner(dependent):
                self._delete(dependent)
        for reference in stored.metadata.get("ownerReferences") or ():
            owner = self._owner(stored, reference)
            if owner is not None:
                self._settle(owner)
        return last

    def _settle(self, owner: Stored) -> None:
        """Do the work of the garbage collector's finalizers on an owner, and remove the finalizers after this work.

        `orphan` removes the owner from the references of its dependents. `foregroundDeletion` deletes the dependents
        first.
        """
        finalizers = owner.metadata.get("finalizers") or ()
        if not owner.terminating or not {"orphan", "foregroundDeletion"} & set(finalizers):
            return
        if "orphan" in finalizers:
            for each in self.store.dependents(owner.uid):
                self._edit_metadata(each, "ownerReferences", lambda found: found["uid"] != owner.uid)
        else:
            for each in self.store.dependents(owner.uid):
                if not each.terminating:
                    self._delete(each)
            if any(_blocks(each, owner.uid) for each in self.store.dependents(owner.uid)):
                return
        present = self.store.get(owner.kind, owner.metadata.get("namespace", ""), owner.metadata["name"])
        if present is not None and present.uid == owner.uid:
            self._edit_metadata(present, "finalizers", lambda found: found not in {"orphan", "foregroundDeletion"})

    def _edit_metadata(self, stored: Stored, field: str, keep: Callable[[Any], bool]) -> None:
        def edit(content: Json) -> Json:
            content["metadata"][field] = [each for each in content["metadata"].get(field) or () if keep(each)]
            return content

        self.change(stored.kind, stored.metadata.get("namespace", ""), stored.metadata["name"], edit)

    def _has_owner(self, stored: Stored) -> bool:
        return any(self._owner(stored, each) is not None for each in stored.metadata.get("ownerReferences") or ())

    def _owner(self, stored: Stored, reference: Json) -> Stored | None:
        """Return the owner that a reference names by kind, name and UID, or None if it is gone."""
        for kind in self._kinds.values():
            if (kind.api_version, kind.name) == (reference["apiVersion"], reference["kind"]):
                namespace = stored.metadata.get("namespace", "") if kind.namespaced else ""
                found = self.store.get(kind, namespace, reference["name"])
                return found if found is not None and found.uid == reference["uid"] else None
        return None

    def _register(self, stored: Stored) -> None:
        if stored.kind == DEFINITION:
            kind = defined_by(stored.content)
            self._kinds[kind.group, kind.version, kind.plural] = kind


def check_preconditions(stored: Stored, wanted: Json) -> None:
    """Raise `Refused` if UID or resourceVersion differ from those that the caller named."""
    metadata = stored.metadata
    for key, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if key in wanted and wanted[key] != metadata[key]:
            raise precondition_failed(
                stored.kind, metadata["name"], field=field, wanted=wanted[key], found=metadata[key]
            )


def _check_type(kind: Kind, body: Json) -> None:
    name, version = body.get("kind", ""), body.get("apiVersion", "")
    if kind.custom:
        if not name:
            raise bad_request(
                f"the object provided is unrecognized (must be of type {kind.name}): Object 'Kind' is missing"
            )
        if version != kind.api_version:
            what = f"the API version in the data ({version}) does not match the expected API version"
            raise bad_request(f"{what} ({kind.api_version})")
        if name != kind.name:
            why = f'Invalid value: "{name}": must be {kind.name}'
            raise invalid(
                replace(kind, name=name), (body.get("metadata") or {}).get("name", ""), [cause("kind", "Invalid", why)]
            )
    elif name not in {"", kind.name}:
        what = f'{name} in version "{version}" cannot be handled as a {kind.name}'
        raise bad_request(f"{what}: converting (v1.{name}) to (core.{kind.name}): unknown conversion")


def _changed(kind: Kind, old: Stored, edited: Json, *, status: bool) -> Json:
    """Return the new content of an object.

    Raises `Refused`. Only the fields that the request may write are taken from `edited`.
    """
    metadata = _changed_metadata(kind, old, edited.get("metadata") or {})
    before = old.copy()
    if status:  # for a custom resource, not even labels are written together with the status
        new = {**before, "metadata": before["metadata"] if kind.custom else metadata}
        new["status"] = edited.get("status") or {}
    else:
        new = {**edited, "metadata": metadata}
        if kind.status:
            new.pop("status", None)
            new |= {key: value for key, value in before.items() if key == "status"}
    if kind.custom:
        new = creation.shape(kind, new)
    causes = creation.problems(kind, new)
    if kind == POD:
        causes += pods.forbidden_changes(old.content, new)
    if causes:
        raise invalid(kind, old.metadata["name"], causes)
    if kind.generation and _rest(new) != _rest(before):
        new["metadata"]["generation"] = old.metadata["generation"] + 1
    return new


def _changed_metadata(kind: Kind, old: Stored, edited: Json) -> Json:
    """Return the new metadata, in which the fields of the server are unchanged. Raises `Refused`."""
    name, revision = old.metadata["name"], old.metadata["resourceVersion"]
    metadata = {key: value for key, value in edited.items() if value or key not in _MAY_BE_EMPTY}
    if metadata.get("name") != name:
        found = metadata.get("name", "")
        raise bad_request(f"the name of the object ({found}) does not match the name on the URL ({name})")
    if metadata.get("resourceVersion", revision) != revision:
        raise modified(kind, name)
    if causes := list(rules.of_change(old.metadata, metadata)):
        raise invalid(kind, name, causes)
    return metadata | {key: value for key, value in old.metadata.items() if key in _KEPT}


def _with_managers(kind: Kind, old: Stored | None, new: Json, *, manager: str, status: bool = False) -> Json:
    """Return the new content of an object, with its managed fields if its kind has them."""
    if kind.custom:
        new["metadata"]["managedFields"] = managed_fields.recorded(
            None if old is None else old.content,
            new,
            manager=manager,
            kind=kind,
            status=status,
            now=timestamp(),
        )
    return new


def _rest(content: Json) -> Json:
    return {key: value for key, value in content.items() if key not in {"metadata", "status"}}


def _is_over(metadata: Json) -> bool:
    """Return whether the deletion of an object is complete: no finalizer is left and the grace period is 0."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and metadata.get("deletionGracePeriodSeconds", 0) == 0
    )


def _blocks(stored: Stored, uid: str) -> bool:
    return any(
        each["uid"] == uid and each.get("blockOwnerDeletion") for each in stored.metadata.get("ownerReferences") or ()
    )
