"""A JIT config that was cut off starts no runner, even without a known length."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from tests.unit.poller.pod import make_pod

JIT = b"ZmFrZSBqaXQgY29uZmlnIG9mIGEgdGVzdA=="


def test_a_config_cut_short_is_no_work_when_its_length_is_unknown(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Ostler-Claim: 4711\r\nConnection: close\r\n\r\n"
    gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in (head + JIT[:9], gone):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        ended = pod.poll(url=f"http://127.0.0.1:{server.getsockname()[1]}/runners/v1/dispatch")
    assert ended.code != 0
