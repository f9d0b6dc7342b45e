"""The embedded API server answers like the real one: the same probes run against both and are compared."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from k8s_adapters.calls.client import make_client
from k8s_adapters.pools.crd import apply_crd
from lab.control_plane import ClusterAccess
from lab.embedded import EmbeddedCluster
from tests.contract.k8s.both.comparison import differences
from tests.contract.k8s.both.ignored import ADDED, IGNORED, Added, Ignored
from tests.contract.k8s.both.probes import PROBES, run
from tests.contract.k8s.both.recording import WITHIN, Exchange, Recorder
from tests.contract.k8s.both.seeds import SEEDS

CHEAP = "the_test_of_a_json_patch_is_ignored"
"""The seed of the default run. `-m seeds` runs the others."""

RUN = secrets.token_hex(3)
Records = Callable[[str], list[Exchange]]


def record(access: ClusterAccess, probe: str, *, within: float = WITHIN) -> list[Exchange]:
    with closing(Recorder(access, f"{probe.replace('_', '-')}-{RUN}", within=within)) as recorder:
        run(probe, recorder)
    return recorder.exchanges


def remembering(access: ClusterAccess) -> Records:
    known: dict[str, list[Exchange]] = {}

    def records(probe: str) -> list[Exchange]:
        if probe not in known:
            known[probe] = record(access, probe)
        return known[probe]

    return records


@pytest.fixture(scope="session")
def real(real_control_plane: ClusterAccess) -> Records:
    return remembering(real_control_plane)


@pytest.fixture(scope="session")
def embedded(embedded_cluster: ClusterAccess) -> Records:
    return remembering(embedded_cluster)


@pytest.mark.parametrize("probe", PROBES)
def test_both_servers_answer_alike(probe: str, real: Records, embedded: Records) -> None:
    assert differences(real(probe), embedded(probe)) == []


@pytest.mark.parametrize("rule", [*IGNORED, *ADDED], ids=lambda rule: f"{rule.kind} {rule.path}")
def test_nothing_is_ignored_that_need_not_be(rule: Ignored | Added, real: Records, embedded: Records) -> None:
    ignored, added = [each for each in IGNORED if each != rule], [each for each in ADDED if each != rule]
    assert any(differences(real(probe), embedded(probe), ignored=ignored, added=added) for probe in PROBES)


@pytest.fixture
def seeded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterAccess]:
    program = ("tests.contract.k8s.both.seeds", request.param)
    with EmbeddedCluster.start(tmp_path / "apiserver", program=program) as cluster:
        client = make_client(kubeconfig=str(cluster.kubeconfig))
        apply_crd(client)
        client.close()
        yield cluster.access


@pytest.mark.parametrize(
    ("seeded", "seed"),
    [(name, name) if name == CHEAP else pytest.param(name, name, marks=pytest.mark.seeds) for name in SEEDS],
    indirect=["seeded"],
    ids=list(SEEDS),
)
def test_the_comparison_notices_a_bug(seeded: ClusterAccess, seed: str, real: Records) -> None:
    probe = SEEDS[seed].noticed_by
    try:
        answers = record(seeded, probe, within=5)
    except (AssertionError, KeyError):  # it did not even come to the end of the probe
        return
    assert differences(real(probe), answers) != []


def test_the_comparison_notices_a_single_value(real: Records) -> None:
    answers = real("pods_are_created_and_read")
    for number, answer in enumerate(answers):
        if answer.status == 201 and answer.body["kind"] == "Pod":
            metadata = {**answer.body["metadata"], "uid": "00000000-0000-4000-8000-00000000000a"}
            changed = [*answers]
            changed[number] = replace(answer, body={**answer.body, "metadata": metadata})
            assert len(differences(answers, changed)) > 0
            break
    else:
        pytest.fail("no Pod was created")
