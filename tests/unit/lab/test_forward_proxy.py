"""The lab's forward proxy: passed and refused requests, and mapped names that only the proxy can reach."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import urllib3

from lab.processes import free_port

NAME = "github.internal.invalid"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = json.dumps({"path": self.path, "headers": list(self.headers.keys())}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing, so that the output of the test stays readable."""


@pytest.fixture
def upstream() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def forward_proxy(*arguments: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run the proxy as a process. The value is its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", "lab.forward_proxy", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as child:
        try:
            assert child.stdout is not None
            yield str(json.loads(child.stdout.readline())["url"])
        finally:
            child.terminate()
            assert child.wait(10) == 0


def get(proxy: str, url: str) -> urllib3.BaseHTTPResponse:
    with urllib3.ProxyManager(proxy) as http:
        return http.request("GET", url, retries=False, timeout=10)


def connect(proxy: str, target: str, *headers: str) -> tuple[socket.socket, str]:
    """Request a tunnel, and return the connection and the status line."""
    host, port = proxy.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall("\r\n".join([f"CONNECT {target} HTTP/1.1", *headers, "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    return connection, head.decode().splitlines()[0]


def test_mapped_name_is_reached_by_the_proxy_alone(upstream: int, tmp_path: Path) -> None:
    log = tmp_path / "proxy.jsonl"
    with pytest.raises(OSError, match=r"."):
        socket.getaddrinfo(NAME, 80)

    with forward_proxy("--map", f"{NAME}:80=127.0.0.1:{upstream}", "--log", str(log)) as proxy:
        answer = get(proxy, f"http://{NAME}/meta?a=b")

    assert answer.status == 200
    assert answer.json()["path"] == "/meta?a=b"
    assert not {"proxy-connection", "proxy-authorization"} & {each.lower() for each in answer.json()["headers"]}
    assert [json.loads(line)["target"] for line in log.read_text().splitlines()] == [f"http://{NAME}/meta?a=b"]


def test_tunnel_passes_bytes_both_ways(upstream: int) -> None:
    with forward_proxy() as proxy:
        connection, status = connect(proxy, f"127.0.0.1:{upstream}")
        with closing(connection):
            assert status == "HTTP/1.1 200 Connection established"
            connection.sendall(b"GET /through HTTP/1.0\r\n\r\n")
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    assert b'"/through"' in answer


def test_request_without_the_login_is_answered_407(upstream: int) -> None:
    with forward_proxy("--login-env", "LOGIN", env={"LOGIN": "someone:else"}) as proxy:
        assert get(proxy, f"http://127.0.0.1:{upstream}/").status == 407
        right = urllib3.make_headers(proxy_basic_auth="someone:else")["proxy-authorization"]
        with urllib3.ProxyManager(proxy, proxy_headers={"proxy-authorization": right}) as http:
            assert http.request("GET", f"http://127.0.0.1:{upstream}/", retries=False).status == 200


def test_target_that_is_not_allowed_is_answered_403(upstream: int) -> None:
    with forward_proxy("--allow", f"{NAME}:80") as proxy:
        assert get(proxy, f"http://127.0.0.1:{upstream}/").status == 403
        connection, status = connect(proxy, f"127.0.0.1:{upstream}")
        connection.close()
    assert status.split()[1] == "403"


def test_target_that_is_away_is_answered_502() -> None:
    with forward_proxy() as proxy:
        assert get(proxy, f"http://127.0.0.1:{free_port()}/").status == 502
        connection, status = connect(proxy, "no port here")
        connection.close()
    assert status.split()[1] == "400"
