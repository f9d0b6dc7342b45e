"""The paths of each port, in one process with all of them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from lab.processes import free_port
from tests.integration.web.polls.stage import Stage, WebProcess
from tests.integration.web.test_webhooks import blocked, payload, sign, stopped_commits
from tests.waiting import eventually
from web.edge import ports
from web.edge.ports import Audience
from web.intake import webhooks

POLL, HOOK, API = "/runners/v1/dispatch", "/webhooks/github", "/api/v1/jobs"
PRIVATE = ("/metrics", "/healthz", "/readyz")


def start(stage: Stage, **changes: object) -> WebProcess:
    names = ("web_port", "web_polls_port", "web_private_port")
    return stage.start_web(**{name: free_port() for name in names} | changes)


def found(web: WebProcess, audience: Audience, path: str) -> bool:
    """Return whether the port for an audience serves a path. Each path is requested by its own method."""
    method = "GET" if path in {*PRIVATE, API} else "POST"
    answer = httpx.request(method, f"http://127.0.0.1:{web.port_of(audience)}{path}", timeout=60)
    if answer.status_code == 404:
        assert answer.text == "Not Found"
    return answer.status_code != 404


def test_each_path_is_served_at_its_own_port_alone(stage: Stage) -> None:
    web = start(stage, web_public_polls=False)
    served = {
        audience: {path for path in (POLL, HOOK, API, *PRIVATE) if found(web, audience, path)} for audience in Audience
    }
    assert served == {Audience.PUBLIC: {HOOK, API}, Audience.POLLS: {POLL}, Audience.PRIVATE: set(PRIVATE)}


def test_pods_of_the_old_address_poll_at_the_public_port_until_it_is_switched_off(stage: Stage) -> None:
    web = start(stage)
    assert found(web, Audience.PUBLIC, POLL)
    assert found(web, Audience.POLLS, POLL)
    assert not any(found(web, Audience.PUBLIC, path) for path in PRIVATE)


def test_ports_of_one_number_are_one_port_that_serves_all(stage: Stage) -> None:
    port = free_port()
    web = start(stage, web_port=port, web_polls_port=port, web_private_port=port)
    assert all(found(web, Audience.PUBLIC, path) for path in (POLL, HOOK, API, *PRIVATE))


def test_ports_have_caps_of_their_own_and_a_held_poll_is_not_among_the_capped(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = start(stage, web_public_polls=False)
    caps = {audience: web.cap_of(audience) for audience in Audience}
    assert len({id(cap) for cap in caps.values()}) == 3
    with socket.create_connection(("127.0.0.1", web.port_of(Audience.PRIVATE))):
        web.until(lambda: len(caps[Audience.PRIVATE]) == 1)
        assert len(caps[Audience.POLLS]) == 0
    web.until(lambda: len(caps[Audience.PRIVATE]) == 0)
    web.url = f"http://127.0.0.1:{web.port_of(Audience.POLLS)}"
    poll = web.begin_poll(pod.token)
    web.until(lambda: web.web.polls.held == 1 and len(caps[Audience.POLLS]) == 0)
    web.web.polls.end_all()
    assert poll.result(60).status_code == 204


def test_signed_webhooks_that_wait_take_no_connection_of_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "MOST_CONNECTIONS", {**ports.MOST_CONNECTIONS, Audience.PUBLIC: 4})
    monkeypatch.setattr(webhooks, "ANSWER_WITHIN", 120.0)
    web = start(stage, web_public_polls=False)

    def hook(number: int) -> int:
        body = payload(1 + number)
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Event": "workflow_job",
            "X-GitHub-Delivery": f"of-a-burst-{number}",
            "X-Hub-Signature-256": sign(body, "of-these-tests-alone"),
        }
        return httpx.post(f"{web.url}{HOOK}", content=body, headers=headers, timeout=240).status_code

    def verified() -> int:
        """Return the number of queued or answered webhooks. On a slow machine, the first ones are soon answered 503."""
        return web.web.intake.depth + sum(each.done() for each in burst)

    with ThreadPoolExecutor(12) as clients:
        with stopped_commits(stage.engine):
            burst = [clients.submit(hook, 0)]
            web.until(lambda: blocked(stage.engine) > 0)
            for number in range(1, 12):  # one after the other: a connection counts until its signature is verified
                burst.append(clients.submit(hook, number))
                web.until(lambda number=number: verified() >= number)  # type: ignore[misc]
            eventually(lambda: len(web.cap_of(Audience.PUBLIC)) == 0)
            assert web.get("/api/openapi.json").status_code == 200
        assert all(each.result() in {202, 503} for each in burst)  # stored or sent away, but answered
