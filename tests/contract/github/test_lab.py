"""The lab's GitHub has the properties that the rest of the lab relies on."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import githubkit.webhooks
import pytest
from githubkit_schemas.latest.models import HookDeliveryItem

from github_adapters.client import GitHub
from github_adapters.webhooks import parse_workflow_job, verify_signature
from lab.verdict import judge
from ostler.secrets import Secret
from rules.routing.scopes import Scope
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, USER_INSTALLATION, Lab, running
from tests.waiting import eventually

ACME = Scope.organization("acme")


def start_runner(lab: Lab, github: GitHub, name: str, *, label: str = "linux") -> str:
    """Mint and start a runner of the organisation, and return its session."""
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name=name, labels=[label], runner_group_id=1)
    return lab.start(jit.config)


def test_every_webhook_is_one_that_githubs_own_models_accept(lab: Lab, github: GitHub) -> None:
    (waiting,) = lab.jobs(waiting=True)
    (ada,) = lab.jobs(repository="ada/app")
    assert lab.call("POST", f"/_lab/jobs/{ada}/cancel")[0] == 204
    session = start_runner(lab, github, "runner-1")
    assert lab.call("POST", f"/_lab/jobs/{waiting}/approve")[0] == 204
    lab.run(session, lab.next_job(session))

    hooks = eventually(lambda: lab.hooks.seen if len(lab.hooks.seen) == 6 else None)

    for hook in hooks:
        githubkit.webhooks.parse("workflow_job", hook.body)
        event = parse_workflow_job(hook.body)
        assert event.installation_id == (ORG_INSTALLATION if event.repository == "acme/app" else USER_INSTALLATION)
        assert event.owner_type == ("Organization" if event.repository == "acme/app" else "User")
        assert hook.headers["x-github-event"] == "workflow_job"
        assert verify_signature([Secret(lab.hooks.secret)], hook.body, hook.headers["x-hub-signature-256"])
        digest = hmac.new(lab.hooks.secret.encode(), hook.body, hashlib.sha256).hexdigest()
        assert hook.headers["x-hub-signature-256"] == f"sha256={digest}"
    assert sorted(lab.hooks.of(waiting)) == ["completed", "in_progress", "queued", "waiting"]
    assert sorted(lab.hooks.of(ada)) == ["completed", "queued"]
    assert len({hook.headers["x-github-delivery"] for hook in hooks}) == 6


def test_a_config_starts_one_runner_once(lab: Lab, github: GitHub) -> None:
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    lab.start(jit.config)

    again = lab.call("POST", "/_runner/sessions", {"jit_config": jit.config.reveal()})[0]
    unknown = lab.call("POST", "/_runner/sessions", {"jit_config": "nonsense"})[0]

    assert (again, unknown) == (401, 401)


def test_the_config_of_a_deleted_runner_starts_nothing(lab: Lab, github: GitHub) -> None:
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=jit.runner_id)

    assert lab.call("POST", "/_runner/sessions", {"jit_config": jit.config.reveal()})[0] == 401


def test_a_runner_of_a_version_too_old_never_comes_online(lab: Lab, github: GitHub) -> None:
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    config = jit.config.reveal()
    lab.call("PUT", "/_lab/runner-versions", {"2.320.0": "2020-01-01T00:00:00Z", "2.330.0": "2120-01-01T00:00:00Z"})

    refused = [
        lab.call("POST", "/_runner/sessions", {"jit_config": config, "version": each})[0]
        for each in ("2.300.0", "2.320.0")
    ]

    assert refused == [403, 403]
    assert not github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)[0].online
    assert lab.call("POST", "/_runner/sessions", {"jit_config": config, "version": "2.330.0"})[0] == 201


def test_a_runner_that_updates_itself_gets_its_job_in_its_second_session(lab: Lab, github: GitHub) -> None:
    (job,) = lab.jobs()
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    config = jit.config.reveal()

    status, first = lab.call("POST", "/_runner/sessions", {"jit_config": config, "updates": True})
    assert status == 201
    assert github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)[0].online
    assert lab.call("GET", f"/_runner/sessions/{first['session']}/message?wait=0.3")[0] == 204
    assert lab.call("DELETE", f"/_runner/sessions/{first['session']}")[0] == 204
    assert not github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)[0].online

    status, second = lab.call("POST", "/_runner/sessions", {"jit_config": config})
    assert status == 201
    assert lab.next_job(second["session"]) == job
    assert lab.call("POST", "/_runner/sessions", {"jit_config": config})[0] == 401


def test_a_deleted_idle_runner_hears_that_it_is_over(lab: Lab, github: GitHub) -> None:
    session = start_runner(lab, github, "r")
    (seen,) = github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)
    github.delete_runner(installation_id=ORG_INSTALLATION, scope=ACME, runner_id=seen.id)

    assert lab.call("GET", f"/_runner/sessions/{session}/message?wait=5")[0] == 404


def test_labels_are_covered_in_any_case_and_others_wait(lab: Lab, github: GitHub) -> None:
    session = start_runner(lab, github, "r", label="Linux")
    (windows,) = lab.jobs(labels=["windows"])
    (linux,) = lab.jobs(labels=["LINUX"])

    assert lab.next_job(session) == linux
    assert lab.job(windows)["status"] == "queued"


def test_jobs_and_runners_that_gather_are_paired_at_random(lab: Lab, github: GitHub) -> None:
    lab.settings(accept_delay=0.3)
    sessions = [start_runner(lab, github, f"r{number}") for number in range(12)]

    jobs = lab.jobs(count=12)

    given = [lab.next_job(session) for session in sessions]
    assert sorted(given) == sorted(jobs)
    assert given != jobs


def test_busy_runner_that_stops_answering_fails_its_job(lab: Lab, github: GitHub) -> None:
    lab.settings(lock_expiry=600)
    session = start_runner(lab, github, "r")
    (job,) = lab.jobs()
    lab.next_job(session)
    assert lab.call("POST", f"/_runner/sessions/{session}/started", {"job_id": job})[0] == 204
    lab.settings(lock_expiry=0.5)

    done = eventually(lambda: lab.job(job) if lab.job(job)["status"] == "completed" else None)

    assert done["conclusion"] == "failure"
    assert lab.call("POST", f"/_runner/sessions/{session}/heartbeat")[0] == 404
    assert github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME) == []


def test_a_job_that_no_runner_begins_is_given_to_another(lab: Lab, github: GitHub) -> None:
    lab.settings(requeue_after=0.5, lock_expiry=600)
    (job,) = lab.jobs()
    first = start_runner(lab, github, "first")
    assert lab.next_job(first) == job
    eventually(lambda: [event for event in lab.log() if event["event"] == "job_requeued"])
    lab.settings(requeue_after=600)  # the second may be as slow

    second = start_runner(lab, github, "second")

    assert lab.next_job(second) == job
    assert lab.call("POST", f"/_runner/sessions/{first}/started", {"job_id": job})[0] == 404
    lab.run(second, job)
    assert [event["event"] for event in lab.log() if event["event"] in {"job_requeued", "job_started"}] == [
        "job_requeued",
        "job_started",
    ]


def test_idle_runner_that_stops_answering_is_offline_and_gets_nothing(lab: Lab, github: GitHub) -> None:
    lab.settings(lock_expiry=0.3)
    session = start_runner(lab, github, "r")
    eventually(lambda: not github.list_runners(installation_id=ORG_INSTALLATION, scope=ACME)[0].online)

    (job,) = lab.jobs()

    assert lab.job(job)["status"] == "queued"
    assert lab.next_job(session) == job


def test_a_cancelled_running_job_ends_its_runner(lab: Lab, github: GitHub) -> None:
    session = start_runner(lab, github, "r")
    (job,) = lab.jobs()
    lab.next_job(session)
    assert lab.call("POST", f"/_runner/sessions/{session}/started", {"job_id": job})[0] == 204

    assert lab.call("POST", f"/_lab/jobs/{job}/cancel")[0] == 204

    assert lab.job(job)["conclusion"] == "cancelled"
    assert lab.call("POST", f"/_runner/sessions/{session}/heartbeat")[0] == 404
    assert lab.call("POST", f"/_lab/jobs/{job}/cancel")[0] == 409


def test_a_dropped_webhook_is_known_and_can_be_redelivered_under_its_guid(lab: Lab) -> None:
    lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    (job,) = lab.jobs()
    (lost,) = lab.call("GET", "/_lab/deliveries")[1]["deliveries"]
    assert (lost["job"], lost["status_code"]) == (job, 0)

    assert lab.call("POST", f"/_lab/deliveries/{lost['guid']}/redeliver")[0] == 202

    (hook,) = eventually(lambda: lab.hooks.seen)
    assert hook.headers["x-github-delivery"] == lost["guid"]


def test_every_listed_delivery_is_one_that_githubs_own_models_accept(lab: Lab) -> None:
    lab.hooks.statuses.put(500)
    lab.jobs(count=2)
    eventually(lambda: lab.call("GET", "/_lab/stats")[1]["webhooks_in_flight"] == 0)
    lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    lab.jobs()

    listed = lab.deliveries()

    for each in listed:
        HookDeliveryItem.model_validate(each)
    assert sorted(each["status_code"] for each in listed) == [0, 202, 500]
    assert [each["status"] == "OK" for each in listed] == [200 <= each["status_code"] < 300 for each in listed]


def test_a_redelivery_in_bad_weather_is_lost_too_and_listed_as_one(lab: Lab, github: GitHub) -> None:
    lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    lab.jobs()
    (lost,) = lab.deliveries()
    github.redeliver(delivery_id=lost["id"])
    again, _ = lab.deliveries()
    assert (again["guid"], again["redelivery"], again["status_code"]) == (lost["guid"], True, 0)

    lab.call("POST", "/_lab/webhooks", {"drop_rate": 0})
    github.redeliver(delivery_id=lost["id"])  # of any of its attempts

    eventually(lambda: len(lab.deliveries()) == 3)
    assert [each["status_code"] for each in lab.deliveries()] == [202, 0, 0]


def test_a_refused_webhook_is_not_sent_again(lab: Lab) -> None:
    lab.hooks.statuses.put(503)
    lab.jobs(count=2)

    eventually(lambda: lab.call("GET", "/_lab/stats")[1]["webhooks_in_flight"] == 0)

    assert len(lab.hooks.seen) == 2
    sent = [event["status"] for event in lab.log() if event["event"] == "webhook_sent"]
    assert sorted(sent) == [202, 503]


def test_doubled_webhooks_share_a_guid_and_paused_ones_come_later(lab: Lab) -> None:
    lab.call("POST", "/_lab/webhooks", {"duplicate_rate": 1, "paused": True})
    lab.jobs()
    assert not lab.hooks.seen

    lab.call("POST", "/_lab/webhooks", {"paused": False})

    first, second = eventually(lambda: lab.hooks.seen if len(lab.hooks.seen) == 2 else None)
    assert first.headers["x-github-delivery"] == second.headers["x-github-delivery"]


def test_the_log_holds_no_credential(lab: Lab, github: GitHub) -> None:
    jit = github.mint(installation_id=ORG_INSTALLATION, scope=ACME, name="r", labels=["linux"], runner_group_id=1)
    session = lab.start(jit.config)
    lab.jobs()
    lab.run(session, lab.next_job(session))

    text = lab.log_file.read_text()

    assert jit.config.reveal() not in text
    assert "ghs_" not in text
    assert lab.hooks.secret not in text
    numbers = [event["seq"] for event in lab.log()]  # read once: webhooks that are still on their way are added
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("sabotage", ["", "run-twice", "lose-job"])
def test_the_verdict_notices_what_the_lab_was_told_to_do_wrong(
    app_key: tuple[Secret, Path], tmp_path: Path, sabotage: str
) -> None:
    with running(app_key, tmp_path, sabotage=sabotage) as lab:
        github = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key)
        sessions = [start_runner(lab, github, f"r{number}") for number in range(2)]
        if sabotage == "run-twice":
            lab.jobs()
        elif sabotage == "lose-job":
            lab.jobs(count=3)
        else:
            lab.jobs(count=2)
        for session in sessions:
            lab.run(session, lab.next_job(session))
        github.close()
        verdict = judge(lab.log(), [])

    text = " ".join(verdict.problems)
    assert verdict.ok is (sabotage == "")
    assert ("was executed on 2 runners" in text) is (sabotage == "run-twice")
    assert ("is still queued" in text) is (sabotage == "lose-job")
