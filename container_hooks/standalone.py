"""One command from standard input: `ostler hook`, for tests and for images that have used the hooks of GitHub.

The process has the files of the runner on its own disk, and needs a token of the Kubernetes API. With the sidecar
`ostler hook serve`, container `runner` needs no token, so runner Pods of Ostler use the sidecar.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from container_hooks.commands import FAILED, error_line, execute
from container_hooks.failures import HookFailed
from container_hooks.inputs import LONGEST_INPUT, parse
from container_hooks.local_files import LocalFiles
from container_hooks.places import NAMESPACE, POD, UID, Place, read_place
from container_hooks.ports import Exec, Ledger
from k8s_adapters.calls.client import METADATA_ONLY, KubeClient, make_client, object_path
from k8s_adapters.calls.execs import ExecClient
from ostler.errors import ConfigurationError, OstlerError
from rules.upstream.retry import HOOKS

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NEEDED = ("RUNNER_WORKSPACE", "GITHUB_WORKSPACE", "RUNNER_TEMP")
_SIGNALLED = 128


class StreamLog:
    """Writes the log of the job to a stream. Implements `Log`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def line(self, text: str) -> None:
        """Write one line."""
        self.raw(f"{text}\n".encode("utf-8", "replace"))

    def raw(self, data: bytes) -> None:
        """Write the output of a process, unchanged."""
        self._stream.write(data)
        self._stream.flush()


def run_once(
    environment: Mapping[str, str],
    *,
    given: BinaryIO,
    shown: BinaryIO,
    connect: Callable[[], KubeClient] | None = None,
    exec_of: Callable[[KubeClient, Place], Exec] | None = None,
) -> int:
    """Execute the command in `given`, write the log of the job to `shown`, and return the exit code.

    Every failure becomes one line. After SIGTERM or SIGINT, the command deletes the objects that it has created, and
    the exit code is 128 plus the number of the signal. `connect` and `exec_of` replace the connections in tests.
    """
    log = StreamLog(shown)
    try:
        command = parse(given.read(LONGEST_INPUT + 1))
        for name in _NEEDED:
            if not environment.get(name):
                raise ConfigurationError(f"{name}: it is not set; the runner sets this variable for its hooks")
        client = (connect or (lambda: _connect(environment)))()
        place = _place(environment, client)
        world = place.world(
            client=client,
            exec_=(exec_of or _exec)(client, place),
            files=LocalFiles(),
            log=log,
            ledger=Ledger(),
            folders=environment,
        )
        with _ended_by_signals():
            return execute(command, world=world)
    except HookFailed as error:
        log.line(error_line(str(error)))
        return error.code
    except OstlerError as error:
        log.line(error_line(str(error)))
        return FAILED


def _connect(environment: Mapping[str, str]) -> KubeClient:
    return make_client(kubeconfig=environment.get("OSTLER_KUBECONFIG"), pool_size=4, policy=HOOKS)


def _exec(client: KubeClient, place: Place) -> Exec:
    return ExecClient(client, place.namespace, heartbeat=place.heartbeat)


def _place(environment: Mapping[str, str], client: KubeClient) -> Place:
    """Return the place. If the environment lacks the namespace or the UID of the Pod, look up the missing value.

    Images for the hooks of GitHub might set neither of them.
    """
    known = dict(environment)
    if not known.get(NAMESPACE) and _NAMESPACE_FILE.exists():
        known[NAMESPACE] = _NAMESPACE_FILE.read_text().strip()
    if not known.get(UID) and known.get(NAMESPACE) and known.get(POD):
        path = object_path("pods", namespace=known[NAMESPACE], name=known[POD])
        known[UID] = client.request("GET", path, accept=METADATA_ONLY)["metadata"]["uid"]
    return read_place(known)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise `SystemExit` in the block after a signal, so that the block can delete the objects that it has created."""

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(_SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
