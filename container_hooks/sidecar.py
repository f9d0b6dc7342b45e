"""The process of `ostler hook serve`: it serves the socket and executes the commands with the token of the Pod."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from container_hooks.commands import execute
from container_hooks.conversation import Limits
from container_hooks.desk import Desk, Execute, Session
from container_hooks.inputs import LONGEST_INPUT, parse
from container_hooks.places import read_place
from container_hooks.ports import Ledger
from container_hooks.serve import HookServer
from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.calls.execs import ExecClient
from ostler import logging
from rules.upstream.retry import HOOKS

SOCKET = "OSTLER_HOOKS_SOCKET"
DEFAULT_SOCKET = "/var/run/ostler-hooks/hooks.sock"
_ENDS_WITHIN = 20.0
"""Seconds that a sidecar may delete hook Pods before it ends.

The sidecar often has less time, because it shares the grace period of its Pod with the container `runner`. The garbage
collector deletes the remaining hook Pods.
"""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
log = logging.get_logger(__name__)


def run_sidecar(environment: Mapping[str, str]) -> None:
    """Serve the socket until SIGTERM or SIGINT. Raises `ConfigurationError` if a variable is missing or wrong."""
    client = make_client(kubeconfig=environment.get("OSTLER_KUBECONFIG"), pool_size=10, policy=HOOKS)
    server = HookServer(
        Path(environment.get(SOCKET) or DEFAULT_SOCKET),
        commands_of(environment, client),
        limits=Limits(input=LONGEST_INPUT),
    )

    end_by_signals(server.desk)
    log.info("hooks.serving", socket=environment.get(SOCKET) or DEFAULT_SOCKET)
    server.serve()


def end_by_signals(desk: Desk, *, within: float = _ENDS_WITHIN) -> None:
    """End the process after SIGTERM or SIGINT, when the hook Pods of an interrupted job are deleted.

    The kubelet ends the sidecar only after the container `runner` has ended. No process reads the result of a running
    command then. If the runner was killed, its step would otherwise run until the garbage collector deletes the hook
    Pods with the runner Pod. `within` limits the time in seconds.
    """

    def end() -> None:
        log.info("hooks.stopped", cleaned_up=desk.clean_up(within=within))
        sys.stderr.flush()
        os._exit(0)

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # The cleanup runs in its own thread, because the interrupted main thread might have a lock that the cleanup
        # needs.
        threading.Thread(target=end, daemon=True).start()

    for number in _SIGNALS:
        signal.signal(number, stop)


def commands_of(environment: Mapping[str, str], client: KubeClient) -> Execute:
    """Return the function that executes a command. All commands of a runner Pod share connections and the ledger.

    Raises `ConfigurationError` if a variable is missing or wrong.
    """
    place, ledger = read_place(environment), Ledger()

    def run(content: bytes, session: Session) -> int:
        conversation = session.conversation
        # The client uses the clock of the command, so that the calls of a cancelled command end early.
        own = client.with_timing(conversation.timing)
        world = place.world(
            client=own,
            exec_=ExecClient(own, place.namespace, heartbeat=place.heartbeat),
            files=conversation.files,
            log=conversation.log,
            ledger=ledger,
            folders=session.environment,
            alone=session.alone,
        )
        return execute(parse(content), world=world)

    return run
