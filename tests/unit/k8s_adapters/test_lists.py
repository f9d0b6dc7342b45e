"""Answers to a list request that are no list prove nothing (law L8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from k8s_adapters.calls.client import Json
from k8s_adapters.pools.pools import list_pools
from k8s_adapters.runners.pods import list_pods, pod_pages
from ostler.errors import Retryable


class Answering:
    """A client that gives the same answer to every call."""

    def __init__(self, answer: Json) -> None:
        self._answer = answer

    def request(self, *_args: object, **_options: object) -> Json:
        return self._answer


def paged(client: Any, *, namespace: str) -> list[object]:
    return list(pod_pages(client, namespace=namespace))


@pytest.mark.parametrize("read", [list_pods, list_pools, paged])
def test_answer_without_items_is_no_empty_list(read: Callable[..., object]) -> None:
    with pytest.raises(Retryable, match="has no field `items`"):
        read(Answering({"metadata": {}}), namespace="runners")


@pytest.mark.parametrize("read", [list_pods, list_pools])
def test_items_of_null_are_an_empty_list(read: Callable[..., object]) -> None:
    assert read(Answering({"metadata": {}, "items": None}), namespace="runners") == []
