"""Commands of container hooks: start them, cancel those whose `hook.sh` is gone, and count refused requests."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from container_hooks.conversation import CommandCancelled, Conversation, Limits
from ostler import logging
from ostler.errors import OstlerError

log = logging.get_logger(__name__)

CLEANUP, CONTAINER_STEP = "cleanup_job", "run_container_step"
COMMANDS = ("prepare_job", "run_script_step", CONTAINER_STEP, CLEANUP)
STEPS = frozenset({"run_script_step", CONTAINER_STEP})
_SHOWN = 3  # maximum number of refusals that the log of one command shows
_PAUSE = 1.0  # seconds without a request of `hook.sh`; between two requests of a living script pass milliseconds
_BUSY = "another command of container hooks is still running in this Pod; the runner must wait for its end"
_SILENT = "hook.sh ended or does not answer"


class Busy(OstlerError):
    """Another command did not end in time."""


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
    """Access of one command to its runner.

    `environment` has the folders of the job, as the runner named them. `alone` returns whether no other command has
    begun. If so, no other command begins before the end of this one.
    """

    conversation: Conversation
    environment: Mapping[str, str]
    alone: Callable[[], bool]


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


@dataclass(slots=True, kw_only=True, eq=False)
class _Command:
    """One command of the runner, from its request until its result was read.

    `began` is true when the command does not wait for others any more. `alone` is true if others wait for its end.
    """

    id: str
    name: str
    conversation: Conversation
    began: bool = False
    alone: bool = False


class Desk:
    """The commands of a runner Pod.

    Steps run at the same time, up to the limit `at_once`. Each of them has its own conversation. `prepare_job` waits
    for every earlier command, and `cleanup_job` ends every earlier command. Only one step in a container of its own
    runs at a time, because the budget of the account counts one.
    """

    def __init__(self, execute: Execute, limits: Limits, *, restart: Callable[[], None] | None = None) -> None:
        self._execute = execute
        self._limits = limits
        self._restart = restart or (lambda: os._exit(70))
        self._commands: dict[str, _Command] = {}  # by id, in the order of their requests
        self._last = ""  # name of the newest command
        self._closed = False
        self._refusals: Counter[str] = Counter()
        self._since = 0  # refusals since the last command began
        self._shown = 0  # refusals since then that the log of a command shows
        self._lock = threading.Lock()

    def begin(self, content: bytes, environment: Mapping[str, str]) -> str:
        """Start the command in the JSON `content`, and return its id. The command might wait for others before it acts.

        Raises `Refused` if `content` is no command, or if too many commands wait.
        """
        command = command_of(content)
        with self._lock:
            ended = [each for each in self._commands.values() if each.conversation.ended]
            for each in ended[: len(self._commands) + 1 - self._limits.commands]:
                del self._commands[each.id]
            if self._closed or len(self._commands) >= self._limits.commands:
                raise Refused(_BUSY, reason="busy", status=409)
            return self._start(command, content, environment)

    def conversation(self, known: str) -> Conversation:
        """Return the conversation of the command with this id. Raises `Refused` if there is none."""
        for each in self._all():
            if secrets.compare_digest(known.encode(), each.id.encode()):
                return each.conversation
        raise Refused(
            "the sidecar of container jobs was restarted, or the command ended long ago. This command is lost; run the "
            "job again",
            reason="unknown_id",
            status=410,
        )

    def refuse(self, error: Refused) -> None:
        """Count a refusal, write a log event, and show the refusal in the log of the newest running command."""
        running = self._running()
        with self._lock:
            self._refusals[error.reason] += 1
            count = self._refusals.total()
            shown = bool(running) and self._shown < _SHOWN
            self._since += 1
            self._shown += shown
        log.warning("hooks.request_refused", reason=error.reason, refusals_since_start=count, detail=str(error))
        if shown:
            running[-1].conversation.log.line(f"ostler: refused a request at the socket of container jobs: {error}")

    def refused(self) -> int:
        """Return the number of refused requests since the start of the sidecar."""
        return self._refusals.total()

    def watch(self, stop: threading.Event, *, every: float = 1.0) -> None:
        """Cancel commands whose `hook.sh` is silent, and forget old ones. Return when `stop` is set."""
        while not stop.wait(every):
            for each in self._all():
                if each.conversation.silence() <= self._limits.silent:
                    continue
                if each.conversation.ended:
                    with self._lock:
                        self._commands.pop(each.id, None)
                else:
                    self.cancel(each.conversation, _SILENT)

    def cancel(self, conversation: Conversation, why: str) -> None:
        """Cancel a command that has not ended."""
        if not conversation.ended and not conversation.cancelled:
            names = [each.name for each in self._all() if each.conversation is conversation]
            log.warning("hooks.command_cancelled", command="".join(names), why=why)
            conversation.cancel(why)

    def clean_up(self, *, within: float) -> bool:
        """Cancel all commands and execute `cleanup_job`, unless `cleanup_job` is the last command of the runner.

        The sidecar calls this method before it ends. No command begins afterwards. Return False if the cleanup takes
        more than `within` seconds.
        """
        deadline = time.monotonic() + within
        with self._lock:
            self._closed = True
            last = self._last
        if last not in {"", CLEANUP}:
            running = self._running()
            for each in running:
                self.cancel(each.conversation, "the sidecar ends, because container `runner` has ended")
            if not _all_ended(running, deadline):
                return False
            with self._lock:
                known = self._start(CLEANUP, b'{"command": "%s"}' % CLEANUP.encode(), {})
            self.conversation(known).started.set()
        return _all_ended(self._running(), deadline)

    def _all(self) -> Sequence[_Command]:
        with self._lock:
            return list(self._commands.values())

    def _running(self) -> Sequence[_Command]:
        return [each for each in self._all() if not each.conversation.ended]

    def _wait_for_turn(self, own: _Command) -> None:
        """Wait until no earlier command is in the way. Raises `CommandCancelled` if the command is cancelled."""
        conversation, step, told = own.conversation, 0.2, False
        began = time.monotonic()
        cancelled: dict[str, float] = {}  # seconds that this command has waited for each cancelled one
        while others := self._begin_unless(own):
            waited = time.monotonic() - began
            for each in others:
                if each.conversation.cancelled:
                    cancelled[each.id] = cancelled.get(each.id, 0) + step
                elif each.conversation.silence() > self._limits.silent_when_wanted:
                    self.cancel(each.conversation, f"{_SILENT}, and another command waits")
                elif own.name == CLEANUP and waited > self._limits.cleanup:
                    self.cancel(each.conversation, "cleanup_job cancels every other command")
                elif waited > self._limits.busy and not {own.name, each.name} <= STEPS:
                    raise Busy(_BUSY)
            if max(cancelled.values(), default=0) > self._limits.stuck:
                living = [each for each in self._running() if each is not own and not each.conversation.cancelled]
                if living and own.name in STEPS:  # a restart would end them too
                    own.began = True
                    return
                log.error("hooks.command_stuck", waiting=own.name, waited_seconds=waited)
                self._restart()
                raise Busy(_BUSY)
            if not told and waited > self._limits.told:
                told = True
                names = ", ".join(sorted({each.name for each in others}))
                conversation.log.line(f"ostler: {own.name} waits for {len(others)} earlier commands to end ({names})")
            conversation.timing.sleep(step)

    def _begin_unless(self, own: _Command) -> Sequence[_Command]:
        """Return the earlier commands that must end before this one begins. If there are none, this one begins."""
        with self._lock:
            running = [each for each in self._commands.values() if not each.conversation.ended]
            found = self._in_the_way(own, running)
            own.began = not found
        return found

    def _is_alone(self, own: _Command) -> bool:
        """Return whether no other command has begun. The later ones then wait for the end of this one."""
        with self._lock:
            own.alone = not any(
                each.began for each in self._commands.values() if each is not own and not each.conversation.ended
            )
        return own.alone

    def _in_the_way(self, own: _Command, running: Sequence[_Command]) -> Sequence[_Command]:
        earlier = list(takewhile(lambda each: each is not own, running))
        if own.name not in STEPS:
            return earlier
        if len(earlier) >= self._limits.at_once:
            return earlier
        alone = {CONTAINER_STEP} if own.name == CONTAINER_STEP else set()
        return [
            each
            for each in earlier
            if each.name not in STEPS - alone
            or each.alone
            or each.conversation.cancelled
            or each.conversation.silence() > _PAUSE
        ]

    def _start(self, name: str, content: bytes, environment: Mapping[str, str]) -> str:
        """Start the thread of a command, and return its id. The caller has the lock."""
        own = _Command(id=secrets.token_hex(8), name=name, conversation=Conversation(self._limits))
        unshown = self._since - self._shown
        self._since = self._shown = 0
        self._commands[own.id] = own
        self._last = name
        session = Session(own.conversation, environment, lambda: self._is_alone(own))
        threading.Thread(target=self._run, args=(own, content, session, unshown), daemon=True).start()
        return own.id

    def _run(self, own: _Command, content: bytes, session: Session, unshown: int) -> None:
        if unshown:
            session.conversation.log.line(
                f"ostler: requests refused at the socket of container jobs before this command: {unshown}"
            )
        try:
            code = session.conversation.run(lambda: self._guarded(own, content, session))
        except CommandCancelled:  # the command never began
            return
        log.info("hooks.command_ended", command=own.name, exit_code=code)

    def _guarded(self, own: _Command, content: bytes, session: Session) -> int:
        """Return the exit code of a command. An error becomes one line in the log of the job."""
        try:
            self._wait_for_turn(own)
            log.info("hooks.command_began", command=own.name)
            return self._execute(content, session)
        except CommandCancelled as error:
            log.info("hooks.command_stopped", command=own.name, why=str(error))
        except OstlerError as error:
            session.conversation.log.line(f"ostler: {' '.join(str(error).split())}")
        except Exception as error:
            log.exception("hooks.command_failed", command=own.name)
            session.conversation.log.line(
                f"ostler: the sidecar of container jobs has a bug ({type(error).__name__}); the log of container "
                "`hooks` has the details"
            )
        return 1


def _all_ended(commands: Sequence[_Command], deadline: float) -> bool:
    """Return whether all commands have ended at `deadline`, a time of the monotonic clock."""
    return all(each.conversation.wait_ended(max(deadline - time.monotonic(), 0)) for each in commands)
