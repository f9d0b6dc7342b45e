"""Refusals of a Pod by the API server. The Pod is invalid or forbidden, or a quota is used up.

The text of a refusal is written to a status that many users can read. If a field of the Pod is wrong, the text names
the field, but never shows its value (law L13).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from k8s_adapters.retry import answer_of
from ostler.errors import Forbidden, Invalid, UpstreamError

_LONGEST = 300
_FIELD = re.compile(
    r"([a-zA-Z][\w.\[\]\"/-]*): (Invalid value|Required value|Unsupported value|Forbidden|Duplicate value|Too long)"
)


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


def refusal_in(message: str) -> Refusal:
    """Return the refusal of a Pod that a controller tried to create. `message` is the message of the controller."""
    forbidden = "is invalid: " not in message
    return _refusal(message, forbidden=forbidden, otherwise="the controller could not create the Pod")


def _refusal(message: str, *, forbidden: bool, otherwise: str) -> Refusal:
    _, quota, rest = message.partition("exceeded quota: ")
    if quota:
        return Refusal(quota=True, text=(quota + rest)[:_LONGEST])
    if forbidden:
        _, found, rest = message.partition("is forbidden: ")
        return Refusal(quota=False, text=(rest if found else message)[:_LONGEST] or otherwise)
    fields = "; ".join(f"{field}: {what}" for field, what in _FIELD.findall(message))
    return Refusal(quota=False, text=(fields or otherwise)[:_LONGEST])
