"""Ports of a web process, and the paths of each."""

from __future__ import annotations

import socket

import pytest

from web.edge.ports import POLL_PATH, Audience, Ports, audience_of


def test_port_that_is_taken_is_named_and_the_others_are_given_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
        other.close()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1 port {port}"):
            Ports().bind("127.0.0.1", {free: [Audience.PUBLIC], port: [Audience.PRIVATE]})
        socket.create_server(("127.0.0.1", free)).close()


def test_path_that_nobody_named_is_for_the_public() -> None:
    assert audience_of(POLL_PATH) is Audience.POLLS
    assert audience_of("/metrics") is Audience.PRIVATE
    assert audience_of("/metrics/") is Audience.PUBLIC
    assert audience_of("") is Audience.PUBLIC


def test_application_without_a_server_serves_every_path() -> None:
    assert not Ports().refuses(None, "/metrics")
    assert Ports().refuses(8080, "/metrics")
