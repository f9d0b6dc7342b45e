"""Shell scripts that run in the containers of a job.

They need `sh`, `tar`, `find`, `stat`, `mv`, `rm`, `mkdir`, `ln`, `chmod`, `cp` and `dd`. A path or name is passed to a
script as a separate word, or is quoted in the text of the script, so no shell expands it.
"""

from __future__ import annotations

import math
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

WORK, EXTERNALS, GITHUB = "/__w", "/__e", "/github"
TEMP = f"{WORK}/_temp"
FILE_COMMANDS, HOME, WORKFLOW_FILES = "_runner_file_commands", "_github_home", "_github_workflow"
RESPONSES = "_runner_hook_responses"
STAGING = ".ostler-copy"
"""Folder in which an archive is unpacked before its content is moved to its place.

Steps that run at the same time have folders of their own, whose names begin with this one.
"""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The script prints one line per file: number of links, inode and size. The caller compares these lines with the files
# that it sent.
# Folders without write permission, such as Go's module cache, are made writable before they are removed.
_UNPACK = """set -e
gone() { rm -rf "$1" 2> /dev/null || { chmod -R u+rwx "$1" && rm -rf "$1"; }; }
gone "$1"
mkdir -p "$1"
tar -xf - -C "$1"
find "$1" -type f -exec stat -c '%h %i %s' {} +
"""
_MERGE = (
    _UNPACK
    + """cd "$1"
for each in * .[!.]* ..?*; do
  if [ -e "$each" ] || [ -L "$each" ]; then
    gone "../$each"
    mv "./$each" ..
  fi
done
cd ..
rm -rf "$1"
"""
)
# A file is replaced by a rename, so a step that runs at the same time never misses it.
_MERGE_FILES = (
    _UNPACK
    + """cd "$1"
find . -type d -exec sh -c 'for each; do
  [ -d "../$each" ] || { rm -rf "../$each" && mkdir "../$each"; } || exit 1
done' sh {} +
find . ! -type d -exec sh -c 'for each; do
  [ ! -d "../$each" ] || [ -L "../$each" ] || rm -rf "../$each"
  mv -f "$each" "../$each" || exit 1
done' sh {} +
cd ..
gone "$1"
"""
)
# The old folder is renamed first, so that its place is empty for as short as possible.
_PLACE = (
    _UNPACK
    + """in=$1
shift
while [ $# -gt 0 ]; do
  mkdir -p "${2%/*}"
  gone "$in.old"
  if [ -e "$2" ] || [ -L "$2" ]; then mv "$2" "$in.old"; fi
  if [ -e "$in/$1" ]; then mv "$in/$1" "$2"; else mkdir "$2"; fi
  gone "$in.old"
  shift 2
done
rm -rf "$in"
"""
)
_ADD = (
    _UNPACK
    + """in=$1
shift
while [ $# -gt 0 ]; do
  mkdir -p "$2"
  find "$2" -type d ! -perm -200 -exec chmod u+w {} + 2> /dev/null || :
  if [ -e "$in/$1" ]; then cp -af "$in/$1/." "$2"; fi
  shift 2
done
gone "$in"
"""
)
# BusyBox makes no empty archive, so `dd` writes one.
_PACK_PRESENT = """cd "$1" || exit 1
shift
asked=$#
for each; do
  if [ -e "$each" ]; then set -- "$@" "$each"; fi
done
shift "$asked"
if [ $# -gt 0 ]; then exec tar -cf - -- "$@"; fi
exec dd if=/dev/zero bs=1024 count=10 2>/dev/null
"""
_HEALTH = """if command -v timeout > /dev/null; then exec timeout "$1" sh -c "$2"; fi
exec sh -c "$2"
"""
_SET_UP_JOB = """set -e
mkdir -p "$1/_github_home" "$1/_github_workflow" "$1/_runner_file_commands"
rm -rf "$2/home" "$2/workflow"
ln -s "$1/_github_home" "$2/home"
ln -s "$1/_github_workflow" "$2/workflow"
for each in /etc/os-release /etc/alpine-release; do
  if [ -r "$each" ]; then
    case "$each" in *alpine*) echo alpine ;; *) while read -r line; do
      case "$line" in ID=alpine|ID=*alpine*) echo alpine ;; esac
    done < "$each" ;; esac
  fi
done
"""


def merge_into(folder: str) -> list[str]:
    """Return a command that unpacks its input, and replaces the items of `folder` that have the names of new items."""
    return ["sh", "-c", _MERGE, "sh", f"{folder}/{STAGING}"]


def merge_files_into(folder: str, *, name: str) -> list[str]:
    """Return a command that unpacks its input, and replaces the files of `folder` that have the paths of new files.

    `name` is a name that no other step uses.
    """
    return ["sh", "-c", _MERGE_FILES, "sh", f"{folder}/{STAGING}-{name}"]


def add(staging: str, places: Mapping[str, str]) -> list[str]:
    """Return a command that unpacks its input, and copies the files of each path of the archive into its place.

    Files that are already at the place and not in the archive stay there.
    """
    pairs = [word for pair in places.items() for word in pair]
    return ["sh", "-c", _ADD, "sh", f"{staging}/{STAGING}", *pairs]


def place(staging: str, places: Mapping[str, str]) -> list[str]:
    """Return a command that unpacks its input, and moves each path of the archive to its place.

    A file or folder that is already at the place is removed. `staging` must be in the same volume as the places.
    """
    pairs = [word for pair in places.items() for word in pair]
    return ["sh", "-c", _PLACE, "sh", f"{staging}/{STAGING}", *pairs]


def pack(folder: str, names: Sequence[str]) -> list[str]:
    """Return a command that writes an archive of these paths in `folder` to its output."""
    return ["tar", "-cf", "-", "-C", folder, "--", *names]


def pack_present(folder: str, names: Sequence[str]) -> list[str]:
    """Return a command that writes an archive of those of these paths that exist in `folder`."""
    return ["sh", "-c", _PACK_PRESENT, "sh", folder, *names]


def set_up_job() -> list[str]:
    """Return a command that creates the folders of a job, and prints `alpine` if the image is Alpine Linux."""
    return ["sh", "-c", _SET_UP_JOB, "sh", TEMP, GITHUB]


def step_paths(workspace: str) -> list[str]:
    """Return lines of a script that make the paths of a job in `/__w` point to the folders of a step in `/github`."""
    places = {
        f"{WORK}/{workspace}": "workspace",
        f"{TEMP}/{HOME}": "home",
        f"{TEMP}/{WORKFLOW_FILES}": "workflow",
        f"{TEMP}/{FILE_COMMANDS}": "file_commands",
    }
    lines = []
    for path, folder in places.items():
        parent, quoted = shlex.quote(posixpath.dirname(path)), shlex.quote(path)
        lines += [f"mkdir -p {parent}", f"rm -rf {quoted}", f"ln -s {GITHUB}/{folder} {quoted}"]
    return lines


def shared_paths(workspace: str) -> list[str]:
    """Return lines of a script that make the paths of a step in `/github` point to the folders of the job in `/__w`."""
    places = {
        "workspace": f"{WORK}/{workspace}",
        "home": f"{TEMP}/{HOME}",
        "workflow": f"{TEMP}/{WORKFLOW_FILES}",
        "file_commands": f"{TEMP}/{FILE_COMMANDS}",
    }
    return [
        line
        for name, path in places.items()
        for line in (f"mkdir -p {shlex.quote(path)}", f"ln -sfn {shlex.quote(path)} {GITHUB}/{name}")
    ]


def health_check(command: str, *, seconds: float) -> list[str]:
    """Return a command that executes a health command of Docker, for at most `seconds` if the image has `timeout`."""
    return ["sh", "-c", _HEALTH, "sh", str(max(math.ceil(seconds), 1)), command]


def words(arguments: Sequence[str] | None) -> list[str]:
    """Return the arguments as words of a command.

    The runner splits its command line at spaces and leaves the quotes in the pieces. The pieces are therefore joined
    and split again. If a quote is not closed, the pieces are returned unchanged. Arguments that begin with `sh -c` are
    returned unchanged too.
    """
    given = list(arguments or ())
    if given[:2] == ["sh", "-c"]:
        return given
    try:
        return shlex.split(" ".join(given))
    except ValueError:
        return given


def run_script(
    *,
    folder: str,
    entry_point: str,
    arguments: Sequence[str] | None,
    variables: Mapping[str, str],
    prepend: Sequence[str] = (),
    before: Sequence[str] = (),
) -> bytes:
    """Return a script that replaces itself with a program, in a folder and with an environment.

    The shell expands neither the values of variables nor the arguments. The script deletes its own file first. `before`
    has lines of shell that are executed before the program.
    """
    others = [f"{key}={value}" for key, value in variables.items() if not _NAME.fullmatch(key)]
    lines = ['rm -f "$0"', *before]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in variables.items() if _NAME.fullmatch(key)]
    if prepend:
        lines.append(f'export PATH={shlex.quote(":".join(prepend))}:"$PATH"')
    lines.append(f"cd {shlex.quote(folder)}")
    program = [*(["env", *others] if others else []), *words([entry_point]), *words(arguments)]
    lines.append(f"exec {' '.join(shlex.quote(word) for word in program)}")
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
