"""One control plane for several processes: the first user starts it, and it stops after the last user has ended.

Every user holds a shared lock on one file while it runs. The kernel releases that lock even if the user is killed. A
separate owner process runs the control plane, and stops it as soon as it gets an exclusive lock on the same file.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lab.control_plane import ClusterAccess, ControlPlane
from lab.control_plane_build import ControlPlaneUnavailable, Say, binaries, quiet

_STARTED_WITHIN = 240.0  # seconds; longer than the owner's own limit
_CHECK_EVERY = 0.2  # seconds between two attempts of the owner to get the users' lock


@contextmanager
def shared(folder: Path, *, say: Say = quiet) -> Iterator[ClusterAccess]:
    """Yield access to the control plane of `folder`. Start it first unless it runs.

    Raises `ControlPlaneUnavailable`.
    """
    binaries(say)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users.lock").open("w") as users:
        with (folder / "start.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits while an owner is stopping
            access = _access(folder)
            if access is None:
                access = _start_owner(folder)
        yield access


def _access(folder: Path) -> ClusterAccess | None:
    """Return the access data that a running owner wrote. Return None if no owner runs, or if the owner is not ready."""
    with (folder / "owner.lock").open("w") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # an owner is running
        else:
            return None
    try:
        written = json.loads((folder / "access.json").read_text())
    except FileNotFoundError:
        return None
    return ClusterAccess(
        kubeconfig=Path(written["kubeconfig"]),
        url=written["url"],
        ca_file=Path(written["ca_file"]),
        token=written["token"],
    )


def _start_owner(folder: Path) -> ClusterAccess:
    log = folder / "owner.log"
    with log.open("wb") as output:
        owner = subprocess.Popen(
            [sys.executable, "-m", "lab.control_plane_shared", str(folder)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _STARTED_WITHIN
    while (access := _access(folder)) is None:
        if owner.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text().strip().splitlines()
            raise ControlPlaneUnavailable(
                lines[-1] if lines else f"the control plane in {folder} did not start within {_STARTED_WITHIN:.0f} s"
            )
        time.sleep(0.05)
    owner.returncode = 0  # the owner outlives this process; without this, Popen would warn about it
    return access


def run_owner(folder: Path) -> None:
    """Run a control plane in `folder` until it has no user."""
    with (
        (folder / "users.lock").open("w") as users,
        (folder / "owner.lock").open("w") as owner,
        ControlPlane.start(folder) as control_plane,
    ):
        written = {name: str(value) for name, value in asdict(control_plane.access).items()}
        (folder / "access.json").unlink(missing_ok=True)  # left by an owner that was killed
        fcntl.flock(owner, fcntl.LOCK_EX)
        partial = folder / "access.json.partial"
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(written))
        partial.rename(folder / "access.json")
        while not _is_unused(users.fileno()):
            time.sleep(_CHECK_EVERY)
        (folder / "access.json").unlink()  # the next user waits for the users' lock, then starts a new owner


def _is_unused(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    try:
        run_owner(Path(sys.argv[1]))
    except ControlPlaneUnavailable as error:
        sys.exit(str(error))
