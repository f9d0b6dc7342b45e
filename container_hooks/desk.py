"""One command of container hooks at a time: start it, cancel it if `hook.sh` is gone, and count refused requests."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from container_hooks.conversation import CommandCancelled, Conversation, Limits
from ostler import logging
from ostler.errors import OstlerError

log = logging.get_logger(__name__)

COMMANDS = ("prepare_job", "run_script_step", "run_container_step", "cleanup_job")
CLEANUP = "cleanup_job"
_SHOWN = 3  # maximum number of refusals that the log of one command shows


class Refused(OstlerError):
    """A request at the socket was refused. The message is one line for the log of the job.

    `reason` is a short word for the log event, and `status` is the HTTP status.
    """

    def __init__(self, message: str, *, reason: str, status: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


@dataclass(frozen=True, slots=True)
class Session:
    """Access of one command to its runner. `environment` has the folders of the job, as the runner named them."""

    conversation: Conversation
    environment: Mapping[str, str]


Execute = Callable[[bytes, Session], int]
"""Executes a command and returns its exit code. The first argument is the JSON object of the runner, not parsed."""


class _Named(msgspec.Struct):
    command: msgspec.Raw = msgspec.Raw(b"null")


def command_of(content: bytes) -> str:
    """Return the command of the runner. Raises `Refused` if the content is no JSON object with a known command.

    The other fields are not decoded. Decoding 4 MiB of JSON can need 100 MiB of memory, and many requests can
    arrive at once.
    """
    try:
        written = bytes(msgspec.json.decode(content, type=_Named).command)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("the command of container hooks is not a JSON object", reason="not_json", status=400) from error
    command = written.decode(errors="replace").strip('"')
    if command not in COMMANDS:
        raise Refused(
            f"the command of container hooks must be one of {', '.join(COMMANDS)}, not {command[:80]!r}",
            reason="unknown_command",
            status=400,
        )
    return command


class Desk:
    """The present command of a runner Pod."""

    def __init__(self, execute: Execute, limits: Limits, *, restart: Callable[[], None] | None = None) -> None:
        self._execute = execute
        self._limits = limits
        self._restart = restart or (lambda: os._exit(70))
        self._taking = threading.Lock()
        self._id = ""
        self._present: Conversation | None = None
        self._command = ""
        self._refusals: Counter[str] = Counter()
        self._since = 0  # refusals since the last command began
        self._shown = 0  # refusals since then that the log of the command shows
        self._lock = threading.Lock()

    def begin(self, content: bytes, environment: Mapping[str, str]) -> str:
        """Start the command in the JSON `content`, and return its id.

        Raises `Refused` if `content` is no command, or if another command still runs after the limits `busy` and
        `stuck`.
        """
        command = command_of(content)
        if not self._taking.acquire(timeout=self._limits.busy):
            raise self._busy()
        try:
            self._wait_for_present(cleanup=command == CLEANUP)
            return self._start(command, content, environment)
        finally:
            self._taking.release()

    def conversation(self, known: str) -> Conversation:
        """Return the present command. Raises `Refused` if it has another id."""
        present = self._present
        if present is None or not secrets.compare_digest(known.encode(), self._id.encode()):
            raise Refused(
                "the sidecar of container jobs was restarted, or another command began. This command is lost; run the "
                "job again",
                reason="unknown_id",
                status=410,
            )
        return present

    def refuse(self, error: Refused) -> None:
        """Count a refusal, write a log event, and show the refusal in the log of the present command."""
        with self._lock:
            self._refusals[error.reason] += 1
            count = self._refusals.total()
            present = self._present
            shown = present is not None and not present.ended and self._shown < _SHOWN
            self._since += 1
            self._shown += shown
        log.warning("hooks.request_refused", reason=error.reason, refusals_since_start=count, detail=str(error))
        if shown and present is not None:
            present.log.line(f"ostler: refused a request at the socket of container jobs: {error}")

    def refused(self) -> int:
        """Return the number of refused requests since the start of the sidecar."""
        return self._refusals.total()

    def watch(self, stop: threading.Event, *, every: float = 1.0) -> None:
        """Cancel the present command when `hook.sh` is silent. Return when `stop` is set."""
        while not stop.wait(every):
            present = self._present
            if present is not None and not present.ended and present.silence() > self._limits.silent:
                self.cancel(present, "hook.sh ended or does not answer")

    def cancel(self, conversation: Conversation, why: str) -> None:
        """Cancel a command that has not ended."""
        if not conversation.ended and not conversation.cancelled:
            log.warning("hooks.command_cancelled", command=self._command, why=why)
            conversation.cancel(why)

    def clean_up(self, *, within: float) -> bool:
        """Cancel the present command and execute `cleanup_job`, unless `cleanup_job` is the last command of the runner.

        The sidecar calls this method before it ends. No command begins afterwards. Return False if the cleanup takes
        more than `within` seconds.
        """
        deadline = time.monotonic() + within
        if not self._taking.acquire(timeout=within):
            return False
        present = self._present
        if present is None:
            return True
        if self._command != CLEANUP:
            self.cancel(present, "the sidecar ends, because container `runner` has ended")
            if not present.wait_ended(within):
                return False
            self._start(CLEANUP, b'{"command": "%s"}' % CLEANUP.encode(), {})
            present = self.conversation(self._id)
            present.started.set()
        return present.wait_ended(max(deadline - time.monotonic(), 0))

    def _busy(self) -> Refused:
        return Refused(
            "another command of container hooks is still running in this Pod; the runner must wait for its end",
            reason="busy",
            status=409,
        )

    def _wait_for_present(self, *, cleanup: bool) -> None:
        """Wait until no command runs. Cancel a command whose `hook.sh` is gone, and any command before cleanup_job."""
        present, waited, step = self._present, 0.0, 0.2
        while present is not None and not present.wait_ended(step):
            waited += step
            if present.cancelled:
                if waited > self._limits.stuck:
                    log.error("hooks.command_stuck", command=self._command, waited_seconds=waited)
                    self._restart()
                    raise self._busy()
            elif present.silence() > self._limits.silent_when_wanted:
                self.cancel(present, "hook.sh ended or does not answer, and another command waits")
                waited = 0
            elif cleanup and waited > self._limits.cleanup:
                self.cancel(present, "cleanup_job cancels every other command")
                waited = 0
            elif waited > self._limits.busy:
                raise self._busy()

    def _start(self, command: str, content: bytes, environment: Mapping[str, str]) -> str:
        conversation = Conversation(self._limits)
        with self._lock:
            unshown = self._since - self._shown
            self._since = self._shown = 0
            self._id, self._present, self._command = secrets.token_hex(8), conversation, command
        threading.Thread(
            target=self._run, args=(command, content, Session(conversation, environment), unshown), daemon=True
        ).start()
        return self._id

    def _run(self, command: str, content: bytes, session: Session, unshown: int) -> None:
        if unshown:
            session.conversation.log.line(
                f"ostler: requests refused at the socket of container jobs before this command: {unshown}"
            )
        try:
            code = session.conversation.run(lambda: self._guarded(command, content, session))
        except CommandCancelled:  # the command never began
            return
        log.info("hooks.command_ended", command=command, exit_code=code)

    def _guarded(self, command: str, content: bytes, session: Session) -> int:
        """Return the exit code of a command. An error becomes one line in the log of the job."""
        log.info("hooks.command_began", command=command)
        try:
            return self._execute(content, session)
        except CommandCancelled as error:
            log.info("hooks.command_stopped", command=command, why=str(error))
        except OstlerError as error:
            session.conversation.log.line(f"ostler: {' '.join(str(error).split())}")
        except Exception as error:
            log.exception("hooks.command_failed", command=command)
            session.conversation.log.line(
                f"ostler: the sidecar of container jobs has a bug ({type(error).__name__}); the log of container "
                "`hooks` has the details"
            )
        return 1
