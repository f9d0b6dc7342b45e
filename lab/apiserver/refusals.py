"""Errors with the messages of Kubernetes: one exception that renders itself as a `Status` object."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from lab.apiserver.kinds import Json, Kind

_REJECTED = "the server rejected our request due to an error in our request"


class Refused(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        causes: list[Json] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = details
        self.causes = causes

    def body(self) -> Json:
        """Return the `Status` object."""
        body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self)}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details | ({"causes": self.causes} if self.causes else {})
        return body | {"code": int(self.status)}


def success(kind: Kind, name: str, uid: str) -> Json:
    """Return the `Status` object of a completed deletion."""
    details = {**_details(kind.group, kind.plural, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(kind: Kind, name: str) -> Refused:
    """No object has this name."""
    message = f'{kind.resource} "{name}" not found'
    return Refused(HTTPStatus.NOT_FOUND, "NotFound", message, details=_details(kind.group, kind.plural, name))


def no_such_resource() -> Refused:
    """The group is served, but it has no such resource."""
    message = "the server could not find the requested resource"
    return Refused(HTTPStatus.NOT_FOUND, "NotFound", message, details={})


def already_exists(kind: Kind, name: str, *, terminating: bool) -> Refused:
    """The name is taken. `terminating`: its object is being deleted."""
    message = f'{"object is being deleted: " if terminating else ""}{kind.resource} "{name}" already exists'
    return Refused(HTTPStatus.CONFLICT, "AlreadyExists", message, details=_details(kind.group, kind.plural, name))


def modified(kind: Kind, name: str) -> Refused:
    """The writer's resourceVersion is not the current one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind.resource, _details(kind.group, kind.plural, name), name, why)


def precondition_failed(kind: Kind, name: str, *, field: str, wanted: str, found: str) -> Refused:
    """A deletion requires another value of `field` (UID or ResourceVersion) than the object has."""
    end = "deleted and then recreated" if field == "UID" else "modified"
    why = (
        f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found}). "
        f"The object might have been {end}"
    )
    return conflict(kind.qualified, _details(kind.group, kind.name, name), name, why)


def conflict(resource: str, details: Json, name: str, why: str) -> Refused:
    """The state of the object does not permit the operation."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Refused(HTTPStatus.CONFLICT, "Conflict", message, details=details)


def forbidden(resource: str, details: Json, name: str, why: str) -> Refused:
    """The caller lacks the permission, or admission refuses the request."""
    subject = f'{resource} "{name}"' if name else resource
    message = f"{subject} is forbidden: {why}" if subject else f"forbidden: {why}"
    return Refused(HTTPStatus.FORBIDDEN, "Forbidden", message, details=details)


def unauthorized() -> Refused:
    """The credentials are invalid."""
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> Refused:
    """The request cannot be parsed."""
    return Refused(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def method_not_allowed() -> Refused:
    """The path does not support this verb."""
    message = "the server does not allow this method on the requested resource"
    return Refused(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message, details={})


def unsupported_media_type() -> Refused:
    """The path does not accept the content type of the body."""
    reason = "UnsupportedMediaType"
    return Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason, "415: Unsupported Media Type", details={})


def not_acceptable(available: str, *, details: Json | None = None) -> Refused:
    """The server has no representation that the caller accepts."""
    message = f"406: Not Acceptable\n\nAvailable representations: {available}"
    return Refused(HTTPStatus.NOT_ACCEPTABLE, "NotAcceptable", message, details=details)


def too_large(limit: int) -> Refused:
    """The body is longer than `limit` bytes."""
    message = f"Request entity too large: limit is {limit}"
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", message, details={})


def expired() -> Refused:
    """The list, or this position in the history, is no longer available."""
    message = "The provided continue parameter is too old to display a consistent list result."
    return Refused(HTTPStatus.GONE, "Expired", message)


def patch_rejected() -> Refused:
    """A JSON patch has a failed `test` or cannot be applied."""
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", _REJECTED, details={})


def invalid(kind: Kind, name: str, causes: list[Json]) -> Refused:
    """The object violates validation rules; `causes` come from `cause`."""
    texts = [f"{each['field']}: {each['message']}" for each in causes]
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(kind.group, kind.name, name)
    message = f'{kind.qualified} "{name}" is invalid: {joined}'
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details=details, causes=causes)


def cause(field: str, reason: str, message: str) -> Json:
    """Return one cause of an invalid object. `reason` has no prefix `FieldValue`."""
    return {"reason": f"FieldValue{reason}", "message": message, "field": field}


def required(field: str) -> Json:
    """Return the cause of a missing field."""
    return cause(field, "Required", "Required value")


def bad_value(field: str, value: Any, why: str) -> Json:
    """Return the cause of a field with an invalid value."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return cause(field, "Invalid", f"Invalid value: {shown}: {why}")


def _details(group: str, kind: str, name: str) -> Json:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": kind}
