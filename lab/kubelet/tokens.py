"""A Pod's projected token: requested for its volume, renewed ahead of its end, as the real kubelet does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from lab.kubelet.cluster import Cluster, GoneError, RefusedError, Token
from lab.kubelet.pods import PodView

RENEW_AT = 0.8
"""The share of its life after which a token is renewed."""
RETRY_SECONDS = 1.0


class TokenRenewer:
    """Renews one Pod's token. `file`, when there is one, is replaced in one step with each new token."""

    def __init__(self, *, cluster: Cluster, pod: PodView, file: Path | None, refused: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._pod = pod
        self._file = file
        self._refused = refused
        self.value = ""

    async def first(self) -> int:
        """Have the first token, however long it takes; return its life in seconds. 0 when no volume asks for one."""
        while self._pod.token is not None:
            try:
                return await self._renew()
            except (GoneError, RefusedError) as error:
                # As a volume that cannot be mounted yet: the Pod waits. Should it be gone, the watch ends us.
                self._refused(str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return 0

    async def renew_forever(self, life: int) -> None:
        """Renew until cancelled."""
        while life:
            await asyncio.sleep(life * RENEW_AT)
            life = await self.first()

    async def _renew(self) -> int:
        asked = self._pod.token
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
