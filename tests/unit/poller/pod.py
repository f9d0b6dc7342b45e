"""A runner Pod as a test sees it: a folder, a token, the scripts as processes and a fake `sleep`."""

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.processes import default_signals

TOOLS = (
    *("cat", "chmod", "cp", "cut", "grep", "id", "mv", "od", "rm", "sed"),
    *("sha256sum", "sh", "tail", "timeout", "tr", "wc"),
)
"""Programs of a small image, apart from the HTTP clients."""

SCRIPTS = Path(__file__).parents[3] / "poller"
TOKEN = "projected-token-of-the-pod"


@dataclass(frozen=True)
class Ended:
    """The results of a script."""

    code: int
    message: str
    slept: list[float]
    output: str


@dataclass(frozen=True)
class Pod:
    """The folders of one Pod. The `sleep` on its PATH returns at once and records its argument.

    `shell` is the shell of the image. If `clients` is not None, the image has only these HTTP clients and a few other
    programs. Otherwise it has the programs of this machine.
    """

    root: Path
    shell: tuple[str, ...] = ("sh",)
    clients: tuple[str, ...] | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the containers."""

    @property
    def jit_dir(self) -> Path:
        """The volume that both containers share."""
        return self.root / "jit"

    @property
    def token_file(self) -> Path:
        """Return the file with the projected token."""
        return self.root / "token"

    @property
    def message_file(self) -> Path:
        """Return the file of the termination message."""
        return self.root / "termination-log"

    def environment(self, *, url: str) -> dict[str, str]:
        """Return the environment of the containers."""
        own = str(self.root / "bin")
        return {
            "PATH": own if self.clients is not None else f"{own}:{os.environ['PATH']}",
            "OSTLER_DISPATCH_URL": url,
            "OSTLER_TOKEN_FILE": str(self.token_file),
            "OSTLER_JIT_DIR": str(self.jit_dir),
            "OSTLER_TERMINATION_LOG": str(self.message_file),
            "OSTLER_RUNNER_HOME": str(self.root / "home"),
            **self.more,
        }

    def start(self, script: str, *, url: str, trace: bool = False) -> subprocess.Popen[str]:
        """Start a script of the Pod. Its output is one stream."""
        shell, *applet = self.shell
        return subprocess.Popen(
            [shutil.which(shell) or shell, *applet, *(["-x"] if trace else []), str(SCRIPTS / script)],
            env=self.environment(url=url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=default_signals,  # noqa: PLW1509  it calls one function of libc
        )

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for a script and return its results. Raise TimeoutExpired after 30 s."""
        with process:
            try:
                output, _ = process.communicate(timeout=30)
            finally:
                process.kill()
        slept_file = self.root / "slept"
        slept = [float(line) for line in slept_file.read_text().split()] if slept_file.exists() else []
        message = self.message_file.read_text() if self.message_file.exists() else ""
        return Ended(process.returncode, message, slept, output)

    def poll(self, *, url: str, trace: bool = False) -> Ended:
        """Run the poller to its end."""
        return self.end(self.start("poll.sh", url=url, trace=trace))


def make_pod(root: Path, *, shell: tuple[str, ...] = ("sh",), clients: tuple[str, ...] | None = None) -> Pod:
    """Create a Pod's folders in `root`. The entry of its runner has already found the image usable."""
    pod = Pod(root, shell, clients)
    for name in ("jit", "bin", "home"):
        (root / name).mkdir()
    pod.token_file.write_text(TOKEN)
    (pod.jit_dir / "runner-usable").touch()
    for name in (*TOOLS, *clients) if clients is not None else ():
        found = shutil.which(name)
        assert found is not None, f"this machine has no {name}"
        write_script(root / "bin" / name, f'exec {found} "$@"')  # a link would let a test overwrite the program
    write_script(root / "bin" / "sleep", f'echo "$1" >>"{root}/slept"')
    return pod


def write_script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.unlink(missing_ok=True)  # never write through a link
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(stat.S_IRWXU)
