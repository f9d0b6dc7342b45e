"""Pages of the dashboard: their content, the rights that they need, and the headers of every answer."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from models import api_tokens
from models.db import epochs
from models.pools import pod_lists
from ostler.clock import utcnow
from rules.token_scopes import TokenScope
from tasks.pools.pod_lists import pack
from tests.database import Database
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import Client, make_settings
from tests.integration.web.polls.test_admission import seen
from tests.integration.web.ui.conftest import OWN, Dashboard
from tests.rows import insert_events
from web.app import build_app
from web.ui import pages, rendering
from web.ui.app import mount_ui

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\u2066txt.exe\x07"


class Parsed(HTMLParser):
    """The elements and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def values(self, attribute: str) -> list[str]:
        return [found for _, each in self.elements if (found := each.get(attribute)) is not None]


def text_of(dashboard: Dashboard, path: str = "/ui/", **how: Any) -> str:
    answer = dashboard.see(path, **how)
    assert answer.status_code == 200, answer.text
    return Parsed(answer.text).text


def status(**numbers: Any) -> str:
    return json.dumps({"conditions": [], **numbers})


def ready(dashboard: Dashboard, name: str = "small", **numbers: Any) -> int:
    """Insert a pool whose Pods were counted just now."""
    pool_id = dashboard.pool(name)
    dashboard.execute(
        "UPDATE pools SET status = CAST(:status AS jsonb), status_at = now(), status_checked_at = now() WHERE id = :id",
        status=status(**numbers),
        id=pool_id,
    )
    return pool_id


def confirm(dashboard: Dashboard) -> None:
    """Let Postgres be confirmed as new as the cluster."""
    with dashboard.engine.begin() as db:
        seen = epochs.read(db, now=utcnow())
        epochs.confirm(db, seen.epoch, trusted_for=timedelta(hours=1), now=utcnow())


PATHS = (
    "/ui/",
    "/ui/jobs",
    "/ui/jobs/100",
    "/ui/pools",
    "/ui/pools/1",
    "/ui/pods",
    "/ui/pods/pod-1",
    "/ui/accounts/7",
    "/ui/sweeps",
    "/ui/repairs",
    "/ui/changes",
    "/ui/waits",
    "/ui/usage",
    "/ui/login",
    "/ui/jobs/1",
    "/ui/nothing",
    "/ui/jobs?limit=x",
)


FOUND = tuple(path for path in PATHS if path not in {"/ui/jobs/1", "/ui/nothing", "/ui/jobs?limit=x"})


def furnish(dashboard: Dashboard) -> None:
    """Insert the rows of the pages in `FOUND`."""
    pool_id = ready(dashboard, warm=2, busy=1)
    assert pool_id == 1
    dashboard.account()
    dashboard.job(100, pool_id=1)
    add_claim(dashboard.engine, 1, 100, account_id=7)
    dashboard.execute("UPDATE runner_pods SET name = 'pod-1'")
    assert {path: dashboard.see(path).status_code for path in FOUND} == dict.fromkeys(FOUND, 200)


def test_every_answer_has_the_headers(dashboard: Dashboard) -> None:
    furnish(dashboard)
    answers = [dashboard.see(path) for path in PATHS]
    answers += [dashboard.see(cookie=""), dashboard.send_login("bad"), dashboard.send_login(dashboard.reader)]
    answers += [dashboard.see(path, cookie="") for path in ("/", "/ui")]
    answers += [dashboard.call("POST", "/ui/logout"), dashboard.call("POST", "/ui/logout", headers=OWN)]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == "no-store"
    for path in ("/ui/static/ui.css", "/ui/static/live.js"):
        answer = dashboard.see(path, cookie="")
        assert answer.status_code == 200
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_pages_have_no_inline_code_and_load_nothing_from_other_hosts(dashboard: Dashboard) -> None:
    furnish(dashboard)
    for path in PATHS:
        page = Parsed(dashboard.see(path).text)
        names = {name for _, each in page.elements for name in each}
        assert not {name for name in names if name.startswith("on") or name in {"style", "hx-on", "hx-vals"}}, path
        assert not {tag for tag, _ in page.elements} & {"style", "iframe", "object", "base"}, path
        assert all(each.get("src") for tag, each in page.elements if tag == "script"), path
        for loaded in (*page.values("src"), *page.values("hx-get"), *page.values("action")):
            assert loaded.startswith("/ui/"), (path, loaded)
        assert len(page.values("id")) == len(set(page.values("id"))), path


def test_pages_can_be_read_without_sight(dashboard: Dashboard) -> None:
    furnish(dashboard)
    for path in PATHS:
        page = Parsed(dashboard.see(path).text)
        tags = [tag for tag, _ in page.elements]
        assert ("html", {"lang": "en"}) in page.elements
        assert tags.count("h1") == tags.count("main") == tags.count("title") == 1, path
        assert tags.count("table") == tags.count("caption"), path
        assert all(each.get("scope") for tag, each in page.elements if tag == "th"), path
        labelled = set(page.values("aria-labelledby")) | set(page.values("for"))
        assert labelled <= set(page.values("id")), path
        assert "#main" in page.values("href"), path


def test_empty_installation_says_what_is_missing(dashboard: Dashboard) -> None:
    confirm(dashboard)
    shown = text_of(dashboard)
    assert "No problem detected." in shown
    assert "There is no pool yet." in shown
    assert "There is no account yet." in shown
    assert "No job began within the last hour." in shown
    assert "No job matches these filters." in text_of(dashboard, "/ui/jobs")
    assert "No job began from" in text_of(dashboard, "/ui/waits")
    assert "No sweep has repaired anything yet." in text_of(dashboard, "/ui/repairs")


def test_overview_shows_accounts_without_work_after_the_others(dashboard: Dashboard) -> None:
    dashboard.account(8, "idle")
    dashboard.account(9, "zeal")
    dashboard.job(100, account_id=9, pool_id=dashboard.pool())
    shown = text_of(dashboard)
    assert shown.index("zeal") < shown.index("idle")
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[8]))
    mine = text_of(dashboard, cookie=limited)
    assert ("idle" in mine, "zeal" in mine) == (True, False)


def test_overview_shows_the_age_of_the_queue_in_the_last_hour(dashboard: Dashboard) -> None:
    dashboard.account()
    assert 'points="0.00,100.00 1.67,100.00 ' in dashboard.see().text
    dashboard.job(100, pool_id=dashboard.pool(), queued_at=datetime.now(UTC).replace(second=0) - timedelta(minutes=31))
    page = dashboard.see().text
    assert "top: 3" in Parsed(page).text
    assert ' 100.00,0.00"' in page


def test_usage_shows_the_minutes_of_a_month_and_late_starts(dashboard: Dashboard) -> None:
    assert "No runner was used." in text_of(dashboard, "/ui/usage?month=2025-12")
    dashboard.account()
    pool_id = dashboard.pool("<b>fast</b>")
    dashboard.execute("UPDATE pools SET start_target = 30")
    dashboard.job(100, pool_id=pool_id, state="completed", queued_at=datetime(2026, 1, 31, 23, tzinfo=UTC))
    dashboard.execute("UPDATE jobs SET completed_at = '2026-02-01T01:00Z'")
    dashboard.execute("""
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
        VALUES (100, 'r', 7, 2000, 1, '2026-01-31T23:30Z', '2026-02-01T00:30Z')
    """)
    shown = text_of(dashboard, "/ui/usage?month=2026-01")
    assert "acme <b>fast</b> acme/shop 1 30.0 0.0 60.0" in shown
    assert "vCPU minutes acme 1 30.0 0.0 60.0" in shown
    assert "<b>fast</b> 30 s 1 0.0% 1 1 0 0 0 0" in shown
    assert "The stored jobs begin with those that ended on 2026-02-01." in shown
    other = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[8]))
    assert "No runner was used." in text_of(dashboard, "/ui/usage?month=2026-01", cookie=other)
    assert "No runner was used." in text_of(dashboard, "/ui/usage?month=2099-01")
    assert dashboard.see("/ui/usage?month=2026-13").status_code == 422


def test_overview_shows_queue_pods_and_budgets(dashboard: Dashboard) -> None:
    pool_id = ready(dashboard, starting=1, warm=2, reserved=3, busy=4, ending=5)
    dashboard.account(7, "acme", count=9)
    dashboard.job(100, pool_id=pool_id, queued_at=utcnow() - timedelta(seconds=3700))
    dashboard.job(101, pool_id=pool_id)
    shown = text_of(dashboard)
    assert "small runners 2 1 h 1 min 0 3 1 starting 2 warm 3 reserved 4 busy 5 other: 5 ending" in shown
    assert "acme allowed" not in shown
    assert "2 1 h 1 min 0 0 0 of 9 Pods 0 of 80 vCPU 0 of 80 GiB" in shown


def test_overview_says_what_an_account_waits_for_and_who_has_the_pods(dashboard: Dashboard) -> None:
    pool_id = ready(dashboard, busy=1)
    dashboard.execute("UPDATE pools SET replicas = 1")
    dashboard.account(7, "acme")
    dashboard.account(8, "globex")
    dashboard.job(100, pool_id=pool_id, account_id=8)
    add_claim(dashboard.engine, pool_id, 100, account_id=8)
    dashboard.job(200, pool_id=pool_id)
    page = Parsed(dashboard.see().text)
    assert "acme The job is the next job of its account in its pool." in page.text
    assert "1 of 1 Pods have a job: 1 of globex" in page.text
    assert "/ui/accounts/7" in page.values("href")
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[7], name="limited"))
    shown = text_of(dashboard, cookie=limited)
    assert ("acme The job is the next job" in shown, "globex" in shown) == (True, False)


def test_overview_names_what_needs_attention_first(dashboard: Dashboard) -> None:
    confirm(dashboard)
    degraded = {"type": "Degraded", "status": "True", "reason": "PodsDoNotStart", "message": "no node has room"}
    outdated = {"type": "RunnerOutdated", "status": "True", "reason": "VersionExpires", "message": "ends on Friday"}
    pool_id = ready(dashboard, conditions=[degraded, outdated])
    dashboard.pool("never-counted", labels=("other",))
    dashboard.account()
    dashboard.job(100, pool_id=pool_id, hold_reason="set_aside", hold_detail="x")
    dashboard.execute("INSERT INTO gates (upstream, closed_at, why) VALUES ('github', now(), '31 of 34 calls failed')")
    page = Parsed(dashboard.see().text)
    for each in (
        "Most calls to GitHub fail The autoscaler changes no pool: the gate of github has been tripped since",
        "31 of 34 calls failed",
        "What to do now Running jobs go on, and 1 queued job is held.",
        "fetch lost webhooks",
        "Pool small is degraded no node has room",
        "The runner of pool small is outdated ends on Friday",
        "The numbers of pool never-counted are old",
        "1 queued job is held",
    ):
        assert each in page.text
    assert page.text.index("Attention") < page.text.index("the gate of github") < page.text.index("Pools Queue")
    assert {f"#pool-{pool_id}", "/ui/jobs?state=queued&held=true"} <= set(page.values("href"))
    assert f"pool-{pool_id}" in page.values("id")
    assert "ostler restore" not in page.text
    dashboard.execute("UPDATE epochs SET older_since = now(), why = 'restored'")
    shown = text_of(dashboard)
    told = (
        "The fleet is frozen, as after a restore of the database No job is matched and no Pod is retired: Postgres is"
    )
    assert told in shown
    assert shown.index(told) < shown.index(
        "What to do now Running jobs go on, and webhooks are accepted. Run ostler res"
    )
    dashboard.execute("INSERT INTO gates (upstream, closed_at, why) VALUES ('kubernetes', now(), 'x')")
    assert "Most calls to GitHub and Kubernetes fail" in text_of(dashboard)


def test_overview_names_paused_and_late_sweeps(dashboard: Dashboard) -> None:
    confirm(dashboard)
    dashboard.execute(
        "INSERT INTO sweeps (name, began_at, succeeded_at, paused_at, paused_by) VALUES "
        "('resume', now(), now() - interval '1 hour', NULL, NULL), "
        "('redelivery', now() - interval '1 hour', now(), NULL, NULL), ('rematch', NULL, NULL, now(), 'ops')"
    )
    shown = text_of(dashboard)
    assert "Sweeps missed three periods resume" in shown
    assert "Sweeps are paused rematch" in shown
    assert "redelivery" not in shown
    dashboard.execute("UPDATE sweeps SET began_at = began_at - interval '2 minutes'")
    assert "No sweep runs A sweep last began at" in text_of(dashboard)


def test_overview_shows_waits_of_the_last_hour_by_pool(dashboard: Dashboard) -> None:
    pool_id = ready(dashboard)
    dashboard.account()
    minute = utcnow().replace(second=0, microsecond=0) - timedelta(minutes=5)
    began = minute + timedelta(seconds=10)
    dashboard.job(100, pool_id=pool_id, state="running", queued_at=minute - timedelta(seconds=90), started_at=began)
    dashboard.execute(
        "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at) "
        "VALUES ('r', 7, 100, 1, 1, :at)",
        at=began,
    )
    page = Parsed(dashboard.see().text)
    assert "small 1 1 min 40 s 1 min 40 s 1 min 40 s all jobs 1" in page.text
    assert "top: 1 min 30 s" in page.text  # the age at the full minute


def test_waits_of_yesterday_are_shown_by_pool(dashboard: Dashboard) -> None:
    pool_id = dashboard.pool()
    dashboard.account()
    today = utcnow().replace(hour=0, minute=0, second=0, microsecond=0)
    for job, began in ((100, today - timedelta(hours=1)), (101, today - timedelta(hours=25)), (102, today)):
        dashboard.job(job, pool_id=pool_id, state="running", queued_at=began - timedelta(seconds=90))
        dashboard.execute(
            "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at) "
            "VALUES (:name, 7, :job, 1, 1, :at)",
            name=f"r-{job}",
            job=job,
            at=began,
        )
    shown = text_of(dashboard, "/ui/waits?since=yesterday&by=pool")
    assert "small 1 1 min 30 s 1 min 30 s 1 min 30 s all jobs 1" in shown
    assert "small 1 1 min 30 s" in text_of(dashboard, "/ui/waits?since=today")
    assert "acme 3 1 min 30 s" in text_of(dashboard, "/ui/waits?since=last+7+days&by=account")
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[8]))
    assert "No job began from" in text_of(dashboard, "/ui/waits?since=today", cookie=limited)
    assert dashboard.see("/ui/waits?since=x").status_code == 422
    assert "/ui/waits" in Parsed(dashboard.see().text).values("href")


def test_waits_name_the_jobs_that_have_not_begun(dashboard: Dashboard) -> None:
    pool_id = dashboard.pool("gpu")
    dashboard.account(7, "acme")
    dashboard.account(8, "globex")
    assert "still waits." in text_of(dashboard, "/ui/waits?since=last%207%20days")
    yesterday = utcnow().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(hours=2)
    dashboard.job(100, pool_id=pool_id, queued_at=yesterday)
    dashboard.job(101, pool_id=pool_id, account_id=8, queued_at=yesterday, hold_reason="mint_backoff")
    dashboard.job(102, pool_id=pool_id, state="claimed")
    assert "Oldest wait gpu 2 1" in text_of(dashboard, "/ui/waits")
    assert "Oldest wait acme 2 0" in text_of(dashboard, "/ui/waits?since=last%20hour&by=account")
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[8]))
    assert "Oldest wait globex 1 1" in text_of(dashboard, "/ui/waits?since=today&by=account", cookie=limited)


def test_live_part_of_a_page_has_a_stream_of_the_same_page(dashboard: Dashboard) -> None:
    page = Parsed(dashboard.see("/ui/jobs?state=queued&repository=a%2Fb").text)
    assert page.values("data-stream") == ["/ui/jobs?state=queued&repository=a%2Fb"]


def test_refresh_can_be_stopped_and_continued(dashboard: Dashboard) -> None:
    dashboard.account()
    dashboard.job(100)
    for path in ("/ui/", "/ui/jobs", "/ui/jobs?state=queued", "/ui/jobs/100"):
        live = Parsed(dashboard.see(path).text)
        (switch,) = (each["href"] for _, each in live.elements if each.get("id") == "switch")
        assert switch is not None
        stopped = Parsed(dashboard.see(switch).text)
        assert (live.values("data-stream"), stopped.values("data-stream")) == ([path], []), path
        assert path in stopped.values("href")


def test_jobs_are_filtered(dashboard: Dashboard) -> None:
    small, large = dashboard.pool("small"), dashboard.pool("large", labels=("large",))
    dashboard.account(7, "acme")
    dashboard.account(8, "globex")
    dashboard.job(100, pool_id=small)
    dashboard.job(101, pool_id=large, state="claimed")
    dashboard.job(102, pool_id=small, account_id=8, repository="globex/app")
    dashboard.job(103, hold_reason="no_pool", hold_detail="x")

    def found(query: str) -> list[int]:
        page = dashboard.see(f"/ui/jobs?{query}").text
        return [int(each) for each in re.findall(r'href="/ui/jobs/(\d+)"', page)]

    assert found("") == found("state=&account_id=&pool_id=&repository=&held=") == [103, 102, 101, 100]
    assert found("state=claimed") == [101]
    assert found("account_id=8") == found("repository=globex%2Fapp") == [102]
    assert found(f"pool_id={small}&state=queued") == [102, 100]
    assert found("held=true") == [103]
    dashboard.execute("UPDATE jobs SET workflow_name = 'CI', labels = '{GPU,linux}' WHERE id = 102")
    assert found("workflow=CI") == found("label=gpu") == found("label=gpu&workflow=CI&state=queued") == [102]
    assert found("label=gp") == found("workflow=ci") == []
    assert found("pool_id=999&account_id=999") == []
    page = Parsed(dashboard.see(f"/ui/jobs?state=queued&pool_id={small}").text)
    assert [
        each["value"] for tag, each in page.elements if tag == "option" and "selected" in each and "value" in each
    ] == [str(small)]


def test_jobs_have_pages_that_repeat_the_filters(dashboard: Dashboard) -> None:
    dashboard.account()
    for number in range(1, 6):
        dashboard.job(number)
    seen, path = [], "/ui/jobs?state=queued&limit=2"
    for _ in range(3):
        page = dashboard.see(path).text
        seen.append([int(each) for each in re.findall(r'href="/ui/jobs/(\d+)"', page)])
        following = [each for each in Parsed(page).values("href") if each.startswith("?")]
        path = "/ui/jobs" + following[0] if following else ""
    assert seen == [[5, 4], [3, 2], [1]]
    assert path == ""


@pytest.mark.parametrize(
    "query", ["state=x", "account_id=0", "limit=1000", "cursor=abc", "nothing=1", "repository=%00"]
)
def test_wrong_filter_is_named_and_not_repeated(dashboard: Dashboard, query: str) -> None:
    answer = dashboard.see(f"/ui/jobs?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in Parsed(answer.text).text.lower()


def test_job_shows_its_reason_its_time_and_its_events(dashboard: Dashboard) -> None:
    pool_id = dashboard.pool()
    dashboard.account(count=0)
    dashboard.job(
        100, pool_id=pool_id, hold_reason="budget_zero", hold_detail="x", queued_at=utcnow() - timedelta(hours=2)
    )
    dashboard.execute(
        "INSERT INTO job_events (job_id, at, transition, to_state, who, why) "
        "VALUES (100, now() - interval '2 hours', 'job_add', 'queued', 'webhook', 'a reason')"
    )
    page = Parsed(dashboard.see("/ui/jobs/100").text)
    assert "The budget of account acme allows no job at all." in page.text
    assert "What to do: Raise the budget" in page.text
    assert "queued for 2 h until now" in page.text
    assert "webhook a reason" in page.text
    assert "The job has had no claim." in page.text
    assert "https://github.com/acme/shop/actions/runs/1/job/100" in page.values("href")
    assert [each["class"] for tag, each in page.elements if tag == "rect"] == ["queued"]


def test_timeline_names_the_webhook_and_the_task_of_a_transition(dashboard: Dashboard) -> None:
    pool_id = ready(dashboard)
    dashboard.account()
    dashboard.job(100, pool_id=pool_id)
    claim = add_claim(dashboard.engine, pool_id, 100, account_id=7)
    insert_events(dashboard.engine, job_id=100, claim_id=claim)
    shown = text_of(dashboard, "/ui/jobs/100")
    assert "webhook delivery guid-1" in shown
    assert "mint task task-1, attempt 2" in shown
    (pod,) = dashboard.execute("SELECT uid FROM runner_pods")
    assert "mint task task-1, attempt 2" in text_of(dashboard, f"/ui/pods/{pod.uid}")


def test_job_shows_the_check_of_each_step(dashboard: Dashboard) -> None:
    pool_id = ready(dashboard, starting=2)
    dashboard.account()
    dashboard.job(100, pool_id=pool_id, queued_at=utcnow() - timedelta(minutes=3))
    shown = text_of(dashboard, "/ui/jobs/100")
    assert "environment passed GitHub has queued the job." in shown
    assert "account passed Account acme is allowed." in shown
    assert "pod waits No Pod of pool small is warm: 0 of 3 Pods have a job" in shown
    assert "2 Pods start now" in shown
    assert "delivery open" in shown
    assert "Usual wait in this pool: Unknown, because no jobs of the last hour can be compared." in shown
    dashboard.execute("UPDATE jobs SET state = 'running'")
    assert "Checks" not in text_of(dashboard, "/ui/jobs/100")


def test_pool_shows_its_problem_its_pods_and_its_decision(dashboard: Dashboard) -> None:
    degraded = {
        "type": "Degraded",
        "status": "True",
        "reason": "PodsDoNotStart",
        "message": "no node has room",
        "lastTransitionTime": "2026-11-29T12:00:00Z",
    }
    pool_id = ready(dashboard, starting=1, warm=2, conditions=[degraded])
    dashboard.account()
    dashboard.job(100, pool_id=pool_id)
    add_claim(dashboard.engine, pool_id, 100, account_id=7)
    dashboard.job(101, pool_id=pool_id)
    dashboard.execute(
        'UPDATE pools SET autoscaled = true, max_replicas = 9, scaling = \'{"verdict": "up", "why": "3 = 3"}\''
    )
    page = Parsed(dashboard.see(f"/ui/pools/{pool_id}").text)
    for each in (
        "degraded",
        "What is in its way PodsDoNotStart: no node has room",
        "1 starting 2 warm",
        "1 queued, 0 held",
        "autoscaler passed up: 3 = 3 postgres",
        "Degraded True PodsDoNotStart 2026-11-29 12:00:00 no node has room",
        "delivered 100",
    ):
        assert each in page.text
    assert {"/ui/jobs/100", f"/ui/jobs?pool_id={pool_id}&state=queued&held=false"} <= set(page.values("href"))
    assert "No reconcile has counted the Pods" in text_of(
        dashboard, f"/ui/pools/{dashboard.pool('new', labels=('x',))}"
    )


def test_pools_show_images_versions_and_the_pods_that_a_deploy_meets(dashboard: Dashboard) -> None:
    assert "There is no pool yet." in text_of(dashboard, "/ui/pools")
    confirm(dashboard)
    outdated = {"type": "RunnerOutdated", "status": "True", "reason": "VersionExpires", "message": "ends on Friday"}
    small = ready(dashboard, warm=2, starting=1, reserved=1, busy=4, ending=1, stale=3, conditions=[outdated])
    dashboard.pool("tagged", labels=("other",))
    dashboard.execute("UPDATE pools SET image = 'ghcr.io/actions/actions-runner:2.330.0' WHERE name = 'tagged'")
    dashboard.execute("UPDATE pools SET image = 'registry.example/ci:7', template_hash = 'h' WHERE id = :id", id=small)
    dashboard.execute(
        "INSERT INTO runner_versions (pool_id, version, template_hash, seen_at, ends_at) "
        "VALUES (:id, '2.328.0', 'h', now(), '2026-12-24'), (:id, '2.300.0', 'older', now(), '2026-01-01')",
        id=small,
    )
    page = Parsed(dashboard.see("/ui/pools").text)
    for each in (
        "5 Pods have a job.",
        "3 Pods are starting or warm.",
        "3 Pods were made from an older template",
        "small registry.example/ci:7 2.328.0 ends on Friday 2026-12-24 3 5 3",
        "tagged ghcr.io/actions/actions-runner:2.330.0 2.330.0",
    ):
        assert each in page.text
    assert f"/ui/pools/{small}" in page.values("href")
    assert "2.300.0" not in page.text
    dashboard.execute("INSERT INTO gates (upstream, closed_at, why) VALUES ('github', now(), '31 of 34 calls failed')")
    assert "Wait: the autoscaler changes no pool: the gate of github" in text_of(dashboard, "/ui/pools")
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[7]))
    assert dashboard.see("/ui/pools", cookie=limited).status_code == 403


def test_pods_are_listed_and_filtered(dashboard: Dashboard) -> None:
    assert "No Pod matches these filters." in text_of(dashboard, "/ui/pods")
    pool_id = ready(dashboard, warm=2)
    dashboard.account()
    for job in (100, 101):
        dashboard.job(job, pool_id=pool_id)
        add_claim(dashboard.engine, pool_id, job, account_id=7)
    (ours, other) = dashboard.execute("SELECT id, uid, name FROM runner_pods ORDER BY id")
    dashboard.execute("UPDATE claims SET ended_at = now(), state = 'ended', jit = NULL WHERE job_id = 101")
    dashboard.execute("UPDATE runner_pods SET runner_exit_code = 137, gone_at = now() WHERE id = :id", id=other.id)
    page = Parsed(dashboard.see("/ui/pods").text)
    assert f"{other.name} small gone" in page.text
    assert f"{ours.name} small delivered 100" in page.text
    assert {f"/ui/pods/{ours.uid}", f"/ui/pools/{pool_id}", "/ui/jobs/100"} <= set(page.values("href"))
    for query, shown in (
        ("gone=false", [True, False]),
        (f"failed=true&pool_id={pool_id}", [False, True]),
        ("pool_id=99", [False, False]),
    ):
        found = Parsed(dashboard.see(f"/ui/pods?{query}").text).values("href")
        assert [f"/ui/pods/{each.uid}" in found for each in (ours, other)] == shown, query
    first = Parsed(dashboard.see("/ui/pods?limit=1&sort=oldest").text)
    (further,) = (each for each in first.values("href") if "cursor=" in each)
    assert f"/ui/pods/{other.uid}" in Parsed(dashboard.see(f"/ui/pods{further}").text).values("href")
    assert f"/ui/pods?pool_id={pool_id}&gone=false" in Parsed(dashboard.see().text).values("href")
    assert f"/ui/pods?pool_id={pool_id}&failed=true" in Parsed(dashboard.see(f"/ui/pools/{pool_id}").text).values(
        "href"
    )


def test_pod_shows_how_it_ended(dashboard: Dashboard) -> None:
    pool_id = dashboard.pool()
    dashboard.account()
    dashboard.job(100, pool_id=pool_id)
    add_claim(dashboard.engine, pool_id, 100, account_id=7, runner="small-1-r")
    dashboard.execute("UPDATE runner_pods SET exit_reason = 'OOMKilled', runner_exit_code = 137, terminal_at = now()")
    (name,) = (row.name for row in dashboard.execute("SELECT name FROM runner_pods"))
    page = Parsed(dashboard.see(f"/ui/pods/{name}").text)
    assert "killed for lack of memory" in page.text
    assert "containers waits runner ended with exit code 137 pod" in page.text
    assert {"/ui/jobs/100", f"/ui/pools/{pool_id}"} <= set(page.values("href"))


def test_failed_pod_is_reached_from_the_overview_and_from_its_pool(dashboard: Dashboard) -> None:
    pool_id, other = ready(dashboard), ready(dashboard, "other")
    dashboard.account()
    for job, of_pool in ((100, pool_id), (101, other)):
        dashboard.job(job, pool_id=of_pool)
        add_claim(dashboard.engine, of_pool, job, account_id=7)
    assert "Pod failed" not in text_of(dashboard)
    dashboard.execute(
        "UPDATE runner_pods SET exit_reason = 'OOMKilled', gone_at = now() WHERE pool_id = :id", id=pool_id
    )
    overview, pool = Parsed(dashboard.see().text), Parsed(dashboard.see(f"/ui/pools/{pool_id}").text)
    assert "1 Pod failed in the last hour" in overview.text
    ways = ("/ui/pods?failed=true", f"/ui/pods?pool_id={pool_id}&failed=true")
    assert ways[0] in overview.values("href")
    assert ways[1] in pool.values("href")
    (uid,) = (row.uid for row in dashboard.execute("SELECT uid FROM runner_pods WHERE pool_id = :id", id=pool_id))
    for way in ways:
        page = Parsed(dashboard.see(way).text)
        assert [each for each in page.values("href") if each.startswith("/ui/pods/")] == [f"/ui/pods/{uid}"]
        assert "it was killed for lack of memory" in page.text
    assert "No Pod matches these filters." in text_of(dashboard, f"/ui/pods?pool_id={other}&failed=true")
    dashboard.execute("UPDATE runner_pods SET gone_at = now() - interval '2 hours'")
    assert "Pod failed" not in text_of(dashboard)


def test_account_shows_its_budget_and_its_queue(dashboard: Dashboard) -> None:
    dashboard.account(count=9)
    dashboard.job(100, hold_reason="unknown_account")
    dashboard.execute("UPDATE accounts SET access = 'held'")
    page = Parsed(dashboard.see("/ui/accounts/7").text)
    assert "0 of 9 Pods" in page.text
    assert "0 queued, 1 held" in page.text
    assert "ostler account allow acme" in page.text
    assert "/ui/jobs?account_id=7&state=queued&held=true" in page.values("href")


def test_nodes_show_lost_pods_and_pools_without_room(dashboard: Dashboard) -> None:
    assert "No node with a runner Pod is known." in text_of(dashboard, "/ui/nodes")
    pool_id = ready(dashboard)
    dashboard.account()
    dashboard.pool("alone", labels=("x",))
    for job in (100, 101, 102):
        dashboard.job(job, pool_id=pool_id)
        add_claim(dashboard.engine, pool_id, job, account_id=7)
    rows = dashboard.execute("SELECT uid, name FROM runner_pods ORDER BY id")
    pods = [seen(row.name, row.uid, node=node) for row, node in zip(rows, ("n1", "n2", "n2"), strict=True)]
    with dashboard.engine.begin() as db:
        pod_lists.store(db, namespace="runners", shares={"small": pack(pods)}, taken_at=utcnow(), whole_at=utcnow())
    dashboard.execute("UPDATE runner_pods SET node_gone_at = '2026-01-01T12:00Z' WHERE uid = :uid", uid=rows[2].uid)
    dashboard.execute(
        "UPDATE pools SET start_trouble = 'unschedulable', start_detail = '0/3 nodes' WHERE id = :id", id=pool_id
    )
    page = Parsed(dashboard.see("/ui/nodes").text)
    assert "No node accepts the Pods of pool small 0/3 nodes" in page.text
    assert "n2 lost 2 2 1 2026-01-01 12:00:00 n1 ok 1 1 0" in page.text
    assert "not known, because no shared list has their Pods: alone." in page.text
    overview = Parsed(dashboard.see().text)
    assert "1 Pod is on a gone node" in overview.text
    assert "/ui/nodes" in overview.values("href")


def test_sweeps_show_their_pauses_and_their_repairs(dashboard: Dashboard) -> None:
    dashboard.execute(
        "INSERT INTO sweeps (name, paused_at, paused_by, paused_why) VALUES ('rematch', now(), 'ops', 'we restore')"
    )
    dashboard.execute(
        "INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by) "
        "VALUES ('stale_claims', 1, now(), 'release', 'x', '{}', false, false, 'nothing', 'verified', now())"
    )
    page = Parsed(dashboard.see("/ui/sweeps").text)
    assert "rematch paused" in page.text
    assert "Paused by ops 0.0 s ago: we restore" in page.text
    assert "1 verified" in page.text
    start = "/ui/repairs?sweep=stale_claims&outcome=verified&dry=false&since="
    (link,) = (each for each in page.values("href") if each.startswith(start))
    assert "release" in text_of(dashboard, link)


@pytest.mark.parametrize("thing", ["pools", "accounts"])
@pytest.mark.parametrize("given", ["999", "0", "-1", "x", "9" * 19, "9" * 5000, "%D9%A1", "1/", "%0A"])
def test_pool_or_account_that_does_not_exist_is_not_found(dashboard: Dashboard, thing: str, given: str) -> None:
    assert dashboard.see(f"/ui/{thing}/{given}").status_code == 404


@pytest.mark.parametrize("name", ["missing", "a%00b", "%0A", "x" * 5000, "%F0%9F%90%8E"])
def test_pod_that_does_not_exist_is_not_found(dashboard: Dashboard, name: str) -> None:
    assert dashboard.see(f"/ui/pods/{name}").status_code == 404


@pytest.mark.parametrize("job", ["1", "0", "-1", "x", "9" * 19, "9" * 5000, "%D9%A1", "1/", "%0A"])
def test_job_that_does_not_exist_is_not_found(dashboard: Dashboard, job: str) -> None:
    assert dashboard.see(f"/ui/jobs/{job}").status_code == 404


def test_hostile_names_are_shown_as_text(dashboard: Dashboard) -> None:
    dashboard.account(7, "acme")
    pool_id = dashboard.pool()
    dashboard.job(
        100,
        pool_id=pool_id,
        name=HOSTILE,
        workflow_name=HOSTILE,
        head_branch=HOSTILE,
        labels=[HOSTILE],
        repository=f"acme/{HOSTILE}",
        hold_reason="set_aside",
        hold_detail=HOSTILE,
    )
    dashboard.execute("UPDATE accounts SET login = :name", name=HOSTILE)
    condition = {"type": "Degraded", "status": "True", "reason": "x", "message": HOSTILE, "lastTransitionTime": HOSTILE}
    dashboard.execute(
        "UPDATE pools SET image = :name, status = CAST(:status AS jsonb), status_at = now(),"
        " scaling = jsonb_build_object('verdict', 'up', 'why', CAST(:name AS text)), autoscaled = true",
        name=HOSTILE,
        status=status(conditions=[condition]),
    )
    add_claim(dashboard.engine, pool_id, 100, account_id=7, runner=HOSTILE)
    dashboard.execute(
        "UPDATE runner_pods SET event_message = :name, event_by = :name, event_reason = :name, exit_reason = :name",
        name=HOSTILE,
    )
    dashboard.execute("UPDATE claims SET last_error = :name, release_reason = :name", name=HOSTILE)
    dashboard.execute(
        "INSERT INTO sweeps (name, paused_at, paused_by, paused_why) VALUES ('rematch', now(), :name, :name)",
        name=HOSTILE,
    )
    dashboard.execute(
        "INSERT INTO changes (at, kind, name, object_id, who, via, old, new, why) SELECT now(), kind, :name, 1, :name, "
        "'API', '{}', jsonb_build_object('x', CAST(:name AS text)), :name FROM unnest(ARRAY['pool', 'token']) k (kind)",
        name=HOSTILE,
    )
    (pod,) = (row.uid for row in dashboard.execute("SELECT uid FROM runner_pods"))
    paths = ("/ui/", "/ui/jobs", "/ui/jobs/100", f"/ui/pools/{pool_id}", f"/ui/pods/{pod}", "/ui/accounts/7")
    for path in (*paths, "/ui/sweeps", "/ui/changes"):
        answer = dashboard.see(path).text
        page = Parsed(answer)
        assert [each.get("src") for tag, each in page.elements if tag in {"script", "img"}] == page.values("src")
        assert all(each.startswith("/ui/static/") for each in page.values("src"))
        assert not re.search("[\u202e\u2066\x07]", answer), path
        assert "alert(1)" in page.text, path


def test_long_names_are_cut(dashboard: Dashboard) -> None:
    dashboard.account()
    dashboard.job(100, name="n" * 10_000, workflow_name="w" * 10_000, head_branch="b" * 10_000, labels=["l" * 10_000])
    for path in ("/ui/jobs", "/ui/jobs/100"):
        page = dashboard.see(path).text
        assert max(len(each) for each in re.findall(r"[nwbl]{20,}", page)) <= 400
        assert "n…" in page


class TestLimitedToken:
    """A reader whose token is limited to one of two accounts."""

    @pytest.fixture
    def reader(self, dashboard: Dashboard) -> str:
        pool_id = ready(dashboard)
        dashboard.account(7, "acme")
        dashboard.account(8, "globex")
        dashboard.job(100, pool_id=pool_id)
        dashboard.job(200, pool_id=pool_id, account_id=8, repository="globex/app")
        dashboard.pool("secret-pool", labels=("secret",))
        return dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[7]))

    def test_overview_shows_only_the_accounts_of_the_token(self, dashboard: Dashboard, reader: str) -> None:
        shown = text_of(dashboard, cookie=reader)
        assert "Overview of your accounts" in shown
        assert ("acme" in shown, "globex" in shown, "secret-pool" in shown) == (True, False, False)

    def test_jobs_of_other_accounts_are_not_shown(self, dashboard: Dashboard, reader: str) -> None:
        for query in ("", "?account_id=8", "?repository=globex/app", "?state=queued"):
            shown = dashboard.see(f"/ui/jobs{query}", cookie=reader).text
            assert "/ui/jobs/200" not in shown
            assert "globex</option>" not in shown
            assert "secret-pool" not in shown
        assert dashboard.see("/ui/jobs/100", cookie=reader).status_code == 200

    def test_job_of_another_account_looks_like_no_job(self, dashboard: Dashboard, reader: str) -> None:
        hidden, absent = (dashboard.see(f"/ui/jobs/{each}", cookie=reader) for each in (200, 201))
        assert (hidden.status_code, hidden.text) == (404, absent.text)

    def test_pod_or_account_of_others_looks_like_none(self, dashboard: Dashboard, reader: str) -> None:
        (pool_id,) = (row.id for row in dashboard.execute("SELECT id FROM pools WHERE name = 'small'"))
        for job, account in ((100, 7), (200, 8)):
            add_claim(dashboard.engine, pool_id, job, account_id=account)
        names = {
            row.account_id: row.name
            for row in dashboard.execute(
                "SELECT c.account_id, p.name FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id"
            )
        }
        for thing, own, other in (("pods", names[7], names[8]), ("accounts", 7, 8)):
            seen, hidden, absent = (
                dashboard.see(f"/ui/{thing}/{each}", cookie=reader) for each in (own, other, "987654321")
            )
            assert seen.status_code == 200
            assert f'href="/ui/pools/{pool_id}"' not in seen.text
            assert (hidden.status_code, hidden.text) == (404, absent.text)

    @pytest.mark.parametrize(
        "path",
        [
            "/ui/repairs",
            "/ui/changes",
            "/ui/sweeps",
            "/ui/nodes",
            "/ui/pools",
            "/ui/pools/1",
            "/ui/pods",
            "/ui/pools/987654321",
        ],
    )
    def test_page_of_the_whole_fleet_says_why_it_is_refused(self, dashboard: Dashboard, reader: str, path: str) -> None:
        answer = dashboard.see(path, cookie=reader)
        assert answer.status_code == 403
        assert "your token is limited to some accounts" in answer.text
        assert 'href="/ui/repairs"' not in answer.text
        assert 'href="/ui/sweeps"' not in answer.text


def test_repairs_are_listed_with_their_subjects(dashboard: Dashboard) -> None:
    dashboard.execute(
        """
        INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, job_id, expects, outcome, verify_by,
                             note)
        VALUES ('stale_claims', 1, now(), 'release', 'never delivered', '{}', false, false, 100, 'nothing', 'failed',
                now(), 'a note')
        """
    )
    shown = text_of(dashboard, "/ui/repairs")
    assert "stale_claims release job 100 failed never delivered a note" in shown
    assert "No repair matches these filters." in text_of(dashboard, "/ui/repairs?sweep=missing_pods")


def test_repairs_of_today_are_counted_and_deletions_are_selected(dashboard: Dashboard) -> None:
    for days, kills in ((0, True), (0, False), (2, True)):
        dashboard.execute(
            "INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by) "
            "VALUES ('stale_claims', 1, :at, 'release', 'never delivered', '{}', :kills, false, 'nothing', "
            "'verified', now())",
            at=utcnow() - timedelta(days=days),
            kills=kills,
        )
    shown = text_of(dashboard, "/ui/repairs?day=today")
    assert "stale_claims release verified no 1" in shown
    assert "stale_claims release verified yes 1" in shown
    assert shown.count("never delivered") == 2
    assert "moved_on : nothing was done" in shown
    deleted = text_of(dashboard, "/ui/repairs?day=today&kills=true")
    assert (deleted.count("never delivered"), "Numbers since" in deleted) == (1, False)
    assert text_of(dashboard, "/ui/repairs").count("never delivered") == 3
    assert dashboard.see("/ui/repairs?day=tomorrow").status_code == 422


def test_changes_are_listed_and_filtered(dashboard: Dashboard) -> None:
    dashboard.execute(
        "INSERT INTO changes (at, kind, name, object_id, who, via, old, new) VALUES (now(), 'pool', 'small', 4, "
        "'kubectl-edit', 'cluster', '{\"paused\": false}', '{\"paused\": true}')"
    )
    assert "pool small kubectl-edit cluster paused: no → yes" in text_of(dashboard, "/ui/changes?kind=pool&object=4")
    assert "No change is recorded with these filters." in text_of(dashboard, "/ui/changes?object=5")


def test_page_says_that_postgres_is_away_and_tries_again(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("SELECT", {}, Exception("password of postgres"))

    for each in ("web.ui.pages.read_overview", "models.api_tokens.verify_again"):
        with monkeypatch.context() as context:
            context.setattr(each, fail)
            answer = dashboard.see()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "Postgres failed or did not answer" in answer.text
        assert "password" not in answer.text
        assert Parsed(answer.text).values("data-again") == ["5"]
    monkeypatch.setattr(api_tokens, "verify", fail)
    answer = dashboard.send_login(dashboard.reader)
    assert (answer.status_code, Parsed(answer.text).values("data-again")) == (503, [])


def test_unexpected_error_is_a_page_that_tells_nothing(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a secret value")

    monkeypatch.setattr("web.ui.pages.read_overview", fail)
    answer = dashboard.see()
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert "The log of web has the details." in answer.text


def test_limited_token_does_not_read_who_holds_an_account(dashboard: Dashboard) -> None:
    dashboard.account(7, "acme")
    dashboard.job(100)
    dashboard.execute("UPDATE accounts SET access = 'held'")
    dashboard.execute(
        "INSERT INTO changes (at, kind, name, object_id, who, via, old, new) VALUES (now(), 'account', 'acme', 7, "
        "'alice', 'shell', '{\"access\": \"allowed\"}', '{\"access\": \"held\"}')"
    )
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[7], name="limited"))
    assert "held by alice" in text_of(dashboard, "/ui/accounts/7")
    shown = text_of(dashboard, "/ui/accounts/7", cookie=limited)
    assert ("held by an operator since" in shown, "alice" in shown) == (True, False)
    assert "acme held The account is held by alice" in text_of(dashboard)
    shown = text_of(dashboard, cookie=limited)
    assert ("held by an operator since" in shown, "alice" in shown) == (True, False)


@pytest.mark.parametrize(("path", "most"), [("/ui/jobs", 6), ("/ui/jobs/100", 20), ("/ui/pools/{}", 16)])
def test_page_is_read_by_few_statements(dashboard: Dashboard, path: str, most: int) -> None:
    dashboard.account()
    dashboard.job(100, pool_id=(pool_id := dashboard.pool()))
    found: list[str] = []
    event.listen(dashboard.engine, "before_cursor_execute", lambda *given: found.append(given[2]))
    assert dashboard.see(path.format(pool_id)).status_code == 200
    # A connection prepares a statement at its first use.
    assert len([each for each in found if "PREPARE" not in each]) <= most, found


def test_templates_are_compiled_when_the_process_starts(dashboard: Dashboard) -> None:
    cache = rendering._environment.cache
    assert cache is not None
    cache.clear()
    mount_ui(FastAPI(), dashboard.settings, database=Mock(), streams=Mock(), publisher=Mock())
    assert {name for _, name in cache} == {each.name for each in (files("web.ui") / "templates").iterdir()}


def test_readers_of_the_same_accounts_share_one_read(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("SHARED_FOR", "WAITS_SHARED_FOR"):
        monkeypatch.setattr(pages, each, timedelta(minutes=1))
    dashboard.account(7, "acme")
    dashboard.account(8, "globex")
    dashboard.job(100)
    limited = [dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[account])) for account in (7, 8)]
    before = text_of(dashboard)
    assert ["acme" in text_of(dashboard, cookie=cookie) for cookie in limited] == [True, False]
    dashboard.job(101)
    assert text_of(dashboard) == before
    monkeypatch.setattr(pages, "SHARED_FOR", timedelta())
    assert text_of(dashboard) != before


@pytest.mark.parametrize("on", [True, False])
def test_setting_switches_the_dashboard(database: Database, on: bool) -> None:
    client = Client(build_app(make_settings(database).model_copy(update={"web_ui": on})))
    found = [client.call("GET", path).status_code for path in ("/", "/ui", "/ui/login")]
    client.close()
    assert found == ([303, 303, 200] if on else [404, 404, 404])
