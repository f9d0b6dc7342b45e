"""Assembly of the parts into one ASGI app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from starlette.applications import Starlette

from lab.github.control import Control
from lab.github.faults import Faults
from lab.github.identity import Identity
from lab.github.journal import Journal
from lab.github.limits import Limits
from lab.github.manifests import Manifests
from lab.github.rest import Rest
from lab.github.runner_api import RunnerApi
from lab.github.sender import Sender
from lab.github.world import Knobs, World


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line."""

    webhook_url: str | None
    webhook_secret: str
    app_id: str
    app_public_key: str
    log: Path | None
    seed: int
    lock_expiry: float
    sabotage: str = ""


def build(options: Options) -> Faults:
    """Return the app, wrapped in its faults."""
    journal = Journal(options.log)
    knobs = Knobs(lock_expiry_seconds=options.lock_expiry)
    # There are three generators, so that neither the webhook faults nor a call changes which runner gets which job.
    sender = Sender(
        url=options.webhook_url,
        secret=options.webhook_secret,
        app_id=options.app_id,
        journal=journal,
        rng=Random(options.seed + 1),
    )
    world = World(
        journal=journal, rng=Random(options.seed), knobs=knobs, publish=sender.publish, sabotage=options.sabotage
    )
    identity = Identity(app_id=options.app_id, public_key=options.app_public_key)
    limits = Limits(knobs)
    control = Control(world=world, sender=sender, identity=identity, limits=limits)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await sender.open()
        patrol = asyncio.create_task(world.patrol())
        try:
            yield
        finally:
            patrol.cancel()
            await sender.close()

    app = Starlette(
        routes=[
            *RunnerApi(world=world).routes(),
            *Rest(world=world, identity=identity, sender=sender, limits=limits, rng=Random(options.seed + 2)).routes(),
            *Manifests(world=world, sender=sender, identity=identity).routes(),
            *control.routes(),
        ],
        lifespan=lifespan,
    )
    control.faults = Faults(app)
    return control.faults
