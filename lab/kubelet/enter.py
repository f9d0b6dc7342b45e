"""Run a command in the folder of a container, with the programs of the machine: `enter.py JSON COMMAND…`.

The process gets a mount namespace of its own, and the folder becomes its root. If the caller is root, nothing else is
needed. For another user, the process also gets a user namespace, in which it is root, so the kernel must permit
unprivileged user namespaces. The processes and the network are those of the machine. This module uses only the standard
library, and is run as a file.

`JSON` has `root`, `mounts` (a folder of the machine by path in the container), `directory`, `environment`, and `told`:
the file descriptor that gets the reason if the command does not start.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
"""Folders of the machine that a container sees. Symbolic links among them are copied."""
KERNEL = ("dev", "proc")
NOT_STARTED = 128
"""Exit code if the namespace cannot be made, or the command does not exist."""


def main() -> None:
    """Make the mounts and replace this process by the command."""
    room = json.loads(sys.argv[1])
    root = Path(room["root"])
    is_root = os.geteuid() == 0
    told = int(room["told"])
    os.set_inheritable(told, False)  # noqa: FBT003  it closes when the command starts
    try:
        _unshare()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a new user namespace has reset this signal
        _mount("none", Path("/"), _MS_REC | _MS_PRIVATE)
        for name in (*SYSTEM, *KERNEL):
            _show(name, root, is_root=is_root)
        for target, source in room["mounts"].items():
            inside = root / target.lstrip("/")
            inside.mkdir(parents=True, exist_ok=True)
            _mount(source, inside, _MS_BIND | _MS_REC)
        os.chroot(root)
        Path(room["directory"]).mkdir(parents=True, exist_ok=True)
        os.chdir(room["directory"])
        os.execvpe(sys.argv[2], sys.argv[2:], room["environment"])  # noqa: S606  no shell is wanted
    except OSError as error:
        os.write(told, f'exec: "{sys.argv[2]}": {error.strerror or error}'.encode())
        sys.exit(NOT_STARTED)


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _show(name: str, root: Path, *, is_root: bool) -> None:
    """Let the container see a folder of the machine. For root, all folders except `KERNEL` are read-only."""
    source, target = Path("/", name), root / name
    if source.is_symlink():
        with contextlib.suppress(FileExistsError):
            target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir(exist_ok=True)
        _mount(str(source), target, _MS_BIND | _MS_REC)
        if name not in KERNEL and is_root:
            _mount("none", target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _mount(source: str, target: Path, flags: int) -> None:
    _check(_LIBC.mount(source.encode(), str(target).encode(), None, flags, None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
