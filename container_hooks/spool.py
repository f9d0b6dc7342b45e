"""Shell scripts that run a step in a container, with a bounded spool of its output.

The step writes into a pipe. A program beside it, the spooler, copies the pipe into files of a folder, the segments. The
name of a segment is the position of its first byte. A reader sends the segments from a position that it is given, and
deletes a segment when it hears that all bytes of it have arrived. If the spool has its largest number of segments, the
spooler stops reading, the pipe fills up, and the step waits at its next write, as it would at a slow terminal.

A process that the step has left in the background keeps the pipe open after the end of the step. The shell of the step
therefore writes a mark behind the last byte of the step. The bytes after the mark are discarded. The mark is not
secret: a step that writes it hides only the rest of its own output.

The container needs `sh`, `cat`, `dd`, `head`, `mkdir`, `mv`, `rm`, `sleep`, `stat` and `tail`, as in BusyBox, and a
Linux `/proc`. If the container has `setsid`, a cancelled step is ended together with the processes that it has started.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

_FIRST = 10**18
"""Position of the first byte of the output. All positions then have 19 digits, and are in the order of their names."""

_BLOCK = 16 * 1024

_START = """\
folder=$1; shift
[ -d "$folder/begun" ] && exit 0
mkdir -p "$folder" || exit 1
$(command -v setsid) sh -c '
  folder=$1 mark=$2 run=$3 spool=$4 segments=$5 blocks=$6 first=$7; shift 7
  mkdir "$folder/begun" 2>/dev/null || exit 0
  mkdir "$folder/running" "$folder/out" || exit 0
  sh -c "$run" sh "$folder" "$mark" "$@" |
    $(command -v setsid) sh -c "$spool" sh "$folder" "$segments" "$blocks" "$first"
' sh "$folder" "$@" > /dev/null 2>&1 < /dev/null &
exit 0
"""
# The exit code is part of the name of a folder, because a folder can be renamed even on a full disk. The subshell
# protects this shell from the signal that a write without a spooler causes.
_RUN = """\
folder=$1 mark=$2; shift 2
echo "$$ $PPID" > "$folder/pid" || exit 0
"$@" 2>&1 < /dev/null
code=$?
(echo "$mark")
mv "$folder/running" "$folder/ended.$code"
"""
# `dd` neither waits for a whole block nor reads more than it writes. `head` of BusyBox reads ahead.
# After a write that failed, for example on a full disk, the spooler discards one block, so that the step can end.
_SPOOL = """\
folder=$1 segments=$2 blocks=$3 at=$4
drain_if_over() { [ ! -d "$folder/over" ] || exec cat > /dev/null; }
while :; do
  drain_if_over
  set -- "$folder"/out/*
  if [ "$#" -ge "$segments" ]; then sleep 0.1; continue; fi
  dd bs=BLOCK count="$blocks" > "$folder/out/$at" 2> /dev/null
  failed=$?
  drain_if_over
  size=$(stat -c %s "$folder/out/$at") || size=0
  at=$((at + size))
  if [ "$failed" -ne 0 ]; then
    mkdir -p "$folder/full"
    case $(dd bs=BLOCK count=1 2>&1 > /dev/null) in "0+0 "*) exit ;; esac
    sleep 0.1
  elif [ "$size" -eq 0 ]; then
    exit
  fi
done
""".replace("BLOCK", str(_BLOCK))
# Each round begins at the first segment, because the last one of a round might have been deleted since.
# `dd` finds the position without reading the bytes before it, and `head` stops at the size that `stat` saw.
# The input ends when the connection is lost. The reader then ends itself, so that no reader is left over.
_FOLLOW = """\
folder=$1 seen=$2 segments=$3 absent=0 late=0 rounds=0 end=
exec 3<&0
{
  while read -r upto; do
    if [ "$upto" = end ]; then mkdir -p "$folder/over"; rm -rf "$folder/out"; exit; fi
    before=
    for each in "$folder"/out/*; do
      if [ -n "$before" ] && [ "${each##*/}" -le "$upto" ]; then rm -f "$before"; fi
      before=$each
    done
  done
  kill "$$"
} <&3 3<&- > /dev/null 2>&1 &
hears=$!
exec 3<&-
ended() { for each in "$folder"/ended.*; do [ ! -d "$each" ] || end=${each##*.}; done; }
lives() {
  case $(cat "/proc/$1/stat" 2>/dev/null) in "" | *") Z "*) return 1 ;; esac
}
while :; do
  ended
  if [ -z "$end" ] && read -r pid group 2>/dev/null < "$folder/pid" && [ -n "$group" ]; then
    if ! lives "$pid"; then ended; end=${end:-killed}; fi
  elif [ -z "$end" ]; then
    absent=$((absent + 1))
    [ "$absent" -gt 50 ] && end=absent
  fi
  set -- "$folder"/out/*
  count=$# sent= at=${1##*/}
  while size=$(stat -c %s "$folder/out/$at" 2>/dev/null); do
    if [ "$seen" -lt "$at" ]; then echo "bytes before $at are missing" >&2; kill "$hears"; exit 1; fi
    next=$((at + size))
    if [ "$next" -gt "$seen" ]; then
      dd if="$folder/out/$at" bs=65536 skip="$(((seen - at) / 65536))" 2>/dev/null |
        tail -c "+$(((seen - at) % 65536 + 1))" | head -c "$((next - seen))"
      seen=$next sent=yes
    fi
    if [ "$size" -eq 0 ] || [ ! -e "$folder/out/$next" ]; then break; fi
    at=$next
  done
  if [ -n "$end" ]; then
    [ ! -d "$folder/over" ] || break
    # The mark never arrives if the step was killed or the disk was full. The spooler needs moments for the rest.
    case $sent$end in yes[0-9]*) [ -d "$folder/full" ] && late=$((late + 1)) ;; *) late=$((late + 1)) ;; esac
    [ "$count" -lt "$segments" ] || late=0
    case $end in
      absent) break ;;
      killed) [ "$late" -lt 5 ] || break ;;
      *) [ "$late" -lt 50 ] || break; [ ! -d "$folder/full" ] || [ "$late" -lt 15 ] || break ;;
    esac
  fi
  rounds=$((rounds + 1))
  [ "$((rounds % 25))" -ne 0 ] || echo alive >&2
  sleep 0.2
done
[ ! -d "$folder/full" ] || echo full >&2
kill "$hears" 2>/dev/null
echo "$end" >&2
"""
# If the step has not begun, this script creates the folder `begun`, so that the step can never begin.
_STOP = """\
mkdir -p "$1" && mkdir "$1/begun" 2>/dev/null && exit 0
tries=0
until [ -s "$1/pid" ] || [ "$tries" -ge 20 ]; do tries=$((tries + 1)); sleep 0.1; done
mkdir -p "$1/over"
read -r pid group < "$1/pid" || exit 0
send() { kill -s "$1" -- "-$group" || kill -s "$1" "$pid"; }
send TERM && sleep 2 && send KILL
rm -rf "$1/out"
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class Spool:
    """Size of the spool of one step: `segments` files of at most `blocks` blocks of 16 KiB.

    The largest number of bytes on the disk is 32 MiB by default.
    """

    segments: int = 8
    blocks: int = 256

    @property
    def acknowledged_every(self) -> int:
        """Return the number of bytes after which their arrival is acknowledged at once."""
        return self.blocks * _BLOCK // 4


def start(folder: str, command: Sequence[str], spool: Spool) -> list[str]:
    """Return a command that starts a step in the background, unless it has been started. It can be repeated."""
    sizes = [str(spool.segments), str(spool.blocks), str(_FIRST)]
    return ["sh", "-c", _START, "sh", folder, mark_of(folder).decode(), _RUN, _SPOOL, *sizes, *command]


def follow(folder: str, seen: int, spool: Spool) -> list[str]:
    """Return a command that writes the output behind the first `seen` bytes, until the step has ended.

    Its input consists of `acknowledgement` and, after the mark, `END`. The last line of its error output is the exit
    code of the step, `killed`, or `absent` if the step did not start. A line `full` says that bytes are missing,
    because they could not be written to the disk.
    """
    return ["sh", "-c", _FOLLOW, "sh", folder, str(_FIRST + seen), str(spool.segments)]


def stop(folder: str) -> list[str]:
    """Return a command that ends a step, or prevents its start."""
    return ["sh", "-c", _STOP, "sh", folder]


END = b"end\n"


def acknowledgement(seen: int) -> bytes:
    """Return the line that says that the first `seen` bytes have arrived."""
    return b"%d\n" % (_FIRST + seen)


def mark_of(folder: str) -> bytes:
    """Return the mark behind the output of the step in a folder. No other step has a folder of this name.

    It begins with a byte that is rare in texts, because the reader delays bytes that might be the begin of the mark.
    """
    return b"\x1e" + posixpath.basename(folder).encode()


class Unmarked:
    """Output without the mark of its end. `ended` is true after the mark."""

    def __init__(self, folder: str) -> None:
        self._mark = mark_of(folder) + b"\n"
        self._held = b""
        self.ended = False

    def pass_on(self, data: bytes) -> bytes:
        """Return the bytes that are certainly not part of the mark. Bytes after the mark are discarded."""
        if self.ended:
            return b""
        whole = self._held + data
        before, mark, _rest = whole.partition(self._mark)
        if mark:
            self.ended, self._held = True, b""
            return before
        begin = whole.rfind(self._mark[:1], max(len(whole) - len(self._mark) + 1, 0))
        self._held = whole[begin:] if begin >= 0 and self._mark.startswith(whole[begin:]) else b""
        return whole[: len(whole) - len(self._held)]

    def rest(self) -> bytes:
        """Return the bytes that were held back, because no mark follows."""
        held, self._held = self._held, b""
        return held
