"""Bugs for the embedded API server. The comparison with the real server must detect each of them.

`python -m tests.contract.k8s.both.seeds NAME …` is `python -m lab.apiserver …` with the bug NAME.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt

from lab.apiserver import lists, objects, patches, pods, schema, selectors, store, tokens
from lab.apiserver.kinds import Json


@dataclass(frozen=True)
class Seed:
    """A bug, and the probe that must detect it."""

    plant: Callable[[], None]
    noticed_by: str


SEEDS: dict[str, Seed] = {}


def seed(*, noticed_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a bug under the name of its function."""

    def add(plant: Callable[[], None]) -> Callable[[], None]:
        SEEDS[plant.__name__] = Seed(plant, noticed_by)
        return plant

    return add


def _replace(owner: Any, name: str, made_of: Callable[[Any], Any]) -> None:
    setattr(owner, name, made_of(getattr(owner, name)))


@seed(noticed_by="json_patches")
def the_test_of_a_json_patch_is_ignored() -> None:
    _replace(patches, "holds", lambda _real: lambda _document, _path, _value: True)


@seed(noticed_by="pods_are_deleted")
def the_precondition_of_a_deletion_is_ignored() -> None:
    _replace(objects, "check_preconditions", lambda _real: lambda _stored, _wanted: None)


@seed(noticed_by="service_accounts")
def a_taken_name_is_taken_over() -> None:
    def made_of(real: Any) -> Any:
        def create(self: Any, kind: Any, namespace: str, body: Json) -> Any:
            taken = self.store.get(kind, namespace, (body.get("metadata") or {}).get("name", ""))
            if taken is not None:
                self.store.remove(taken)
            return real(self, kind, namespace, body)

        return create

    _replace(objects.Objects, "create", made_of)


@seed(noticed_by="pods_are_deleted")
def a_pod_on_a_node_goes_at_once() -> None:
    _replace(pods, "grace", lambda _real: lambda _pod, _asked: 0)


@seed(noticed_by="pods_are_deleted")
def a_terminating_pod_does_not_show_it() -> None:
    def made_of(real: Any) -> Any:
        def put(self: Any, kind: Any, content: Json) -> Any:
            content["metadata"].pop("deletionTimestamp", None)
            return real(self, kind, content)

        return put

    _replace(store.Store, "put", made_of)


@seed(noticed_by="tokens")
def a_token_does_not_name_its_pod() -> None:
    _replace(tokens.Tokens, "_bound", lambda real: lambda *place: {k: v for k, v in real(*place).items() if k != "pod"})


@seed(noticed_by="token_reviews")
def any_audience_will_do() -> None:
    def made_of(real: Any) -> Any:
        def user_of(self: Any, token: str, *, audiences: list[str]) -> Any:
            try:
                own = jwt.decode(token, options={"verify_signature": False})["aud"]
            except jwt.PyJWTError:
                own = []
            return real(self, token, audiences=[*audiences, *(each for each in own if each not in audiences)])

        return user_of

    _replace(tokens.Tokens, "user_of", made_of)


@seed(noticed_by="tokens_of_what_is_gone")
def a_token_outlives_its_pod() -> None:
    _replace(tokens.Tokens, "_check_pod", lambda _real: lambda *_place: None)


@seed(noticed_by="selectors_and_pages")
def the_label_selector_is_ignored() -> None:
    _replace(selectors, "_label", lambda _real: lambda _text: lambda _stored: True)


@seed(noticed_by="selectors_and_pages")
def a_list_ends_with_its_first_page() -> None:
    _replace(lists, "_write_token", lambda _real: lambda _revision, _after: "")


@seed(noticed_by="selectors_and_pages")
def pages_are_of_different_moments() -> None:
    def made_of(_real: Any) -> Any:
        return lambda self, kind, namespace, _revision: self.all(kind, namespace)

    _replace(store.Store, "kept_list", made_of)


@seed(noticed_by="merge_patches")
def the_resource_version_stands_still() -> None:
    def made_of(real: Any) -> Any:
        def put(self: Any, kind: Any, content: Json) -> Any:
            stored = real(self, kind, content)
            stored.metadata["resourceVersion"] = "1"
            return stored

        return put

    _replace(store.Store, "put", made_of)


@seed(noticed_by="watches")
def a_watch_misses_deletions() -> None:
    _replace(
        lists,
        "_event_line",
        lambda real: lambda event, *rest, **more: b"" if event.gone else real(event, *rest, **more),
    )


@seed(noticed_by="collection")
def what_a_pool_leaves_behind_stays() -> None:
    _replace(objects.Objects, "_has_owner", lambda _real: lambda _self, _stored: True)


@seed(noticed_by="pools")
def the_schema_of_a_pool_is_not_judged() -> None:
    _replace(schema, "problems", lambda _real: lambda _schema, _value, _field: iter(()))


@seed(noticed_by="ephemeral_containers")
def an_ephemeral_container_may_change() -> None:
    _replace(pods, "ephemeral_problems", lambda _real: lambda _old, _containers: iter(()))


def main() -> None:
    """Install the bug that the first argument names, and serve."""
    SEEDS[sys.argv.pop(1)].plant()
    from lab.apiserver.__main__ import main as serve  # noqa: PLC0415 - after the bug is in

    serve()


if __name__ == "__main__":
    main()
