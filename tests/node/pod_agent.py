"""Program of a test Pod: servers that answer, and an HTTP port at which the test orders connections.

Usage: pod_agent.py TCP_PORT... (UDP is served at 53). If the variable EARLY has an address and a port, as `host:port`,
the program tries to connect there from its first moment on, for five seconds.

The program needs only the standard library. The answers of its HTTP port are `open` (a byte went there and back),
`silent` (no answer within the timeout) and `refused`.
"""

from __future__ import annotations

import os
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

CONTROL_PORT = 7000
TICKER_PORT = 7001
TIMEOUT = float(os.environ.get("TIMEOUT", "1.5"))
"""Seconds to wait for an answer."""
HELD: dict[str, socket.socket] = {}
EARLY: list[str] = []


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it receives."""

    def handle(self) -> None:
        """Serve one connection or one datagram."""
        if isinstance(self.request, tuple):
            data, own = self.request
            own.sendto(data, self.client_address)
            return
        while data := self.request.recv(1024):
            self.request.sendall(data)


class Ticker(socketserver.BaseRequestHandler):
    """Sends a byte every 50 ms, without being asked."""

    def handle(self) -> None:
        """Serve one connection."""
        while True:
            self.request.sendall(b"t")
            time.sleep(0.05)


class Control(BaseHTTPRequestHandler):
    """Carries out one order for each GET."""

    def do_GET(self) -> None:
        """Answer with one word."""
        order = urlsplit(self.path)
        given = dict(parse_qsl(order.query))
        try:
            answer = ORDERS[order.path](given["host"], int(given["port"]))
        except TimeoutError:
            answer = "silent"
        except OSError as error:
            answer = "refused" if isinstance(error, ConnectionError) else str(error)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        """Write no log."""


def try_tcp(host: str, port: int) -> str:
    """Open a connection and use it once."""
    with socket.create_connection((host, port), TIMEOUT) as connection:
        return use(connection)


def try_udp(host: str, port: int) -> str:
    """Send a datagram and wait for the answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(TIMEOUT)
        own.sendto(b"u", (host, port))
        return "open" if own.recv(1) else "refused"


def hold(host: str, port: int) -> str:
    """Open a connection and keep it. It replaces the one that was kept."""
    HELD[f"{host}:{port}"] = socket.create_connection((host, port), TIMEOUT)
    return "open"


def use_held(host: str, port: int) -> str:
    """Use the connection that is kept."""
    return use(HELD[f"{host}:{port}"])


def listen(host: str, port: int) -> str:
    """Drop what has arrived at the connection that is kept, and wait for more."""
    connection = HELD[f"{host}:{port}"]
    connection.settimeout(0)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        pass
    connection.settimeout(TIMEOUT)
    return "open" if connection.recv(1) else "refused"


def use(connection: socket.socket) -> str:
    """Send a byte and wait for one."""
    connection.settimeout(TIMEOUT)
    connection.sendall(b"x")
    return "open" if connection.recv(1) else "refused"


def early(_host: str, _port: int) -> str:
    """Return whether one of the connections at the start of the program was established."""
    return EARLY[0] if EARLY else "not over"


def connect_early(host: str, port: int) -> None:
    """Try to connect for five seconds from now."""
    deadline = time.monotonic() + 5
    answer = "silent"
    while time.monotonic() < deadline and answer == "silent":
        try:
            socket.create_connection((host, port), 0.1).close()
            answer = "open"
        except OSError:
            time.sleep(0.01)
    EARLY.append(answer)


ORDERS = {"/tcp": try_tcp, "/udp": try_udp, "/hold": hold, "/use": use_held, "/listen": listen, "/early": early}


class Server(socketserver.ThreadingTCPServer):
    """A TCP server whose threads end with the program."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Write nothing: a client that is cut off is expected."""


def main(ports: list[int]) -> None:
    """Serve until the process is killed."""
    if first := os.environ.get("EARLY"):
        host, _, port = first.partition(":")
        threading.Thread(target=connect_early, args=(host, int(port)), daemon=True).start()
    servers: list[socketserver.BaseServer] = [
        *(Server(("", port), Echo) for port in ports),
        Server(("", TICKER_PORT), Ticker),
        socketserver.ThreadingUDPServer(("", 53), Echo),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ThreadingHTTPServer(("", CONTROL_PORT), Control).serve_forever()


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
