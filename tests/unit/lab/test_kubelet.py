"""Decisions of the lab's kubelet: the answer table of a simulated poller, and the choice of real Pods."""

import random
from typing import Any

import pytest

from lab.kubelet.answers import End, PollAgain, Work, decide
from lab.kubelet.quota import RealQuota

BODY = {"jit_config": "config", "runner_name": "linux-1", "claim_id": 12, "owner": "acme"}


def _decide(
    status: int, *, retry_after: str | None = None, body: Any = None, failures: int = 0
) -> Work | End | PollAgain:
    return decide(
        status=status,
        retry_after=retry_after,
        body=body,
        failures=failures,
        chance=random.Random(failures + status),  # noqa: S311 - a seed, so that the story repeats
    )


def test_a_200_is_work_and_prints_no_config() -> None:
    work = _decide(200, body=BODY)

    assert work == Work(jit_config="config", runner_name="linux-1", claim="12")
    assert "config" not in repr(work).replace("jit_config", "")


@pytest.mark.parametrize("body", [None, {}, [], "text", {"jit_config": ""}])
def test_a_200_without_a_config_backs_off(body: Any) -> None:
    assert isinstance(_decide(200, body=body), PollAgain)


@pytest.mark.parametrize(("status", "code"), [(401, 1), (403, 1), (410, 10)])
def test_a_definite_no_ends_the_poller(status: int, code: int) -> None:
    verdict = _decide(status)

    assert isinstance(verdict, End)
    assert verdict.code == code


@pytest.mark.parametrize(
    ("status", "retry_after", "failures", "least", "most"),
    [
        (204, "0", 0, 0, 0.25),
        (204, "2", 0, 2, 2.75),
        (204, None, 5, 0.5, 1.5),
        (429, "7", 0, 7, 9),
        (503, "7", 0, 7, 9),
        (503, "900", 0, 60, 75.25),
        (503, "9" * 5000, 0, 60, 75.25),
        (503, "soon", 0, 0.5, 1),
        (503, "-1", 1, 1, 2),
        (503, "²", 0, 0.5, 1),
        (500, "7", 0, 0.5, 1),
        (0, None, 3, 4, 8),
        (0, None, 4000, 15, 30),
    ],
)
def test_everything_else_is_waited_out(
    status: int, retry_after: str | None, failures: int, least: float, most: float
) -> None:
    verdict = _decide(status, retry_after=retry_after, failures=failures)

    assert isinstance(verdict, PollAgain)
    assert least <= verdict.wait <= most
    assert verdict.failed is (status != 204)


def test_real_pods_are_counted_by_the_jobs_they_execute() -> None:
    quota = RealQuota(wanted=2)
    assert [quota.take(), quota.take(), quota.take()] == [True, True, False]

    quota.give_back(used=False)
    assert [quota.take(), quota.take()] == [True, False]

    quota.give_back(used=True)
    quota.give_back(used=True)
    assert quota.take() is False
