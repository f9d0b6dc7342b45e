"""Projected token of a Pod: requested for its volume and renewed before it expires, as by the real kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lab.kubelet.cluster import Cluster, GoneError, RefusedError, Token
from lab.kubelet.pods import PodView, TokenVolume

RENEW_AT = 0.8
"""Share of a token's lifetime after which it is renewed."""
RETRY_SECONDS = 1.0


class TokenRenewer:
    """Renews the token that the volume `asked` of a Pod requests.

    If `file` is not None, each new token replaces it atomically.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        pod: PodView,
        file: Path | None,
        asked: TokenVolume | None,
        refused: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._pod = pod
        self._file = file
        self._asked = asked
        self._refused = refused
        self.value = ""

    async def first(self) -> int:
        """Request the token until the API server issues it.

        Return the lifetime of the token in seconds, or 0 if no volume requests a token.
        """
        while self._asked is not None:
            try:
                return await self._renew()
            except (GoneError, RefusedError) as error:
                # The Pod waits, as with a volume that cannot be mounted yet. If the Pod is gone, the watch stops this
                # worker.
                self._refused(str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return 0

    async def renew_forever(self, life: int) -> None:
        """Renew the token until cancelled. `life` is the lifetime of the current token in seconds."""
        while life:
            await asyncio.sleep(life * RENEW_AT)
            life = await self.first()

    async def _renew(self) -> int:
        asked = self._asked
        if asked is None:
            raise AssertionError("no volume asks for a token")
        token: Token = await self._cluster.token(
            self._pod.key, account=self._pod.account, audience=asked.audience, seconds=asked.seconds
        )
        self.value = token.value
        if self._file is not None:
            fresh = self._file.with_name(f".{self._file.name}.new")
            fresh.touch(mode=0o600)
            fresh.write_text(token.value)
            fresh.replace(self._file)
        return token.seconds
