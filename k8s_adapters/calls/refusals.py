"""Texts of the API server about a call that it refused or could not carry out.

A refused Pod is invalid or forbidden, or a quota is used up. The text is written to a status that many users can read.
If a field of the object is wrong, the text names the field, but never shows its value (law L13).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from k8s_adapters.calls.retry import Answer, answer_of
from ostler.errors import Forbidden, Invalid, UpstreamError
from ostler.server_words import in_one_line

_LONGEST = 300
_FIELD = re.compile(
    r"([a-zA-Z][\w.\[\]\"/-]*): (Invalid value|Required value|Unsupported value|Forbidden|Duplicate value|Too long)"
)
_INTERNAL = "Internal error occurred: "
_DENIED = "denied the request"
_QUOTES = ", error found in #"
"""Beginning of the part of a text in which the API server quotes the object that it could not decode."""

WEBHOOK_FAILED = "failed calling webhook"
"""Part of the text of a 500: the API server is healthy, but an admission webhook of the cluster did not answer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal. A retry cannot succeed before the cause has changed. `quota` is True if a quota is used up."""

    quota: bool
    text: str


def refusal_of(error: UpstreamError) -> Refusal | None:
    """Return the refusal of a Pod, or None if the creation of the Pod failed for another reason."""
    answer = answer_of(error)
    if answer is None or answer.status == HTTPStatus.UNAUTHORIZED or not isinstance(error, Forbidden | Invalid):
        return None
    if "error looking up service account" in answer.message:  # the admission plugin does not know the account yet
        return None
    return _refusal(answer.message, forbidden=isinstance(error, Forbidden), otherwise=answer.reason or str(answer))


def words_in(answer: Answer) -> str:
    """Return the text of the API server about a call that it refused or could not carry out."""
    otherwise = answer.reason or str(answer)
    if answer.status in {HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return _refusal(answer.message, forbidden=answer.status == HTTPStatus.FORBIDDEN, otherwise=otherwise).text
    return _failure(answer.message) or otherwise


def failure_in(message: str) -> str:
    """Return the text of the API server in the message of a controller that could not create a Pod."""
    _, found, rest = message.partition(_INTERNAL)
    return _failure(found + rest if found else message)


def _failure(message: str) -> str:
    return in_one_line(message.partition(_QUOTES)[0], longest=_LONGEST)


def refusal_in(message: str) -> Refusal | None:
    """Return the refusal of a Pod that a controller tried to create. `message` is the message of the controller.

    Return None if the API server did not refuse the Pod, but failed.
    """
    if _INTERNAL in message:
        return None
    forbidden = "is invalid: " not in message
    return _refusal(message, forbidden=forbidden, otherwise="the controller could not create the Pod")


def _refusal(message: str, *, forbidden: bool, otherwise: str) -> Refusal:
    _, quota, rest = message.partition("exceeded quota: ")
    if quota:
        return Refusal(quota=True, text=in_one_line(quota + rest, longest=_LONGEST))
    if forbidden or _DENIED in message:  # the text of a webhook that denies the request has the status that it chooses
        _, found, rest = message.partition("is forbidden: ")
        return Refusal(quota=False, text=in_one_line(rest if found else message, longest=_LONGEST) or otherwise)
    fields = "; ".join(f"{field}: {what}" for field, what in _FIELD.findall(message))
    return Refusal(quota=False, text=(fields or otherwise)[:_LONGEST])
