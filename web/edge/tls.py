"""TLS of the port for polls: the certificate, and the connections until their handshakes are done.

The kubelet or cert-manager replaces the files of the certificate and its key. A task reads the two files again when
they have changed. Existing connections continue with the old certificate, so no held poll is cut off. If only one of
the files was replaced, the key does not belong to the certificate. The error is then logged, and the previous
certificate stays in use.

A connection counts in the cap of its port as soon as it is accepted. A client that never completes its handshake is
therefore dropped in the same way as an idle client without TLS.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from ostler.errors import ConfigurationError
from ostler.logging import get_logger
from ostler.reasons import reason_of
from web.edge.connections import Connections
from web.edge.refused_log import RefusedLog

CHECK_EVERY = 10.0
"""Seconds between two checks of the files.

The kubelet updates the files within one or two minutes after a Secret has changed.
"""

HANDSHAKE_WITHIN = 10.0
"""Seconds from the acceptance of a connection within which the handshake must be done."""

SHUTDOWN_WITHIN = 5.0
"""Seconds within which a client must close the TLS session after the last answer."""

_PAUSE = 0.1
"""Seconds to wait after a connection could not be accepted."""

_CERTIFICATE, _KEY = "OSTLER_WEB_POLLS_TLS_CERT", "OSTLER_WEB_POLLS_TLS_KEY"

_M_MMAP_THRESHOLD = -3
_OWN_PAGES_FROM = 128 * 1024
"""Size in bytes. glibc maps each buffer of at least this size separately.

If a program does not set this size, glibc changes it while the program runs.
"""

log = get_logger(__name__)
_failed = RefusedLog(log, "tls.handshake_failed")
_refused = RefusedLog(log, "tls.connection_not_accepted")


@dataclass(frozen=True, slots=True)
class _Loaded:
    files: tuple[bytes, bytes]
    context: ssl.SSLContext
    ends_at: datetime


def keep_large_buffers_apart() -> bool:
    """Make glibc map each large buffer separately. Return True if glibc does so.

    Other C libraries are not changed. uvloop allocates a buffer of 256 KiB for each connection with TLS. A poll uses
    two or three pages of this buffer. By default, glibc stops mapping such buffers separately when the first one is
    freed. Later buffers are then allocated on the heap, among pages that earlier objects have used. A held poll would
    therefore take more memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_FROM) == 1


class Certificate:
    """The certificate that new connections use.

    The constructor raises ConfigurationError if the files cannot be used.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._paths = (Path(certificate), Path(key))
        self._reported: str | None = None
        self._loaded = self._load(self._read())

    @property
    def context(self) -> ssl.SSLContext:
        """Return the TLS context for new connections."""
        return self._loaded.context

    @property
    def ends_at(self) -> datetime:
        """Return the time at which the certificate that is in use expires."""
        return self._loaded.ends_at

    def check(self) -> bool:
        """Load the files again if they have changed. Return True if a new certificate is in use now.

        If the new files cannot be used, log the error once and return False. The previous certificate then stays in
        use.
        """
        try:
            files = self._read()
            changed = files != self._loaded.files
            if changed:
                self._loaded = self._load(files)
        except ConfigurationError as error:
            if self._reported != str(error):
                self._reported = str(error)
                log.warning(
                    "tls.certificate_not_loaded",
                    error=str(error),
                    previous_certificate_valid_until=self.ends_at.isoformat(),
                )
            return False
        self._reported = None
        if changed:
            log.info("tls.certificate_loaded", valid_until=self.ends_at.isoformat())
        return changed

    async def keep(self) -> None:
        """Check the files every `CHECK_EVERY` seconds until this task is cancelled.

        An unexpected error is logged and does not end the task.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY)
            try:
                self.check()
            except Exception:
                log.exception("tls.certificate_check_failed", loaded_certificate_valid_until=self.ends_at.isoformat())

    def _read(self) -> tuple[bytes, bytes]:
        found: list[bytes] = []
        for path, variable in zip(self._paths, (_CERTIFICATE, _KEY), strict=True):
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ConfigurationError(
                    f"{variable}: cannot read {path}: {error.strerror}; must be a readable file in PEM"
                ) from None
        return found[0], found[1]

    def _load(self, files: tuple[bytes, bytes]) -> _Loaded:
        try:
            ends_at = x509.load_pem_x509_certificate(files[0]).not_valid_after_utc
        except ValueError:
            raise ConfigurationError(
                f"{_CERTIFICATE}: {self._paths[0]} contains no certificate; must be a certificate in PEM"
            ) from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Each poll is a new curl process, which never resumes a session. Session tickets would therefore be useless.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._paths, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"{_KEY}: {self._paths[1]} is not the key of the certificate in {self._paths[0]} ({reason}); "
                "must be that key in PEM, without a password"
            ) from None
        if self._read() != files:
            raise ConfigurationError(
                f"{_CERTIFICATE}: {self._paths[0]} is being replaced; a running process reads it again within "
                f"{CHECK_EVERY:.0f} seconds, and a process that could not start must be started again"
            )
        return _Loaded(files, context, ends_at)


class Gate:
    """The TLS listener. It accepts connections. After the handshake of a connection, it calls `make` for a protocol."""

    def __init__(
        self,
        listening: socket.socket,
        certificate: Certificate,
        *,
        connections: Connections,
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._certificate = certificate
        self._connections = connections
        self._make = make
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self, *, backlog: int) -> None:
        """Listen on the socket and start to accept connections."""
        self._listening.setblocking(False)  # noqa: FBT003  the method has only a positional parameter
        self._listening.listen(backlog)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        """Stop accepting connections, and abort the connections that are still in their handshake.

        All other connections continue. Uvicorn later closes these connections when it shuts down.
        """
        tasks = [*self._handshakes, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # no file descriptor is free, or the client has left
                _refused.add(reason=error.strerror)
                await asyncio.sleep(_PAUSE)
                continue
            task = loop.create_task(self._handshake(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket) -> None:
        waiting = _Handshake()
        self._connections.waits(waiting)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._certificate.context,
                ssl_handshake_timeout=HANDSHAKE_WITHIN,
                ssl_shutdown_timeout=SHUTDOWN_WITHIN,
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
            _failed.add(reason=getattr(error, "reason", None) or reason_of(error))
        finally:
            self._connections.remove(waiting)


class _Handshake:
    """Entry in the cap of the port for a connection that is still in its handshake."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()

    def drop(self) -> None:
        """Abort the connection."""
        if self._task is not None:
            self._task.cancel()


def _no_password() -> str:
    raise ValueError("the key is encrypted with a password")
