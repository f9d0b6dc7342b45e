"""`python -m lab.apiserver`: serve until SIGTERM, and print one line `{"url": …}` when ready."""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import sys
from pathlib import Path

import uvicorn

from lab.apiserver.app import ApiServer


class Server(uvicorn.Server):
    """Uvicorn that prints its address when it is ready."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and print its address."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        sys.stdout.write(json.dumps({"url": f"https://{host}:{port}"}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m lab.apiserver", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder with certificate, keys and tokens")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 chooses a free port")
    arguments = parser.parse_args()
    os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(1024 * 1024))  # an exec request has a whole command in it
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = uvicorn.Config(
        ApiServer(folder=arguments.folder).app(),
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_ping_interval=None,  # the client of an exec pings, not the server
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
        ssl_certfile=str(arguments.folder / "certs" / "apiserver.crt"),
        ssl_keyfile=str(arguments.folder / "certs" / "apiserver.key"),
    )
    with socket.create_server((arguments.host, arguments.port), backlog=2048) as listener:
        Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
