"""WebSockets through the proxy: bytes in both directions, and the faults that an exec can meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lab.faults.fault import Fault, Kind
from lab.faults.wire import Wire

_CLOSE_FRAME = b"\x88\x02\x03\xe8"  # of a server, with code 1000
_DATA = {1, 2}
_STATUS_CHANNEL = 3
_LENGTH_OF_2, _LENGTH_OF_8 = 126, 127


async def tunnel(client: Wire, upstream: Wire, fault: Fault | None) -> None:
    """Forward both directions until one side closes its connection, or until the fault ends the stream."""
    ways = [asyncio.ensure_future(_forward(client, upstream)), asyncio.ensure_future(_back(upstream, client, fault))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    if fault is not None and fault.kind == Kind.CUT:
        client.reset()
    elif fault is not None and fault.kind == Kind.FREEZE:
        await client.ended()


async def _forward(source: Wire, target: Wire) -> None:
    async for piece in source.rest():
        await target.send(piece)


async def _back(upstream: Wire, client: Wire, fault: Fault | None) -> None:
    """Forward to the client, and return where the fault ends the stream."""
    if fault is None or fault.kind not in {Kind.CUT, Kind.CLOSE, Kind.FREEZE}:
        await _forward(upstream, client)
    elif fault.kind == Kind.CLOSE:
        sent = 0
        async for frame in _frames(upstream):
            if sent >= fault.after_bytes or _is_status(frame):
                break
            await client.send(frame)
            sent += len(frame)
        await client.send(_CLOSE_FRAME)
    else:
        left = fault.after_bytes
        if not left:
            return
        async for piece in upstream.rest():
            await client.send(piece[:left])
            left -= len(piece)
            if left <= 0:
                return


async def _frames(wire: Wire) -> AsyncIterator[bytes]:
    """Yield the frames of a server, which are not masked."""
    buffer = b""
    async for piece in wire.rest():
        buffer += piece
        while (size := _size(buffer)) is not None and len(buffer) >= size:
            yield buffer[:size]
            buffer = buffer[size:]


def _size(buffer: bytes) -> int | None:
    """Return the size of the first frame, or None if its head is incomplete."""
    head, length = _head(buffer)
    return None if length is None else head + length


def _head(buffer: bytes) -> tuple[int, int | None]:
    """Return the sizes of the head and the content of a frame. The second is None if the head is incomplete."""
    short = buffer[1] & 0x7F if len(buffer) > 1 else 0
    head = 2 + {_LENGTH_OF_2: 2, _LENGTH_OF_8: 8}.get(short, 0)
    if len(buffer) < head:
        return head, None
    return head, short if head == 2 else int.from_bytes(buffer[2:head], "big")  # noqa: PLR2004 - the shortest head


def _is_status(frame: bytes) -> bool:
    head, length = _head(frame)
    return frame[0] & 0x0F in _DATA and bool(length) and frame[head] == _STATUS_CHANNEL
