"""A separate web process for tests of signals: `python -m … DATABASE_URL REDIS_URL PORT POD_NAME POD_UID`."""

from __future__ import annotations

import sys

from ostler.logging import configure
from ostler.secrets import Secret
from tests.integration.web.polls.stage import Stage, make_settings
from tests.timed import changed
from web.app import build_app
from web.server import make_server


def main() -> None:
    database_url, redis_url, port, name, uid = sys.argv[1:]
    configure(process="web")
    settings = changed(
        make_settings(database_url=Secret(database_url), redis_url=redis_url),
        **dict.fromkeys(("web_port", "web_polls_port", "web_private_port"), int(port)),
        poll_hold_min=3600,
        poll_hold_max=3600,
    )
    stage = Stage(engine=None, settings=settings)  # type: ignore[arg-type]
    stage.cluster.tokens["token"] = stage.identity(name, uid)
    make_server(settings, app=build_app(settings, cluster=stage.cluster)).run()


if __name__ == "__main__":
    main()
