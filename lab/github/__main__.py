"""`ostler-lab github`: serve until SIGTERM, and print one line `{"url": …}` when ready."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from lab.github.app import Options, build
from lab.github.faults import AbortableProtocol


class Server(uvicorn.Server):
    """Uvicorn that prints its URL when it is ready."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and print its URL."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        sys.stdout.write(json.dumps({"url": f"http://{host}:{port}"}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="ostler-lab github", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 chooses a free port")
    parser.add_argument("--webhook-url", help="receiver of the webhooks; without it, all webhooks are lost")
    parser.add_argument("--webhook-secret-env", default="LAB_WEBHOOK_SECRET", help="variable that holds the secret")
    parser.add_argument("--app-id", required=True)
    parser.add_argument("--app-public-key", type=Path, help="PEM file; without it LAB_APP_PUBLIC_KEY is the PEM")
    parser.add_argument("--log", type=Path, help="JSONL file that the verdict reads")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--lock-expiry", type=float, default=5, help="seconds without a heartbeat after which a job fails"
    )
    args = parser.parse_args()
    secret = os.environ.get(args.webhook_secret_env, "")
    if args.webhook_url and not secret:
        parser.error(f"{args.webhook_secret_env} is empty: it must hold the webhook secret")
    public_key = os.environ.get("LAB_APP_PUBLIC_KEY", "").replace("\\n", "\n")
    if args.app_public_key is not None:
        public_key = args.app_public_key.read_text()
    if not public_key:
        parser.error(
            "LAB_APP_PUBLIC_KEY is empty: it must hold the App's public key, a PEM (\\n may stand for a line end)"
        )
    app = build(
        Options(
            webhook_url=args.webhook_url,
            webhook_secret=secret,
            app_id=args.app_id,
            app_public_key=public_key,
            log=args.log,
            seed=args.seed,
            lock_expiry=args.lock_expiry,
            sabotage=os.environ.get("LAB_SABOTAGE", ""),
        )
    )
    listener = socket.create_server((args.host, args.port), backlog=2048)
    config = uvicorn.Config(
        app,
        http=AbortableProtocol,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
