"""Cursors of lists. A cursor is a signed position in a list. The next page of the list begins after this position.

A cursor is valid only for the list and the filters that it was made for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from http import HTTPStatus

from ostler.secrets import Secret
from web.api.problems import Refusal

_POSITION = 8
_MAC = 16


class Cursors:
    """Makes and verifies cursors.

    A signing key is derived from each encryption key. The newest key signs cursors, and all keys verify cursors.
    """

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = [hmac.digest(key.reveal().encode(), b"ostler list cursor", hashlib.sha256) for key in keys]

    def make(self, listing: str, position: int | None) -> str | None:
        """Return the cursor for a position in a list. Return None if `position` is None.

        `listing` is a text with the name and the filters of the list.
        """
        if position is None:
            return None
        place = position.to_bytes(_POSITION, "big")
        return base64.urlsafe_b64encode(place + _mac(self._keys[0], listing, place)).decode()

    def read(self, listing: str, cursor: str | None) -> int | None:
        """Return the position that a cursor stands for. Return None if `cursor` is None.

        Raises Refusal (422) if the cursor was made for another `listing`, or is malformed.
        """
        if cursor is None:
            return None
        try:
            raw = base64.b64decode(cursor, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        place, mac = raw[:_POSITION], raw[_POSITION:]
        if len(raw) != _POSITION + _MAC or not any(
            hmac.compare_digest(mac, _mac(key, listing, place)) for key in self._keys
        ):
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-field",
                "A field is invalid",
                "This cursor is malformed, or was made for another list or other filters; omit it to get the first "
                "page",
                field="cursor",
            )
        return int.from_bytes(place, "big")


def _mac(key: bytes, listing: str, place: bytes) -> bytes:
    return hmac.digest(key, listing.encode() + b"\0" + place, hashlib.sha256)[:_MAC]
