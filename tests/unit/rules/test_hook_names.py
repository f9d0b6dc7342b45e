"""Names of hook Pods and Secrets."""

from __future__ import annotations

import pytest

from rules.pools.hook_names import LONGEST_POD, LONGEST_POOL, pod_names, secret, secret_names, step_pod, workflow_pod

POD = "linux-0000000a"


def test_names_begin_with_the_runner_pod() -> None:
    assert workflow_pod(POD) == "linux-0000000a-workflow"
    assert step_pod(POD, 31) == "linux-0000000a-step-31"
    assert secret(POD, 7) == "linux-0000000a-secret-7"


def test_a_runner_pod_has_33_pod_names_and_8_secret_names() -> None:
    assert (len(set(pod_names(POD))), len(set(secret_names(POD)))) == (33, 8)
    assert pod_names(POD)[:3] == ("linux-0000000a-workflow", "linux-0000000a-step-0", "linux-0000000a-step-1")


def test_each_name_of_the_longest_runner_pod_is_a_host_name() -> None:
    pod = "p" * LONGEST_POD
    assert max(map(len, (*pod_names(pod), *secret_names(pod)))) == 63
    assert LONGEST_POOL + len("-0000000a") == LONGEST_POD


@pytest.mark.parametrize("pod", ["", "p" * (LONGEST_POD + 1)])
def test_too_long_a_name_is_refused_with_the_limit_of_the_pool(pod: str) -> None:
    for names in (workflow_pod, pod_names, secret_names):
        with pytest.raises(ValueError, match="a name of at most 45 characters"):
            names(pod)


def test_a_number_out_of_range_is_refused() -> None:
    for name, n in ((step_pod, 32), (step_pod, -1), (secret, 8), (secret, -1)):
        with pytest.raises(ValueError, match="is outside of 0 to"):
            name(POD, n)
