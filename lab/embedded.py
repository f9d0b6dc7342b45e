"""Start and stop the embedded API server, a child process with the same interface as the real control plane.

`ostler-lab apiserver` runs the server in a container. The command writes keys, a certificate and a kubeconfig for the
clients, then replaces itself with the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.control_plane_access import ClusterAccess, write_credentials, write_kubeconfig
from lab.control_plane_build import Say, quiet
from lab.processes import Child
from lab.self_signed import write_certificate

_READY_WITHIN = 90.0


class EmbeddedCluster:
    """A running API server. `stop()` or the end of the context stops it."""

    def __init__(self, *, access: ClusterAccess, child: Child) -> None:
        self.access = access
        self._child = child

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return self.access.kubeconfig

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._child.pid

    @classmethod
    def start(cls, folder: Path, *, say: Say = quiet, program: tuple[str, ...] = ("lab.apiserver",)) -> EmbeddedCluster:
        """Start a server in `folder`, wait until it is ready and write `folder/kubeconfig`.

        `program` is the module to run and its arguments. Raises `StartError`.
        """
        began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        token = write_credentials(folder)
        ca_file = write_certificate(folder / "certs", name="apiserver")
        log = folder / "apiserver.log"
        log.unlink(missing_ok=True)
        child = Child("apiserver", [sys.executable, "-m", *program, "--folder", str(folder)], log=log)
        child.start()
        try:
            child.wait_until(lambda: _url(log) != "", timeout=_READY_WITHIN)
        except BaseException:
            child.kill()
            raise
        access = ClusterAccess(
            kubeconfig=folder / "kubeconfig", url=_url(log), ca_file=ca_file, token=token, embedded=True
        )
        write_kubeconfig(access.kubeconfig, url=access.url, ca_file=ca_file, token=token)
        say(f"the embedded API server is ready after {time.monotonic() - began:.1f} s: {access.url}")
        return cls(access=access, child=child)

    def running(self) -> bool:
        """Return whether the server process is alive."""
        return self._child.running()

    def stop(self) -> None:
        """Kill the server. It has nothing to save."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _url(log: Path) -> str:
    """Return the address that the server printed, or an empty string if it has not printed one yet."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"url"') and line.endswith("}"):
            return str(json.loads(line)["url"])
    return ""


def main() -> None:
    """Read the arguments, write the files that the server and its clients need, and run the server in this process."""
    parser = argparse.ArgumentParser(
        prog="ostler-lab apiserver",
        description="Write keys, a certificate and a kubeconfig for clients, then serve the lab's API server.",
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder to write certificate, keys and tokens to")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        required=True,
        help="kubeconfig to write for clients; the authority is written beside it",
    )
    parser.add_argument("--name", required=True, help="the host name under which clients reach it")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    token = write_credentials(arguments.folder)
    certificate = write_certificate(arguments.folder / "certs", name="apiserver", names=[arguments.name])
    authority = arguments.kubeconfig.with_name("authority.crt")
    shutil.copyfile(certificate, authority)
    url = f"https://{arguments.name}:{arguments.port}"
    write_kubeconfig(arguments.kubeconfig, url=url, ca_file=Path(authority.name), token=token)
    place = ["--folder", str(arguments.folder), "--host", arguments.host, "--port", str(arguments.port)]
    os.execv(sys.executable, [sys.executable, "-m", "lab.apiserver", *place])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main()
