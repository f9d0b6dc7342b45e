"""The API as one application, which is mounted at `/api`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from pydantic.json_schema import models_json_schema
from starlette.routing import Mount
from starlette.types import ASGIApp

from ostler.settings import Settings
from web.api import accounts, changes, claims, docs, gates, jobs, pods, pools, problems, sweeps, usage
from web.api.cursors import Cursors
from web.api.database import Database
from web.api.gate import Gate
from web.api.limited import refuse_limited
from web.api.problems import COMPONENTS, FieldProblem, Problem, problem_of
from web.api.schema import RESPONSES
from web.process.publisher import Publisher

_DESCRIPTION = """
Read jobs, claims, Pods, pools, accounts, repairs and changes. Set the budget, the weight and the access of an account,
queue a job again, and pause pools and sweeps.

**Token.** Every call needs `Authorization: Bearer TOKEN`. `ostler token create NAME --scope read` creates a token and
prints it once. GET needs the scope `read`. PUT and POST need the scope `write`. On this page, press *Authorize* first.

**Limited tokens.** A token that was created with `--account LOGIN` reads only the jobs, claims, Pods and numbers of
this account. Objects of other accounts answer 404. Paths that show or change the whole fleet answer 403.

**Pages.** A list returns one page. Pass its `next_cursor` as `cursor`, with the same filters, until it is null.

**Errors** are `application/problem+json` (RFC 9457) and name the wrong field.
"""


class _Api(FastAPI):
    """A FastAPI application. Its OpenAPI description also contains the models of error answers.

    FastAPI alone would omit these models, because error answers have another media type than the normal answers of the
    routes. FastAPI alone would also describe an optional parameter as one that can be null, which no query can express.
    """

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description, which is generated on the first call only."""
        if self.openapi_schema is None:
            described = super().openapi()
            _, made = models_json_schema(
                [(model, "serialization") for model in (FieldProblem, Problem)], ref_template=f"{COMPONENTS}{{model}}"
            )
            described["components"]["schemas"] |= made["$defs"]
            for parameter in _parameters(described):
                _drop_null(parameter)
        return self.openapi_schema or {}


def build_api(settings: Settings, *, database: Callable[[], Database], publisher: Callable[[], Publisher]) -> ASGIApp:
    """Return the API. Every request to the API first passes the gate of the API.

    `database` and `publisher` are called for each request, because their results do not exist before the process has
    started.
    """
    cursors = Cursors(settings.encryption_keys)
    api = _Api(
        title="Ostler",
        version=version("ostler"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[
            Depends(HTTPBearer(auto_error=False, description="made by `ostler token create`")),
            Depends(refuse_limited),
        ],
        responses={status: problem_of(told["description"]) for status, told in RESPONSES.items()},
    )
    problems.install(api)
    missing: dict[int | str, dict[str, Any]] = {404: problem_of("No object has this id")}
    api.include_router(jobs.router(database, cursors, publisher, settings.timings), responses=missing)
    api.include_router(claims.router(database, cursors), responses=missing)
    api.include_router(pods.router(database, cursors, settings.timings), responses=missing)
    api.include_router(pools.router(database, cursors, publisher), responses=missing)
    api.include_router(accounts.router(database, cursors, publisher, settings.timings), responses=missing)
    api.include_router(sweeps.router(database, cursors), responses=missing)
    api.include_router(changes.router(database, cursors), responses=missing)
    api.include_router(gates.router(database))
    api.include_router(usage.router(database))
    api.include_router(docs.router())
    return Gate(api, database=database)


def mount_api(app: FastAPI, api: ASGIApp) -> None:
    """Mount the API at `/api` of `app`.

    Starlette's own mount does not match a path that contains a newline. This mount matches such a path.
    """
    mount = Mount("/api", app=api)
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    app.router.routes.append(mount)


def _parameters(described: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every parameter of every operation of an OpenAPI description."""
    for path in described["paths"].values():
        for operation in path.values():
            yield from operation.get("parameters", ())


def _drop_null(parameter: dict[str, Any]) -> None:
    """Remove the type null from the schema of a parameter. A caller omits the parameter instead of sending null."""
    schema = parameter["schema"]
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del schema["anyOf"]
        parameter["schema"] = kinds[0] | schema
