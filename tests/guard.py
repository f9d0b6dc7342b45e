"""What the chart puts before a deletion of runner Pods, in force for one namespace of a test."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from k8s_adapters.admission import refuses_the_collector
from k8s_adapters.client import KubeClient
from lab import helm
from lab.manifests import Kinds
from ostler.errors import Gone

POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
PATIENCE = 60.0
"""Seconds that a policy may take to be in force, or out of it, on a bad day; a second is usual."""


def of_the_chart(runners: str, kinds: Sequence[str]) -> list[helm.Manifest]:
    """Return the objects of these kinds that the chart has for a namespace of runners."""
    release = f"{runners}-release"
    values = {"runners": {"namespace": runners, "create": False}}
    return [
        each
        for each in helm.render(values=values, namespace=release)
        if each["kind"] in kinds and each["metadata"].get("namespace") != release
    ]


@contextmanager
def guarded(kube: KubeClient, runners: str) -> Iterator[None]:
    """Have the admission policy in force in this namespace; afterwards it is gone."""
    kinds = Kinds(kube)
    policy = of_the_chart(runners, POLICY)
    for each in policy:
        kinds.apply(each)
    try:
        until_refused(kube, runners, refused=True)
        yield
    finally:
        for each in policy:
            with suppress(Gone):
                kube.request("DELETE", f"{kinds.collection(each)}/{each['metadata']['name']}")


def until_refused(kube: KubeClient, runners: str, *, refused: bool) -> None:
    """Return once the garbage collector is refused runner Pods there, or is not any more."""
    deadline = time.monotonic() + PATIENCE
    while (found := refuses_the_collector(kube, runners)).refused is not refused:
        assert time.monotonic() < deadline, found.why
        time.sleep(0.2)
