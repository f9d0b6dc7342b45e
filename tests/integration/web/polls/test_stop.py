"""Offers when connections close and processes stop."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tests.integration.web.polls.stage import Stage, WebProcess
from tests.waiting import eventually


def open_poll(web: WebProcess, token: str) -> socket.socket:
    address = urlsplit(web.url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=20)
    connection.sendall(
        f"POST /runners/v1/dispatch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Content-Length: 0\r\n\r\n".encode()
    )
    return connection


def test_a_closed_connection_withdraws_its_offer(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    connection = open_poll(web, pod.token)
    eventually(lambda: stage.is_offered(pod))

    connection.close()

    eventually(lambda: not stage.is_offered(pod))
    assert web.web.polls.held == 0


def test_a_closed_connection_leaves_the_offer_of_a_newer_poll(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    connection = open_poll(web, pod.token)
    eventually(lambda: stage.is_offered(pod))
    stage.execute("UPDATE offers SET web_id = 'another', poll_id = 'newer'")

    connection.close()

    eventually(lambda: web.web.polls.held == 0)
    eventually(lambda: not web.web.offering._withdrawn)
    assert stage.is_offered(pod)


def test_a_hold_that_ends_leaves_its_offer_for_the_next_poll(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web(poll_hold_min=0.2, poll_hold_max=0.3)

    response = web.poll(pod.token)

    assert response.status_code == 204
    assert response.headers["Retry-After"].isdecimal()
    assert stage.is_offered(pod)
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id)
    assert web.poll(pod.token).json()["claim_id"] == claim_id


def test_a_stopping_process_ends_its_polls_and_withdraws_its_offers(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web, other = stage.start_web(), stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))

    stage.stop_web(web)

    response = answer.result(90)
    assert response.status_code == 204
    assert "Retry-After" in response.headers
    assert not stage.is_offered(pod)
    assert stage.scalar("SELECT count(*) FROM web_instances WHERE id = :id", id=web.web.id) == 0
    other.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod, other))


def test_what_killed_processes_left_is_forgotten(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.execute("INSERT INTO web_instances VALUES ('killed', now() - interval '3 h', now() - interval '2 h')")
    stage.execute(
        "INSERT INTO offers VALUES (:uid, :pool, 'killed', 'p', now() - interval '2 h')", uid=pod.uid, pool=pod.pool_id
    )
    stage.start_web()
    eventually(lambda: not stage.is_offered(pod))
    eventually(lambda: stage.scalar("SELECT count(*) FROM web_instances WHERE id = 'killed'") == 0)
