"""`ostler debug bundle`: the archive has what a report needs, and no secret."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.events import EventNote, pod_of, write_event
from lab.control_plane import ClusterAccess
from ostler.clock import utcnow
from tests.integration.cli.test_operator import Operator, operator

__all__ = ["operator"]

PASSWORD, KEY, TOKEN, MINE = "p" * 20, "k" * 44, "t" * 30, "x" * 16
PEM_LINE = "m" * 64
SECRETS = {
    "OSTLER_REDIS_URL": f"redis://user:{PASSWORD}@host:6379/0",
    "OSTLER_ENCRYPTION_KEYS": f"{KEY},{KEY[::-1]}k",
    "OSTLER_API_TOKEN": TOKEN,
    "OSTLER_GITHUB_PRIVATE_KEY": f"-----BEGIN KEY-----\n{PEM_LINE}\n-----END KEY-----",
    "OSTLER_MY_OWN": MINE,
}


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        assert all(member.isfile() and member.name.startswith(path.name.removesuffix(".tar.gz")) for member in archive)
        return {
            member.name.rpartition("/")[2]: file.read().decode()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def collect(operator: Operator, folder: Path, *arguments: str, job: str = "11", **how: Any) -> dict[str, str]:
    path = folder / "found.tar.gz"
    done = operator.run("debug", "bundle", job, "-o", str(path), *arguments, **how)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return read(path)


def test_the_archive_has_the_job_with_its_pods_pool_and_account(operator: Operator, tmp_path: Path) -> None:
    found = collect(operator, tmp_path, OSTLER_NAMESPACE="there")
    job = json.loads(found["job.json"])
    assert job["id"] == 11
    assert job["why"]["summary"]
    assert [pod["name"] for pod in json.loads(found["pods.json"])] == [claim["pod"] for claim in job["claims"]]
    assert json.loads(found["pool.json"])["name"] == job["pool"]
    assert json.loads(found["account.json"])["login"] == "acme"
    explained = [*json.loads(found["pods.json"]), *(json.loads(found[f"{name}.json"]) for name in ("pool", "account"))]
    assert all(each["why"]["summary"] and each["why"]["checks"] for each in explained)
    assert len(explained) > 2
    assert json.loads(found["settings.json"])["OSTLER_NAMESPACE"] == "there"
    assert json.loads(found["settings.json"])["OSTLER_DATABASE_URL"] == "***"
    assert json.loads(found["versions.json"])["ostler"]
    assert {"repairs.json", "gates.json", "sweeps.json"} <= set(found)


def test_no_secret_of_a_setting_is_in_the_archive(operator: Operator, tmp_path: Path) -> None:
    operator.execute(
        "UPDATE jobs SET hold_detail = :words, name = :name WHERE id = 11 RETURNING id",
        words=f"{PASSWORD} {KEY[::-1]}k {PEM_LINE}",
        name=f"{TOKEN}{MINE}",
    )
    log = tmp_path / "web.log"
    log.write_text(json.dumps({"event": f"x {KEY}", "job": 11}) + "\n")
    found = collect(operator, tmp_path, "--logs", str(log), **SECRETS)
    assert "job" in found["logs-1-web.log.txt"]
    for name, text in found.items():
        for secret in (PASSWORD, KEY, TOKEN, MINE, PEM_LINE):
            assert secret not in text, name


def test_only_log_lines_about_the_job_its_claims_and_its_pods_are_collected(operator: Operator, tmp_path: Path) -> None:
    (row,) = operator.execute("SELECT id, pod_uid FROM claims WHERE job_id = 11")
    lines = [
        {"event": "a", "job": 11},
        {"event": "b", "claim": row.id},
        {"event": "c", "pod_uid": row.pod_uid},
        {"event": "d", "job": 1110},
        {"event": "e", "seconds": 11.5},
    ]
    log = tmp_path / "worker.log"
    log.write_text("not JSON about 11\n" + "".join(f"{json.dumps(line)}\n" for line in lines))
    found = collect(operator, tmp_path, "--logs", str(log))
    assert [json.loads(line)["event"] for line in found["logs-1-worker.log.txt"].splitlines()] == ["a", "b", "c"]


def test_events_of_the_pods_are_collected_on_request(
    operator: Operator, tmp_path: Path, control_plane: ClusterAccess, admin: KubeClient, namespace: str
) -> None:
    (pod,) = operator.execute(
        "UPDATE runner_pods SET namespace = :it WHERE uid = (SELECT pod_uid FROM claims WHERE job_id = 11)"
        " RETURNING name, uid",
        it=namespace,
    )
    for name, words in ((pod.name, f"out of {MINE}"), ("another", "not ours")):
        about = pod_of(namespace=namespace, name=name, uid=pod.uid)
        write_event(admin, EventNote(about, "Warning", "Evicted", words, utcnow()), instance="kubelet")
    given = {"OSTLER_KUBECONFIG": str(control_plane.kubeconfig), "OSTLER_MY_OWN": MINE}
    (event,) = json.loads(collect(operator, tmp_path, "--events", **given)["events.json"])
    assert (event["pod"], event["reason"], event["note"]) == (pod.name, "Evicted", "out of ***")
    assert "events.json" not in collect(operator, tmp_path, **given)
    away = operator.run("debug", "bundle", "11", "--events", "-o", str(tmp_path / "x"), OSTLER_KUBECONFIG="/none")
    assert (away.returncode, away.stderr.count("\n"), (tmp_path / "x").exists()) == (2, 1, False)


@pytest.mark.parametrize(("job", "status"), [("99", 1), ("0", 2)])
def test_an_unknown_job_leaves_no_archive(operator: Operator, tmp_path: Path, job: str, status: int) -> None:
    path = tmp_path / "found.tar.gz"
    done = operator.run("debug", "bundle", job, "-o", str(path))
    assert (done.returncode, path.exists()) == (status, False)


def test_a_path_that_cannot_be_written_is_named(operator: Operator, tmp_path: Path) -> None:
    done = operator.run("debug", "bundle", "11", "-o", str(tmp_path / "missing" / "found.tar.gz"))
    assert (done.returncode, "choose another path with --output" in done.stderr) == (2, True)
