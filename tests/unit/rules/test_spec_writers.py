"""The author of a change of a RunnerPool."""

from __future__ import annotations

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from rules.changes import Via
from rules.pools.spec_writers import is_ours, manager_of, spec_writer


@pytest.mark.parametrize(
    ("writers", "changed", "author"),
    [
        (("gitops", "kubectl-edit"), {"image"}, "gitops"),
        (("ostler", "kubectl-edit"), {"image", "replicas"}, "kubectl-edit"),
        (("ostler", "kubectl-edit"), {"replicas"}, None),
        (("kubectl-edit", "ostler"), {"replicas"}, "kubectl-edit"),
        (("kubectl-edit",), {"draining"}, "unknown"),
        ((), {"image"}, "unknown"),
        ((), {"replicas"}, "unknown"),
    ],
)
def test_latest_writer_other_than_the_autoscaler_is_the_author(
    writers: tuple[str, ...], changed: set[str], author: str | None
) -> None:
    assert spec_writer(writers, changed=changed) == author


def test_field_manager_of_a_shell_fits_into_kubernetes() -> None:
    assert manager_of("alice", Via.SHELL) == "ostler-cli:alice"
    assert len(manager_of("a" * 300, Via.API)) == 128
    assert manager_of("a\nb", Via.SHELL) == "ostler-cli:ab"
    assert [is_ours(each) for each in ("ostler", manager_of("a", Via.DASHBOARD), "ostler-cli", "gitops")] == [
        True,
        True,
        False,
        False,
    ]


def test_writers_of_the_spec_are_read_in_the_order_of_their_times() -> None:
    def entry(manager: str, minute: int, fields: dict[str, object], **more: str) -> dict[str, object]:
        return {"manager": manager, "time": f"2026-11-30T00:{minute:02}:00Z", "fieldsV1": fields, **more}

    spec: dict[str, object] = {"f:spec": {"f:image": {}}}
    pool = read_pool(
        {
            "metadata": {
                "uid": "u",
                "name": "small",
                "namespace": "runners",
                "managedFields": [
                    entry("kubectl-create", 1, spec),
                    entry("gitops", 3, spec),
                    entry("ostler", 4, {"f:metadata": {"f:finalizers": {}}}),
                    entry("status", 5, spec, subresource="status"),
                ],
            },
            "spec": {"image": "i", "runnerLabels": ["small"]},
        }
    )
    assert pool.writers == ("gitops", "kubectl-create")
