"""Errors in the words of Kubernetes: one exception that renders itself as a `Status` object."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from lab.apiserver.kinds import Json, Kind

_REJECTED = "the server rejected our request due to an error in our request"


class Refused(Exception):
    """The server answers a request with an error."""

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
    """Return the `Status` object for a finished deletion."""
    details = {**_details(kind.group, kind.plural, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(kind: Kind, name: str) -> Refused:
    """Return the error for an object that does not exist."""
    message = f'{kind.resource} "{name}" not found'
    return Refused(HTTPStatus.NOT_FOUND, "NotFound", message, details=_details(kind.group, kind.plural, name))


def no_such_resource() -> Refused:
    """Return the error for a resource that is not served, in a group that is served."""
    message = "the server could not find the requested resource"
    return Refused(HTTPStatus.NOT_FOUND, "NotFound", message, details={})


def already_exists(kind: Kind, name: str, *, terminating: bool) -> Refused:
    """Return the error for a name that is in use.

    `terminating` says that the object with that name is being deleted.
    """
    message = f'{"object is being deleted: " if terminating else ""}{kind.resource} "{name}" already exists'
    return Refused(HTTPStatus.CONFLICT, "AlreadyExists", message, details=_details(kind.group, kind.plural, name))


def modified(kind: Kind, name: str) -> Refused:
    """Return the error for a write whose resourceVersion is not the current one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind.resource, _details(kind.group, kind.plural, name), name, why)


def another_uid(kind: Kind, namespace: str, name: str, *, wanted: str, found: str) -> Refused:
    """Return the error for a write whose object has another UID than the stored object."""
    place = "/".join(part for part in ("/registry", kind.group, kind.plural, namespace, name) if part)
    why = (
        f"StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )
    return conflict(kind.resource, _details(kind.group, kind.plural, name), name, why)


def precondition_failed(kind: Kind, name: str, *, field: str, wanted: str, found: str) -> Refused:
    """Return the error for a deletion whose precondition does not match the object.

    `field` is UID or ResourceVersion, `wanted` the value in the precondition, and `found` the object's value.
    """
    end = "deleted and then recreated" if field == "UID" else "modified"
    why = (
        f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found}). "
        f"The object might have been {end}"
    )
    return conflict(kind.qualified, _details(kind.group, kind.name, name), name, why)


def conflict(resource: str, details: Json, name: str, why: str) -> Refused:
    """Return the error for an operation that the state of the object does not allow."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Refused(HTTPStatus.CONFLICT, "Conflict", message, details=details)


def forbidden(resource: str, details: Json, name: str, why: str) -> Refused:
    """Return the error for a user without the permission, or for a refusal by admission."""
    subject = f'{resource} "{name}"' if name else resource
    message = f"{subject} is forbidden: {why}" if subject else f"forbidden: {why}"
    return Refused(HTTPStatus.FORBIDDEN, "Forbidden", message, details=details)


def unauthorized() -> Refused:
    """Return the error for invalid credentials."""
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> Refused:
    """Return the error for a request that cannot be parsed."""
    return Refused(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def method_not_allowed() -> Refused:
    """Return the error for a method that the path does not support."""
    message = "the server does not allow this method on the requested resource"
    return Refused(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message, details={})


def unsupported_media_type() -> Refused:
    """Return the error for a content type that the path does not accept."""
    reason = "UnsupportedMediaType"
    return Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason, "415: Unsupported Media Type", details={})


def not_acceptable(available: str, *, details: Json | None = None) -> Refused:
    """Return the error for a requested representation that the server does not offer."""
    message = f"406: Not Acceptable\n\nAvailable representations: {available}"
    return Refused(HTTPStatus.NOT_ACCEPTABLE, "NotAcceptable", message, details=details)


def too_large(limit: int) -> Refused:
    """Return the error for a body of more than `limit` bytes."""
    message = f"Request entity too large: limit is {limit}"
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", message, details={})


def expired() -> Refused:
    """Return the error for a list that is no longer kept."""
    message = "The provided continue parameter is too old to display a consistent list result."
    return Refused(HTTPStatus.GONE, "Expired", message)


def patch_rejected() -> Refused:
    """Return the error for a JSON patch whose `test` fails or that cannot be applied."""
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", _REJECTED, details={})


def invalid(kind: Kind, name: str, causes: list[Json]) -> Refused:
    """Return the error for an object that breaks rules. `causes` are built by `cause`."""
    texts = [f"{each['field']}: {each['message']}" for each in causes]
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(kind.group, kind.name, name)
    message = f'{kind.qualified} "{name}" is invalid: {joined}'
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details=details, causes=causes)


def cause(field: str, reason: str, message: str) -> Json:
    """Return one cause why an object is invalid. `reason` is given without its prefix `FieldValue`."""
    return {"reason": f"FieldValue{reason}", "message": message, "field": field}


def required(field: str) -> Json:
    """Return the cause for a missing field."""
    return cause(field, "Required", "Required value")


def bad_value(field: str, value: Any, why: str) -> Json:
    """Return the cause for a value that is not allowed."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return cause(field, "Invalid", f"Invalid value: {shown}: {why}")


def _details(group: str, kind: str, name: str) -> Json:
    return {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": kind}
