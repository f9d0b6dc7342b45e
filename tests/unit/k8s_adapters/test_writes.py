"""Writes of a run: the recorded failures, and their names."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from k8s_adapters.calls.client import by_meaning
from k8s_adapters.calls.refusals import words_in
from k8s_adapters.calls.retry import Answer
from k8s_adapters.calls.writes import note_failure, note_success, recorded
from ostler.errors import Retryable, UpstreamError

POOLS = "/apis/ostler.dev/v1alpha1/namespaces/n/runnerpools"


def failure(status: int, message: str) -> UpstreamError:
    answer = Answer(status=status, reason="Why", message=message, retry_after=None)
    error = by_meaning("a call", answer) if status < HTTPStatus.INTERNAL_SERVER_ERROR else Retryable("a call")
    error.__cause__ = answer
    error.words = words_in(answer)
    return error


def noted(method: str, path: str, error: UpstreamError | None) -> dict[str, str | None]:
    with recorded() as writes:
        if error is None:
            note_success(method, path)
        else:
            note_failure(method, path, error)
    return dict(writes.outcomes)


@pytest.mark.parametrize(
    ("method", "path", "call"),
    [
        ("POST", "/api/v1/namespaces/n/pods", "POST pods"),
        ("DELETE", "/api/v1/namespaces/n/pods/pods", "DELETE pods"),
        ("PATCH", "/api/v1/namespaces/n/pods/x/status", "PATCH pods/status"),
        ("PATCH", f"{POOLS}/x/status", "PATCH runnerpools/status"),
        ("PUT", "/apis/apps/v1/namespaces/n/statefulsets/x", "PUT statefulsets"),
        ("POST", "/api/v1/namespaces", "POST namespaces"),
    ],
)
def test_write_has_the_name_of_its_method_and_resource(method: str, path: str, call: str) -> None:
    assert noted(method, path, None) == {call: None}
    assert noted(method, path, Retryable("lost")) == {call: "the server did not answer"}


def test_failure_beside_a_success_is_a_failure() -> None:
    with recorded() as writes:
        for error in (None, failure(500, "a"), None):
            if error is None:
                note_success("DELETE", "/api/v1/namespaces/n/pods/x")
            else:
                note_failure("DELETE", "/api/v1/namespaces/n/pods/y", error)
    assert writes.outcomes == {"DELETE pods": "a"}
    assert writes.has_failures


@pytest.mark.parametrize(
    ("method", "status", "found"),
    [
        ("POST", 404, True),
        ("POST", 409, False),
        ("POST", 403, False),  # a refusal, which the condition PodRefused shows
        ("POST", 422, False),
        ("POST", 500, True),
        ("DELETE", 404, False),
        ("DELETE", 409, False),
        ("DELETE", 403, True),
        ("PATCH", 422, True),
        ("GET", 500, False),
    ],
)
def test_failures_that_are_normal_or_refusals_are_not_noted(method: str, status: int, found: bool) -> None:
    name = "/x" if method in {"DELETE", "PATCH"} else ""
    assert bool(noted(method, f"/api/v1/namespaces/n/pods{name}", failure(status, "no"))) is found


def test_write_outside_of_a_run_is_not_noted() -> None:
    with recorded() as writes:
        pass
    note_failure("POST", "/api/v1/namespaces/n/pods", failure(500, "no"))
    assert writes.outcomes == {}
