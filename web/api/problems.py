"""Error answers of the API in the form of RFC 9457, `application/problem+json`.

A problem about a field names the field and says how to correct it. Except for the HTTP method, a problem contains no
value that the caller sent, and no data from the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ostler.logging import get_logger
from ostler.reasons import reason_of

MEDIA_TYPE = "application/problem+json"
COMPONENTS = "#/components/schemas/"
RETRY_AFTER = 2
"""Seconds in the `Retry-After` header of a 503."""

log = get_logger(__name__)


class FieldProblem(BaseModel):
    """The problem with one field of the request."""

    field: str = Field(examples=["limit"])
    detail: str = Field(examples=["Input should be less than or equal to 200"])


class Problem(BaseModel):
    """An error answer in the form of RFC 9457."""

    type: str = Field(examples=["urn:ostler:problem:invalid-field"])
    title: str = Field(examples=["A field is invalid"])
    status: int = Field(examples=[422])
    detail: str | None = Field(default=None, examples=["limit: Input should be less than or equal to 200"])
    errors: list[FieldProblem] = []


class Refusal(Exception):
    """An exception that ends a request with a problem.

    `kind` is the last part of the URN in the `type` of the problem.
    """

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        title: str,
        detail: str | None = None,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.field = field
        self.headers = headers

    def response(self) -> Response:
        """Return the answer that describes this refusal."""
        errors = [FieldProblem(field=self.field, detail=self.detail or self.title)] if self.field is not None else []
        return problem(self.status, self.kind, self.title, self.detail, errors=errors, headers=self.headers)


def problem(
    status: int,
    kind: str,
    title: str,
    detail: str | None = None,
    *,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the answer to a request that failed. `kind` is the last part of the URN in the `type` of the problem."""
    body = Problem(type=f"urn:ostler:problem:{kind}", title=title, status=status, detail=detail, errors=list(errors))
    return JSONResponse(
        body.model_dump(exclude_none=True, exclude_defaults=True),
        status_code=status,
        headers={**(headers or {}), "Cache-Control": "no-store"},
        media_type=MEDIA_TYPE,
    )


def problem_of(description: str) -> dict[str, Any]:
    """Return the description of an error answer for the OpenAPI description."""
    return {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{COMPONENTS}{Problem.__name__}"}}},
    }


def not_found(what: str, *, by: str = "id", cure: str | None = None) -> Refusal:
    """Return the refusal (404) for an id or a name that does not exist.

    `what` is the name of the resource, such as "job". `by` is "id", "name" or "name or UID", as the path requires.
    `cure` is needed if no route lists the resources of this kind.
    """
    return Refusal(
        HTTPStatus.NOT_FOUND,
        "not-found",
        f"There is no {what} with this {by}",
        f"GET /api/v1/{what}s lists all of them." if cure is None else cure,
    )


def unavailable() -> Refusal:
    """Return the refusal (503) for a request that cannot be answered at this moment."""
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "unavailable",
        "The request cannot be answered now",
        "Postgres failed or did not answer, or too many requests wait. Try again later, or request fewer items at "
        "once.",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def install(api: FastAPI) -> None:
    """Register the handlers that turn every error of `api` into a problem."""
    api.add_exception_handler(Refusal, _refused)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _refused_by_framework)
    api.add_exception_handler(DBAPIError, _database_away)
    api.add_exception_handler(PoolTimeout, _database_away)
    api.add_exception_handler(Exception, _failed)


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    return error.response()


async def _invalid(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    errors = [_field_problem(each) for each in error.errors()]
    first = errors[0]
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid-field",
        "A field is invalid",
        f"{first.field}: {first.detail}",
        errors=errors,
    )


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = {name.strip() for name in headers.get("Allow", headers.get("allow", "")).split(",")} - {""}
        allowed |= {"OPTIONS"} | ({"HEAD"} if "GET" in allowed else set())
        headers = {"Allow": ", ".join(sorted(allowed))}
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
    if status is HTTPStatus.BAD_REQUEST:
        return problem(status, "bad-request", "The body cannot be read", "Send JSON in UTF-8.", headers=headers)
    detail = {
        HTTPStatus.NOT_FOUND: "This path does not exist; /api/docs shows all paths.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not allowed on this path; use {headers.get('Allow')}.",
    }.get(status)
    return problem(status, status.name.lower().replace("_", "-"), status.phrase, detail, headers=headers)


async def _database_away(_request: Request, error: Exception) -> Response:
    return database_failed(error).response()


def database_failed(error: Exception) -> Refusal:
    """Log an error of Postgres, and return the refusal (503) for it."""
    log.warning(
        "api.database_failed",
        error=reason_of(error),
        sqlstate=getattr(getattr(error, "orig", None), "pgcode", None),
    )
    return unavailable()


async def _failed(_request: Request, _error: Exception) -> Response:
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Ostler failed; the log of web has the details")


def _field_problem(error: Mapping[str, Any]) -> FieldProblem:
    where = [str(part) for part in error["loc"][1:]]
    if error["type"] == "json_invalid" or not where:
        return FieldProblem(field=str(error["loc"][0]), detail=str(error["msg"]))
    detail = (
        "The API has no field with this name; remove the field"
        if error["type"] == "extra_forbidden"
        else str(error["msg"])
    )
    return FieldProblem(field=".".join(where), detail=detail)
