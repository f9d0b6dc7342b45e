"""Endpoint of the kubelet: commands in the containers of hook Pods, and the logs of these containers.

The endpoint uses HTTPS, and its address is in the status of the Node. For commands, it speaks versions 5 and 4 of the
exec protocol over WebSocket. The embedded API server always forwards a WebSocket. The real API server does the same for
a Node that declares the feature `ExtendWebSocketsToKubelet`, as this Node does. For other Nodes, the real API server
translates to SPDY, which this endpoint does not support.

There is no authentication. By default, the endpoint listens on the loopback interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import WSMsgType, web

from lab.kubelet.container_logs import read_log
from lab.kubelet.hook_pod import HookPod
from lab.kubelet.rooms import NotStarted, Room
from lab.self_signed import write_certificate

VERSIONS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
_PIECE = 32 * 1024
_LARGEST_MESSAGE = 4 * 1024 * 1024
_LONGEST_LINE = 1024 * 1024  # a request contains the whole command
_DRAIN_SECONDS = 1.0
"""Seconds after the end of a process during which its children may still write to its output."""

FindPod = Callable[[str, str], HookPod | None]


class ExecServer:
    """The endpoint. `find` returns the hook Pod with a namespace and a name, or None."""

    def __init__(self, *, find: FindPod, folder: Path) -> None:
        self._find = find
        self._folder = folder
        self._runner: web.AppRunner | None = None

    async def start(self, host: str) -> int:
        """Listen on a free port of `host` and return the port."""
        certificate = write_certificate(self._folder, name="kubelet")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
        app = web.Application()
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._show_log)
        self._runner = web.AppRunner(
            app, access_log=None, max_line_size=_LONGEST_LINE, max_field_size=_LONGEST_LINE, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, ssl_context=tls).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        place = request.match_info
        pod, container = self._find(place["namespace"], place["pod"]), place["container"]
        if pod is None or not pod.has(container):
            return web.Response(status=404, text=f"container {container} of Pod {place['pod']} not found\n")
        socket = web.WebSocketResponse(protocols=VERSIONS, max_msg_size=_LARGEST_MESSAGE, compress=False)
        if not socket.can_prepare(request).ok:
            return web.Response(status=400, text="you must specify a WebSocket upgrade\n")
        await socket.prepare(request)
        with_stdin = any(request.query.get(name) in {"1", "true"} for name in ("stdin", "input"))
        status = await _run(socket, pod.room(container), request.query.getall("command", []), with_stdin=with_stdin)
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes((STATUS,)) + json.dumps(status).encode())
        await socket.close()
        return socket

    async def _show_log(self, request: web.Request) -> web.StreamResponse:
        place, query = request.match_info, request.query
        pod, container = self._find(place["namespace"], place["pod"]), place["container"]
        path = None if pod is None else pod.log(container)
        if pod is None or path is None:
            return web.Response(status=404, text=f"container {container} of Pod {place['pod']} has no log\n")
        follows = query.get("follow") in {"1", "true"}
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        with contextlib.suppress(ConnectionError):
            async for piece in read_log(
                path,
                times=query.get("timestamps") in {"1", "true"},
                since=query.get("sinceTime"),
                follow=(lambda: pod.room(container) is not None) if follows else None,
            ):
                if not answer.prepared:  # like the real kubelet, which answers when it has the first bytes
                    await answer.prepare(request)
                await answer.write(piece)
        return answer


async def _run(
    socket: web.WebSocketResponse, room: Room | None, command: list[str], *, with_stdin: bool
) -> dict[str, object]:
    """Run a command and return its status."""
    pipe = asyncio.subprocess.PIPE
    if room is None:
        return _not_started("container is not running")
    try:
        process = await room.start(
            command, stdin=pipe if with_stdin else asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except NotStarted as error:
        return _not_started(str(error))
    feeding = asyncio.create_task(_feed(socket, process))
    copying = [
        asyncio.create_task(_copy(socket, stream, channel))
        for stream, channel in ((process.stdout, STDOUT), (process.stderr, STDERR))
    ]
    try:
        code = await room.wait(process)
        await asyncio.wait(copying, timeout=_DRAIN_SECONDS)
    finally:
        for task in (feeding, *copying):
            task.cancel()
        await asyncio.gather(feeding, *copying, return_exceptions=True)
    return _status(code)


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Copy input to a process. When the client is gone, the input ends and the process continues, as in a cluster."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data or process.stdin is None:
            continue
        if message.data[0] == STDIN:
            with contextlib.suppress(ConnectionError):  # the process reads no more
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
        elif message.data[0] == CLOSE and message.data[1:] == bytes((STDIN,)):
            process.stdin.close()
    if process.stdin is not None:
        process.stdin.close()


async def _copy(socket: web.WebSocketResponse, stream: asyncio.StreamReader | None, channel: int) -> None:
    """Copy output of a process. When the client is gone, the output is discarded."""
    if stream is None:
        raise AssertionError("the output is a pipe")
    while piece := await stream.read(_PIECE):
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(bytes((channel,)) + piece)


def _not_started(reason: str) -> dict[str, object]:
    message = f"Internal error occurred: error executing command in container: {reason}"
    return {"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500}


def _status(code: int) -> dict[str, object]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
