"""Lists of runs and jobs: invalid entries are left out, and an invalid list is not an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from github_adapters.calls.http import Answer
from github_adapters.endpoints.jobs import read_listed_job
from github_adapters.endpoints.pages import read_list
from github_adapters.endpoints.runs import read_run
from github_adapters.fields import Malformed

OWNER = {"id": 1, "login": "acme", "type": "Organization"}
RUN = {
    "id": 4,
    "run_attempt": 2,
    "status": "queued",
    "conclusion": None,
    "created_at": "2026-11-22T00:00:00Z",
    "repository": {"id": 11, "full_name": "acme/app", "owner": OWNER},
}
JOB = {
    "id": 3,
    "run_id": 4,
    "status": "queued",
    "conclusion": None,
    "labels": ["linux"],
    "name": "build",
    "created_at": "2026-11-22T00:00:00Z",
}


def answer(body: Any, **headers: str) -> Answer:
    return Answer(status=200, headers=headers, body=json.dumps(body).encode())


def page(*runs: Any, total: Any = None) -> Any:
    return {"total_count": len(runs) if total is None else total, "workflow_runs": list(runs)}


def test_one_entry_without_sense_spoils_no_other() -> None:
    broken = [RUN | {"repository": None}, RUN | {"id": 0}, RUN | {"created_at": "yesterday"}, None]
    found = read_list(answer(page(RUN, *broken)), key="workflow_runs", read=read_run)
    assert ([run.id for run in found.items], found.malformed, found.total) == ([4], 4, 5)


@pytest.mark.parametrize(
    "body",
    [[], {}, {"workflow_runs": [RUN]}, {"total_count": 1}, page(RUN, total="1"), page(RUN, total=True), page({})],
    ids=str,
)
def test_what_is_no_list_is_no_answer(body: Any) -> None:
    with pytest.raises(Malformed):
        read_list(answer(body), key="workflow_runs", read=read_run)


@pytest.mark.parametrize("etag", ["x" * 300, "\n", "é", ""])
def test_an_etag_that_could_not_be_sent_back_is_none(etag: str) -> None:
    assert read_list(answer(page(), etag=etag), key="workflow_runs", read=read_run).etag is None


def test_quota_and_etag_are_read_from_the_headers() -> None:
    headers = {"etag": 'W/"a"', "x-ratelimit-limit": "15000", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "1"}
    found = read_list(answer(page(), **headers), key="workflow_runs", read=read_run)
    assert (found.etag, found.quota, found.unchanged) == ('W/"a"', 15000, False)


def test_a_job_of_another_run_is_none_of_this_one() -> None:
    run = read_run(RUN)
    job = read_listed_job(JOB, run=run, installation_id=5)
    assert (job.job_id, job.action, job.repository, job.owner_id, job.installation_id) == (
        3,
        "queued",
        "acme/app",
        1,
        5,
    )
    with pytest.raises(Malformed):
        read_listed_job(JOB | {"run_id": 5}, run=run, installation_id=5)
