"""ASGI application of the web process. It builds the parts of the process, and starts and stops them in order."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from beat_schedule import periods
from k8s_adapters.calls.client import make_client
from k8s_adapters.runners.identity import TokenVerifier
from models.db.connections import WEB_POOL
from models.db.engine import make_engine
from models.upstream.reporter import Reporter
from ostler.encryption import Cipher
from ostler.settings import Settings
from web.api.app import build_api, mount_api
from web.api.database import Database
from web.edge.limits import PORT
from web.edge.ports import POLL_PATH, Ports
from web.edge.refused_log import RefusedLog
from web.health.health import Health, Vitals
from web.health.metrics import Held, Metrics
from web.health.watchdog import Watchdog
from web.intake.webhooks import Intake
from web.process.publisher import Publisher, Sender
from web.process.threads import CLUSTER_THREADS, Threads
from web.runners.cluster import Cluster, KubernetesCluster
from web.runners.handover import Handover
from web.runners.identity import Admission
from web.runners.listener import Listener
from web.runners.offering import Offering
from web.runners.polls import Polls
from web.ui.app import mount_ui
from web.ui.streams import Streams

log = structlog.get_logger(__name__)
_misdirected = RefusedLog(log, "web.path_requested_on_wrong_port")
_SHOWN = 100


class Web:
    """The parts of one web process. `start` and `stop` run in the event loop of the process."""

    def __init__(self, settings: Settings, *, cluster: Cluster, sender: Sender | None) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.stopping = False
        self.engine = make_engine(settings.database_url, pool_size=WEB_POOL, application="ostler-web")
        self.threads = Threads(self.engine)
        self.api_database = Database(self.engine)
        self.streams = Streams(self.api_database)
        self.publisher = Publisher(settings.redis_url, sender=sender)
        self.intake = Intake(engine=self.engine, settings=settings, publisher=self.publisher)
        self.offering = Offering(threads=self.threads, publisher=self.publisher, web_id=self.id, counts=self.counts)
        self.polls = Polls(
            settings=settings,
            admission=Admission(
                namespaces=settings.namespaces, threads=self.threads, cluster=cluster, counts=self.counts
            ),
            offering=self.offering,
            handover=Handover(
                threads=self.threads,
                cluster=cluster,
                cipher=Cipher(settings.encryption_keys),
                publisher=self.publisher,
                counts=self.counts,
                stamp_returns_after=settings.timings.stamp_returns_after,
            ),
            counts=self.counts,
        )
        self.reporter = Reporter(self.engine)
        self.listener = Listener(
            engine=self.engine,
            url=settings.database_url,
            web_id=self.id,
            loop=asyncio.get_running_loop(),
            hearer=self.polls,
        )
        self.watchdog = Watchdog(periods(settings.timings), off=settings.sweeps_paused)
        self.metrics = Metrics(
            database=self.api_database,
            watchdog=self.watchdog,
            counts=self.counts,
            held=lambda: Held(
                polls=self.polls.held,
                webhooks=self.intake.depth,
                messages=self.publisher.depth,
                messages_dropped=self.publisher.dropped,
            ),
            accounts=settings.metrics_accounts,
        )
        self.health = Health(
            engine=self.engine, redis_url=settings.redis_url, watchdog=self.watchdog, vitals=self.vitals
        )

    def vitals(self) -> Vitals:
        """Return the state that the health endpoints report for this process."""
        return Vitals(
            stopping=self.stopping,
            hearing=self.listener.is_hearing,
        )

    async def start(self) -> None:
        """Start the background parts of the process."""
        self.publisher.start()
        self.intake.start()
        self.offering.start()
        self.listener.start()
        self.reporter.start()
        log.info("web.started", web_process=self.id)

    async def end_polls(self) -> None:
        """Answer every held poll, withdraw the offers of these polls, and end the streams of the dashboard.

        A stopping process calls this method first.
        """
        self.stopping = True
        self.streams.end_all()
        self.polls.end_all()
        await self.offering.leave()

    async def stop(self) -> None:
        """Stop all parts of the process.

        The polls are ended first. The listener and the offers stop next, and then the webhook intake and all other
        parts.
        """
        await self.end_polls()
        await asyncio.to_thread(self.listener.stop)
        await self.offering.stop()
        await self.intake.stop()
        await asyncio.to_thread(self.publisher.stop)
        await asyncio.to_thread(self.reporter.stop)
        await self.health.close()
        self.api_database.stop()
        self.threads.stop()
        self.engine.dispose()
        log.info("web.stopped", web_process=self.id)


class _App(FastAPI):
    """A FastAPI application with a shorter call path for polls.

    A held poll keeps every frame of its call stack in memory. Most of these frames would belong to FastAPI and
    Starlette, which a poll does not need. One process holds up to 20,000 polls, so `__call__` answers polls itself.
    `__call__` also answers 404 if the port of a request does not serve the path of the request.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and self.state.ports.refuses(scope.get(PORT), scope["path"]):
            _misdirected.add(path=scope["path"][:_SHOWN], port=scope[PORT])
            await PlainTextResponse("Not Found", status_code=404)(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == POLL_PATH and scope["method"] == "POST":
            web: Web = self.state.web
            response = await web.polls.dispatch(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def build_app(settings: Settings, *, cluster: Cluster | None = None, sender: Sender | None = None) -> FastAPI:
    """Return the application. While the application runs, `app.state.web` is its `Web` object.

    `cluster` and `sender` replace Kubernetes and Redis in tests. If `cluster` or `sender` is None, the real client is
    made from `settings`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        web = Web(settings, cluster=cluster if cluster is not None else _cluster(settings), sender=sender)
        app.state.web = web
        await web.start()
        try:
            yield
        finally:
            await web.stop()

    app = _App(
        title="Ostler", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.ports = Ports()

    def web() -> Web:
        found: Web = app.state.web
        return found

    async def dispatch(request: Request) -> Response:  # `_App.__call__` answers the POST itself
        return await web().polls.dispatch(request)

    async def receive(request: Request) -> Response:
        return await web().intake.receive(request)

    async def alive(request: Request) -> Response:
        return await web().health.alive(request)

    async def ready(request: Request) -> Response:
        return await web().health.ready(request)

    async def metrics(request: Request) -> Response:
        return await web().metrics.serve(request)

    # Plain routes of Starlette are used, because the routing of FastAPI would cost several times the CPU of a whole
    # poll.
    app.add_route(POLL_PATH, dispatch, methods=["POST"], include_in_schema=False)
    app.add_route("/webhooks/github", receive, methods=["POST"], include_in_schema=False)
    app.add_route("/healthz", alive, methods=["GET"], include_in_schema=False)
    app.add_route("/readyz", ready, methods=["GET"], include_in_schema=False)
    app.add_route("/metrics", metrics, methods=["GET"], include_in_schema=False)
    if settings.web_ui:
        mount_ui(
            app,
            settings,
            database=lambda: web().api_database,
            streams=lambda: web().streams,
            publisher=lambda: web().publisher,
        )
    mount_api(app, build_api(settings, database=lambda: web().api_database, publisher=lambda: web().publisher))
    return app


def _cluster(settings: Settings) -> KubernetesCluster:
    client = make_client(kubeconfig=settings.kubeconfig, pool_size=CLUSTER_THREADS)
    verifier = TokenVerifier(client=client, audience=settings.token_audience)
    return KubernetesCluster(client=client, verifier=verifier, settings=settings)
