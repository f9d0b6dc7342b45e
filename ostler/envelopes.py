"""Pure check of the envelope of a message before Celery reads the message.

Celery and kombu expect every entry of a queue to be one of their own messages. An entry with another structure makes
the worker exit. Ostler's transport drops such an entry instead, because no worker could ever run it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

_CONTENT_TYPE = "application/json"


def problem_of(message: object, *, task: bool) -> str | None:
    """Return the problem of a message as kombu stores it, or None if the message is valid.

    If `task` is true, the message must also be a valid Celery task. The returned text contains no value from the
    message.
    """
    if not isinstance(message, Mapping):
        return "the message is not an object"
    headers, properties = message.get("headers"), message.get("properties")
    if not isinstance(headers, Mapping) or not isinstance(properties, Mapping):
        return "the message has no headers or no properties"
    route = properties.get("delivery_info")
    if not isinstance(route, Mapping) or not all(
        isinstance(route.get(key), str) for key in ("exchange", "routing_key")
    ):
        return "the message names no exchange or no routing key"
    if not isinstance(properties.get("delivery_tag"), str):
        return "the message has no delivery tag"
    return _problem_of_body(message, properties) or (_problem_of_task(message, headers) if task else None)


def _problem_of_body(message: Mapping[str, Any], properties: Mapping[str, Any]) -> str | None:
    if not isinstance(message.get("body"), str):
        return "the body of the message is not text"
    if properties.get("body_encoding") not in {None, "base64"}:
        return "the body of the message has an unknown encoding"
    try:
        _body(message)
    except binascii.Error:
        return "the body of the message is not base64"
    return None


def _body(message: Mapping[str, Any]) -> bytes | str:
    body: str = message["body"]
    return base64.b64decode(body) if message["properties"].get("body_encoding") == "base64" else body


def _problem_of_arguments(message: Mapping[str, Any]) -> str | None:
    try:
        found = json.loads(_body(message))
    except (ValueError, RecursionError):
        return "the body of the message is not JSON"
    kinds = list, dict, dict
    if not isinstance(found, list) or len(found) != len(kinds) or not all(map(isinstance, found, kinds)):
        return "the body of the message is not [args, kwargs, embed]"
    return None


def _problem_of_task(message: Mapping[str, Any], headers: Mapping[str, Any]) -> str | None:
    if not all(isinstance(headers.get(key), str) for key in ("task", "id")):
        return "the message has no task name or no task id"
    if message.get("content-type") != _CONTENT_TYPE or message.get("content-encoding") not in {"utf-8", "utf8"}:
        return "the message is not marked as JSON in UTF-8"
    if headers.get("compression"):
        return "the message is compressed"
    if not isinstance(headers.get("retries", 0), int | None):
        return "the number of retries in the message is not a number"
    match headers.get("timelimit"):
        case None | [_, _]:
            return _problem_of_arguments(message)
        case _:
            return "the time limits in the message are not a pair"
