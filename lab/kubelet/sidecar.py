"""The sidecar `hooks` of a runner Pod as a process: `ostler hook serve`, with the Pod's own token.

The container `runner` reaches it at a socket in the folder of the Pod. A sidecar that ended is started again, as by the
real kubelet. The limits: its image and its resources are ignored, the paths of the Pod are folders of this machine, and
the status of the Pod does not show the sidecar.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.kubelet.processes import base_environment, end_process
from lab.processes import die_with_parent

HOOKS = "hooks"
PROGRAM = "ACTIONS_RUNNER_CONTAINER_HOOKS"
SOCKET = "OSTLER_HOOKS_SOCKET"
_COMMAND = (sys.executable, "-c", "from cli import main; main()")
_PATH_LIMIT = 100
"""Largest number of bytes in the path of a socket. Linux allows 107, and the sidecar adds a few bytes for a moment."""
_PAUSE = 1.0


class SocketPathTooLong(Exception):
    """The folder of a Pod is too deep for a Unix socket. Use a shorter folder for the kubelet's `--work`."""


@dataclass(frozen=True, kw_only=True)
class SidecarFolder:
    """Folder of a sidecar, inside the folder of its Pod."""

    root: Path

    @property
    def socket(self) -> Path:
        """Return the path of the socket."""
        return self.root / "hooks.sock"

    @property
    def token(self) -> Path:
        """Return the path of the token for the Kubernetes API."""
        return self.root / "token"

    def make(self, *, kubeconfig: Path, server: str | None) -> None:
        """Create the folder and a kubeconfig with the Pod's token.

        `kubeconfig` has the cluster. `server` is the address to use instead of the cluster's, such as a fault proxy.
        Raises `SocketPathTooLong`.
        """
        if len(str(self.socket)) > _PATH_LIMIT:
            raise SocketPathTooLong(
                f"the socket path {self.socket} has {len(str(self.socket))} bytes, more than {_PATH_LIMIT}: "
                "use a shorter folder for --work"
            )
        self.root.mkdir(mode=0o700)
        config = yaml.safe_load(kubeconfig.read_text())
        for each in config["users"]:
            each["user"] = {"tokenFile": str(self.token)}
        for each in config["clusters"] if server is not None else ():
            each["cluster"] = {"server": server}
        (self.root / "kubeconfig").write_text(yaml.safe_dump(config))

    def environment_of_runner(self) -> dict[str, str]:
        """Return the variables of the container `runner` that name the hook program and the socket of the sidecar."""
        return {PROGRAM: str(self.root / "hook.sh"), SOCKET: str(self.socket)}

    async def serve(self, environment: dict[str, str]) -> None:
        """Run the sidecar, and start it again when it ends, until cancelled."""
        whole = {
            **base_environment(),
            **environment,
            "OSTLER_KUBECONFIG": str(self.root / "kubeconfig"),
            SOCKET: str(self.socket),
        }
        while True:
            with (self.root / "log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(*_COMMAND, "hook", "serve"),
                    env=whole,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            (self.root / "pid").write_text(str(process.pid))
            try:
                await process.wait()
            finally:
                await end_process(process)
            await asyncio.sleep(_PAUSE)

    async def wait_until_ready(self) -> None:
        """Return when the socket exists, as the startup probe of the sidecar does."""
        while not self.socket.is_socket():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.1)
