"""Processes in containers: run a command in a container of a Pod, with its standard streams and its exit code.

A command must not run twice, and a connection might break at any moment. Most images have a shell, so the API server is
asked to start a shell that waits for a line of input. The client sends this line only after the connection is open. A
handshake that failed has therefore started no command, and is repeated by the one retry layer as any other call.
After the handshake nothing is repeated.

The line also says how the standard input of the command ends. In version 5 of the protocol, the client closes the
stream. Version 4 cannot close a stream, and a `tar` that reads from a pipe waits for the end of the pipe. The shell
then reads blocks with their lengths and gives the command a pipe, which ends after the last block.

With `shell=False` the command is started directly, for images without a shell. The handshake is then repeated only if
the connection could not be opened, after a 429 or 503, and once after a 401 with new credentials. With version 4, the
command must find the end of its input itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

import orjson
from websockets.client import ClientProtocol

from k8s_adapters.calls.client import KubeClient, Line, by_meaning, object_path
from k8s_adapters.calls.exec_stdin import Stdin, StdinFailed
from k8s_adapters.calls.exec_stream import STDOUT, V4, V5, Broken, Exchange, Heartbeat, shake_hands
from k8s_adapters.calls.retry import Answer, answer_of
from ostler.errors import ExecLost, Forbidden, Gone, Invalid, Retryable, UpstreamError
from ostler.upstreams import SERVER_ERROR
from rules.upstream.retry import RetryPolicy

_BLOCK = 256 * 1024
_LONGEST_WORDS = 500
_STARTS_NOTHING = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_PROXY = (
    "a proxy between Ostler and the API server probably does not pass on the WebSockets of `exec`: let it pass on "
    f"`Upgrade: websocket` and the subprotocols {V5} and {V4}, or connect to the API server directly"
)
_MEANINGS: Mapping[int, type[UpstreamError]] = {400: Invalid, 403: Forbidden, 404: Gone}

_WAITING_SHELL = """\
IFS= read -r how || exit 125
case $how in
  closed) exec "$@" < /dev/null ;;
  stream) exec "$@" ;;
  blocks)
    while IFS= read -r size && [ "$size" -gt 0 ]; do
      dd bs="$size" count=1 iflag=fullblock 2> /dev/null || break
    done | "$@"
    exit ;;
esac
exit 125"""
"""Script that waits for a line, and then executes its arguments. Needs `sh`, and in version 4 also `dd`."""


class ExecClient:
    """Runs commands in containers of the Pods of one namespace. Threads may share it."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        heartbeat: Heartbeat | None = None,
        policy: RetryPolicy | None = None,
        shell: bool = True,
    ) -> None:
        """Use `client` for the connections. If `shell` is False, start commands without a shell.

        `policy` limits the attempts of the handshake. If `policy` is None, the policy of the client applies.
        """
        self._client = client
        self._namespace = namespace
        self._heartbeat = heartbeat or Heartbeat()
        self._policy = policy
        self._shell = shell

    def run(
        self,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: Iterable[bytes] | None = None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        writes_often: bool = False,
    ) -> int:
        """Run a command in a container and return its exit code. A command that signal n ended has code 128 + n.

        `stdin` is read by a thread of its own, piece by piece as the command accepts it. `stdout` and `stderr` are
        called in the calling thread. If they block, the command waits. `ExecLost` is also raised if the command accepts
        none of its input for longer than the deadline of the heartbeat. The server answers a ping only after it has
        passed on all earlier input.

        `writes_often` is for a command that writes every few seconds. If such a command writes nothing for the deadline
        of the heartbeat, the connection counts as lost. Pings do not always detect a gone node: an API server might
        answer them itself, and might not notice for 15 minutes that the node is gone.

        Raises `ExecLost` if the exit code did not arrive. Raises `Gone` if the Pod does not exist. Raises `Invalid` if
        the container does not exist, or if the API server supports no known version of the protocol. Raises `Forbidden`
        if the client has no right to execute commands, and `Retryable` or `RateLimited` if the handshake failed. Raises
        another `UpstreamError` if the process could not be started. The attribute `words` of this error has the reason.
        An exception of `stdin`, `stdout` or `stderr` ends the connection and is raised.
        """
        what = f"exec in container {container} of Pod {pod}"
        address = self._address(pod, container, command, with_stdin=stdin is not None)
        link, protocol = self._open(what, address)
        source = Stdin(self._input(stdin, can_close=protocol.subprotocol == V5))
        exchange = Exchange(
            link,
            protocol,
            stdin=source,
            heard=lambda channel, data: (stdout if channel == STDOUT else stderr)(data),
            heartbeat=self._heartbeat,
            clock=self._client.timing.clock,
            silence=self._heartbeat.deadline if writes_often else None,
        )
        try:
            status = exchange.run()
        except Broken as error:
            raise ExecLost(f"{what}: {error}; the command might still run") from error
        except StdinFailed as error:
            raise error.__cause__ or error from None
        finally:
            exchange.close()
            source.close()
        return _exit_code(what, status)

    def _open(self, what: str, address: str) -> tuple[socket.socket, ClientProtocol]:
        """Return an open connection. Raises the errors of `run`."""

        def begin(line: Line) -> tuple[socket.socket, ClientProtocol] | UpstreamError:
            # `dial` repeats the attempt after an exception. A failure after which the command might run is therefore
            # returned.
            try:
                return shake_hands(line, address)
            except Answer as answer:
                if self._shell or answer.status in _STARTS_NOTHING:
                    raise
                if answer.status >= SERVER_ERROR:
                    return Retryable(f"{what}: status {answer.status}", status=answer.status)
                return by_meaning(what, answer)
            except OSError as error:
                if self._shell:
                    raise
                return _lost(f"{what}: no answer to the handshake; the command might run", error)

        opened: tuple[socket.socket, ClientProtocol] | UpstreamError
        try:
            opened = self._client.dial(what, begin, policy=self._policy)
        except Invalid as error:
            opened = _explained(what, error)
        if isinstance(opened, UpstreamError):
            raise opened
        link, protocol = opened
        if protocol.subprotocol is None:
            link.close()
            raise Invalid(f"{what}: the answer to the handshake names neither {V5} nor {V4}; {_PROXY}")
        return link, protocol

    def _address(self, pod: str, container: str, command: Sequence[str], *, with_stdin: bool) -> str:
        whole = ["sh", "-c", _WAITING_SHELL, "sh", *command] if self._shell else command
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("stdin", "true")] if self._shell or with_stdin else []
        query += [("command", word) for word in whole]
        return f"{object_path('pods', namespace=self._namespace, name=pod)}/exec?{urlencode(query)}"

    def _input(self, stdin: Iterable[bytes] | None, *, can_close: bool) -> Iterator[bytes]:
        """Yield the bytes for the standard input of the container's process."""
        if not self._shell:
            yield from stdin or ()
        elif stdin is None:
            yield b"closed\n"
        elif can_close:
            yield b"stream\n"
            yield from stdin
        else:
            yield b"blocks\n"
            for piece in stdin:
                for begin in range(0, len(piece), _BLOCK):
                    block = piece[begin : begin + _BLOCK]
                    yield b"%d\n%b" % (len(block), block)
            yield b"0\n"


def _explained(what: str, error: Invalid) -> Invalid:
    """Return an error that names a proxy, if another server than the API server has refused the handshake.

    The API server explains each refusal by a `Status`, which has a reason.
    """
    answer = answer_of(error)
    if answer is None or answer.reason:
        return error
    return Invalid(f"{what}: the answer to the handshake has status {answer.status}; {_PROXY}")


def _exit_code(what: str, status: bytes) -> int:
    """Return the exit code from a status. Raises `UpstreamError` if the process could not be started."""
    try:
        content = orjson.loads(status)
        if content["status"] == "Success":
            return 0
        reason, message = str(content.get("reason") or ""), str(content.get("message") or "")
        if reason == "NonZeroExitCode":
            causes = content["details"]["causes"]
            return int(next(each["message"] for each in causes if each["reason"] == "ExitCode"))
        code = int(content.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ExecLost(f"{what}: the status at the end cannot be parsed; the exit code is unknown") from error
    failed = _MEANINGS.get(code, UpstreamError)(f"{what}: the process failed: {code} {reason}".rstrip())
    failed.status, failed.words = code, _in_one_line(message) or None
    raise failed


def _in_one_line(text: str) -> str:
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: _LONGEST_WORDS * 4]).split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[: _LONGEST_WORDS - 1]}…"


def _lost(text: str, cause: BaseException) -> ExecLost:
    error = ExecLost(text)
    error.__cause__ = cause
    return error
