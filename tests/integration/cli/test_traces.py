"""`ostler traces` sends the spans of finished jobs to a collector, with the names of strangers as plain texts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cli import traces
from models.browse.traces import Finished, Span
from ostler.clock import utcnow
from tests.integration.cli.test_operator import Operator, operator

__all__ = ["operator"]

HOSTILE = "build\x1b[31m\u202e<script>" + "x" * 10_000


@dataclass
class Collector:
    """A receiver of OTLP over HTTP."""

    status: int = 200
    got: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Return the spans of all requests."""
        return [
            span
            for _, _, body in self.got
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    received = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.got.append((self.path, self.headers["Content-Type"], body))
            self.send_response(received.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ended(operator: Operator) -> Operator:
    """Job 11 was queued for 40 s, and ended 5 minutes ago. Its claim was minted after 2 s."""
    operator.execute(
        "UPDATE jobs SET state = 'completed', conclusion = 'failure', queued_at = now() - interval '10 min', "
        "completed_at = now() - interval '5 min', name = :name WHERE id = 11",
        name=HOSTILE,
    )
    operator.execute("""
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT id, 'runners', 'p-1', 'p-1', 'p-1', 'h', now() FROM pools
    """)
    operator.execute("""
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                            created_at, changed_at, ended_at, end_reason)
        SELECT 'job', 11, id, uid, pool_id, 77, 'orgs/acme', 1, 1, 'ended', now() - interval '9 min', now(),
               now() - interval '5 min', 'completed' FROM runner_pods WHERE name = 'p-1'
    """)
    operator.execute("UPDATE claims SET job_id = NULL WHERE pod_uid <> 'p-1'")
    operator.execute("DELETE FROM job_events; DELETE FROM claim_events")
    operator.execute("""
        INSERT INTO job_events (job_id, at, transition, from_state, to_state, who, why, latency_ms) VALUES
            (11, now() - interval '10 min', 'job_seen', NULL, 'queued', 'web', 'queued', NULL),
            (11, now() - interval '9 min', 'job_claim', 'queued', 'claimed', 'dispatch', 'matched', 40000),
            (11, now() - interval '5 min', 'job_finish', 'running', 'completed', 'web', 'completed', 1000)
    """)
    operator.execute("""
        INSERT INTO claim_events (claim_id, at, transition, from_state, to_state, who, why, latency_ms)
        SELECT id, now() - interval '8 min', 'mint', 'claimed', 'minted', 'mint', 'minted', 2000 FROM claims
        WHERE pod_uid = 'p-1'
    """)
    return operator


def test_a_finished_job_is_one_trace_of_its_states_and_claims(ended: Operator, collector: Collector) -> None:
    done = ended.run("traces", "--to", collector.url)
    assert (done.returncode, done.stdout) == (0, "exported 1 jobs\n"), done.stderr
    ((path, kind, body),) = collector.got
    assert (path, kind) == ("/v1/traces", "application/json")
    (service,) = body["resourceSpans"][0]["resource"]["attributes"]
    assert service == {"key": "service.name", "value": {"stringValue": "ostler"}}
    by_name = {span["name"]: span for span in collector.spans}
    assert by_name.keys() == {"job", "job queued", "job running", "claim", "claim claimed"}
    root, claim = by_name["job"], by_name["claim"]
    assert {span["traceId"] for span in collector.spans} == {root["traceId"]}
    assert (len(root["traceId"]), len(root["spanId"])) == (32, 16)
    assert len({span["spanId"] for span in collector.spans}) == 5
    assert "parentSpanId" not in root
    assert {span["parentSpanId"] for span in collector.spans if span is not root} == {root["spanId"], claim["spanId"]}
    assert by_name["claim claimed"]["parentSpanId"] == claim["spanId"]
    queued = by_name["job queued"]
    assert int(queued["endTimeUnixNano"]) - int(queued["startTimeUnixNano"]) == 40 * 10**9
    assert (root["status"], claim["status"]) == ({"code": 2}, {})


def test_names_of_strangers_are_cut_and_have_no_controls(ended: Operator, collector: Collector) -> None:
    ended.run("traces", "--to", collector.url)
    (name,) = (
        each["value"]["stringValue"]
        for span in collector.spans
        for each in span["attributes"]
        if each["key"] == "ostler.job.name"
    )
    assert len(name) == 256
    assert name.startswith("build [31m <script>")


def test_a_second_export_has_the_same_ids(ended: Operator, collector: Collector) -> None:
    for _ in range(2):
        ended.run("traces", "--to", collector.url)
    first, second = (
        [span["spanId"] for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]] for _, _, body in collector.got
    )
    assert first == second


@pytest.mark.parametrize("since", ["1m", "4m"])
def test_jobs_that_ended_before_are_not_exported(ended: Operator, collector: Collector, since: str) -> None:
    assert ended.run("traces", "--to", collector.url, "--since", since).stdout == "exported 0 jobs\n"
    assert collector.got == []


def test_a_collector_that_refuses_or_is_away_ends_the_command_with_status_3(
    ended: Operator, collector: Collector
) -> None:
    collector.status = 400
    done = ended.run("traces", "--to", collector.url)
    assert (done.returncode, "answered 400" in done.stderr) == (3, True)
    away = ended.run("traces", "--to", "http://127.0.0.1:1")
    assert (away.returncode, "does not answer" in away.stderr) == (3, True)
    assert ended.run("traces", "--to", "collector:4318").returncode == 2


def test_a_job_with_a_live_claim_waits_for_the_end_of_the_claim(ended: Operator, collector: Collector) -> None:
    """The Pod of the job still runs. After five minutes, the job is exported without this claim."""
    ended.execute("UPDATE claims SET state = 'executing', ended_at = NULL, end_reason = NULL WHERE pod_uid = 'p-1'")
    ended.execute("UPDATE job_events SET at = at + interval '3 min'")
    assert ended.run("traces", "--to", collector.url).stdout == "exported 0 jobs\n"
    ended.execute("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE pod_uid = 'p-1'")
    assert ended.run("traces", "--to", collector.url).stdout == "exported 1 jobs\n"
    assert "claim" in {span["name"] for span in collector.spans}
    ended.execute("UPDATE claims SET state = 'executing', ended_at = NULL, end_reason = NULL WHERE pod_uid = 'p-1'")
    ended.execute("UPDATE job_events SET at = at - interval '4 min'")
    assert ended.run("traces", "--to", collector.url).stdout == "exported 1 jobs\n"


@pytest.mark.parametrize(("status", "reads"), [(400, [0, 1]), (413, [0, 1]), (429, [0, 0]), (401, [0, 0])])
def test_a_batch_that_the_collector_refuses_is_left_out_and_named(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, reads: Any
) -> None:
    collector.status = status
    at, asked = utcnow(), []
    span = Span("t", "s", None, "job", at, at)

    def read(body: Any) -> Any:
        asked.append(body.keywords["after"])
        if len(asked) == len(reads):
            raise KeyboardInterrupt
        return [Finished(1, 11, at)], [span]

    monkeypatch.setattr(traces, "query", read)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with pytest.raises(KeyboardInterrupt):
        traces.traces(collector.url, every=1)
    assert asked == reads
    said = capsys.readouterr().err
    assert f"answered {status}" in said
    assert ("the spans of 1 jobs are left out" in said) == (reads == [0, 1])
