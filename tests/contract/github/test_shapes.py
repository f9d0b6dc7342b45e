"""Everything that the lab's GitHub sends can be parsed with models generated from GitHub's own description."""

from __future__ import annotations

import json
from typing import Any

import githubkit.webhooks
import jwt
import pytest
from githubkit_schemas.latest import models
from pydantic import TypeAdapter

from github_adapters.client import GitHub
from github_adapters.webhooks import parse_installation, parse_owner, parse_repository
from ostler.clock import utcnow
from rules.intake.events import RepositoryRenamed
from rules.routing.scopes import Scope
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab
from tests.waiting import eventually

ACME = Scope.organization("acme")
RUNNERS = "/orgs/acme/actions/runners"


class Api:
    """The lab's REST API, called without the adapter."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        now = int(utcnow().timestamp())
        claims = {"iat": now - 60, "exp": now + 500, "iss": APP_ID}
        self._app = jwt.encode(claims, lab.private_key.reveal(), algorithm="RS256")
        self.token = ""

    def call(self, method: str, path: str, body: Any = None, *, app: bool = False) -> tuple[int, Any]:
        """Return the status and the content of one call."""
        bearer = self._app if app else self.token
        answer = self._lab.pool.request(
            method,
            self._lab.url + path,
            json=body,
            headers={"Authorization": f"Bearer {bearer}"},
            retries=False,
            redirect=False,
        )
        return answer.status, json.loads(answer.data) if answer.data else None


def shaped(model: Any, content: Any) -> None:
    """Fail unless the content has the shape of the model."""
    TypeAdapter(model).validate_python(content)


@pytest.fixture
def api(lab: Lab) -> Api:
    found = Api(lab)
    status, content = found.call("POST", f"/app/installations/{ORG_INSTALLATION}/access_tokens", app=True)
    assert status == 201
    shaped(models.InstallationToken, content)
    found.token = content["token"]
    return found


def test_runners_and_their_configs(api: Api) -> None:
    body = {"name": "r", "runner_group_id": 1, "labels": ["linux"]}
    status, minted = api.call("POST", f"{RUNNERS}/generate-jitconfig", body)
    assert status == 201
    shaped(models.OrgsOrgActionsRunnersGenerateJitconfigPostResponse201, minted)
    shaped(models.OrgsOrgActionsRunnersGetResponse200, api.call("GET", RUNNERS)[1])
    shaped(models.Runner, api.call("GET", f"{RUNNERS}/{minted['runner']['id']}")[1])


def test_jobs_in_every_state(lab: Lab, api: Api, github: GitHub) -> None:
    (job,) = lab.jobs()
    path = f"/repos/acme/app/actions/jobs/{job}"
    shaped(models.Job, api.call("GET", path)[1])
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    session = lab.start(jit.config)
    assert lab.next_job(session) == job
    lab.call("POST", f"/_runner/sessions/{session}/started", {"job_id": job})
    shaped(models.Job, api.call("GET", path)[1])
    lab.call("POST", f"/_runner/sessions/{session}/finished", {"job_id": job, "conclusion": "failure"})

    shaped(models.Job, api.call("GET", path)[1])


def test_runs_and_their_jobs(lab: Lab, api: Api) -> None:
    lab.jobs(count=2, in_one_run=True)
    lab.jobs(waiting=True)
    for status, count in (("queued", 1), ("waiting", 1), ("in_progress", 0)):
        answered, runs = api.call("GET", f"/repos/acme/app/actions/runs?status={status}")
        assert (answered, runs["total_count"]) == (200, count)
        shaped(models.ReposOwnerRepoActionsRunsGetResponse200, runs)
    (run,) = api.call("GET", "/repos/acme/app/actions/runs?status=queued")[1]["workflow_runs"]
    shaped(models.WorkflowRun, api.call("GET", f"/repos/acme/app/actions/runs/{run['id']}")[1])
    jobs = api.call("GET", f"/repos/acme/app/actions/runs/{run['id']}/jobs?filter=latest")[1]
    assert jobs["total_count"] == 2
    shaped(models.ReposOwnerRepoActionsRunsRunIdJobsGetResponse200, jobs)
    assert lab.call("POST", f"/_lab/runs/{run['id']}/end")[0] == 204
    over = api.call("GET", f"/repos/acme/app/actions/runs/{run['id']}")[1]
    assert (over["status"], over["conclusion"]) == ("completed", "startup_failure")
    shaped(models.WorkflowRun, over)


def test_a_check_run(lab: Lab, api: Api) -> None:
    lab.jobs()
    lab.call("PATCH", "/_lab/app", {"permissions": {"checks": "write", "metadata": "read"}})
    body = {"name": "n", "head_sha": "a" * 40, "status": "completed", "conclusion": "neutral"}
    status, made = api.call("POST", "/repos/acme/app/check-runs", body | {"output": {"title": "t", "summary": "s"}})
    assert status == 201
    shaped(models.CheckRun, made)
    shaped(models.CheckRun, api.call("PATCH", f"/repos/acme/app/check-runs/{made['id']}", {"conclusion": "neutral"})[1])


def test_the_app_and_its_deliveries(lab: Lab, api: Api) -> None:
    lab.jobs()
    eventually(lambda: lab.hooks.seen)

    status, installation = api.call("GET", f"/app/installations/{ORG_INSTALLATION}", app=True)

    assert status == 200
    shaped(models.Installation, installation)
    (delivery,) = eventually(lambda: api.call("GET", "/app/hook/deliveries", app=True)[1])
    shaped(models.HookDeliveryItem, delivery)


def test_refusals(lab: Lab, api: Api) -> None:
    missing = api.call("GET", f"{RUNNERS}/5")
    invalid = api.call("POST", f"{RUNNERS}/generate-jitconfig", {"name": "", "runner_group_id": 1, "labels": ["l"]})
    forbidden = api.call("GET", "/repos/ada/app/actions/runners")
    lab.settings(points_per_minute=0)
    limited = api.call("GET", RUNNERS)
    lab.settings(points_per_minute=1_000_000)
    lab.call("PATCH", "/_lab/accounts/acme", {"suspended": True})
    suspended = api.call("GET", RUNNERS)
    api.token = "nonsense"
    unknown = api.call("GET", RUNNERS)

    refusals = [missing, invalid, forbidden, limited, suspended, unknown]
    assert [status for status, _ in refusals] == [404, 422, 403, 403, 403, 401]
    for _, content in refusals:
        shaped(models.BasicError, content)


def test_webhooks_about_an_installation(lab: Lab) -> None:
    for change in ({"suspended": True}, {"suspended": False}, {"installed": False}, {"installed": True}):
        assert lab.call("PATCH", "/_lab/accounts/acme", change)[0] == 200

    hooks = eventually(lambda: lab.hooks.seen if len(lab.hooks.seen) == 4 else None)

    assert {hook.headers["x-github-event"] for hook in hooks} == {"installation"}
    for hook in hooks:
        githubkit.webhooks.parse("installation", hook.body)
    events = [event for hook in hooks if (event := parse_installation(hook.body)) is not None]
    assert len(events) == len(hooks)
    assert {event.action for event in events} == {"suspend", "unsuspend", "deleted", "created"}
    assert {(each.installation_id, each.owner_id, each.owner_login) for each in events} == {
        (ORG_INSTALLATION, 1, "acme")
    }


def test_webhooks_about_a_new_name(lab: Lab) -> None:
    assert lab.call("PATCH", "/_lab/repositories/acme/app", {"name": "tool"})[0] == 200
    assert lab.call("PATCH", "/_lab/repositories/ada/app", {"name": "tool"})[0] == 200
    for login in ("acme", "ada"):
        assert lab.call("PATCH", f"/_lab/accounts/{login}", {"login": f"{login}-two"})[0] == 200

    hooks = eventually(lambda: lab.hooks.seen if len(lab.hooks.seen) == 5 else None)

    parsed = {}
    for hook in hooks:
        event = hook.headers["x-github-event"]
        githubkit.webhooks.parse(event, hook.body)
        read = parse_repository(hook.body) if event == "repository" else parse_owner(hook.body)
        assert read is not None
        name = read.full_name if isinstance(read, RepositoryRenamed) else read.login
        parsed[event, read.owner_id] = (read.former, name)
    assert parsed == {
        ("repository", 1): ("acme/app", "acme/tool"),
        ("repository", 2): ("ada/app", "ada/tool"),
        ("organization", 1): ("acme", "acme-two"),
        ("installation_target", 1): ("acme", "acme-two"),
        ("installation_target", 2): ("ada", "ada-two"),
    }
