"""Proofs from the log of containerd, which shows whether a container ended while containerd was not running.

If every process of a container has ended in that time, the restarted containerd removes the container as a leaked shim.
The exit code is then lost, and so are the last lines of output: CRI reports code 255 and the reason `Unknown`. If the
shim still lists a process, containerd learns the right exit code, but the last lines of output might be lost. The
sources are `shouldCleanupShim` and `loadContainer` in containerd 2.4.

The log looks the same if a restarted containerd has killed a running container, because its shim did not answer in
time. The log therefore proves that nobody had asked for the end of the container, but not that the job was over.
"""

from __future__ import annotations

from collections.abc import Iterable

_STARTING = 'msg="starting containerd"'


def ended_unseen(log: Iterable[str], container: str) -> bool:
    """Return whether the log proves that a container ended while containerd was not running.

    `container` is the id of a container that has ended. The proof has three parts:

    - containerd was restarted after the start of the container, and found it (`connecting to shim`).
    - Since then, containerd has received no exit of the container, so the container was over when it was found.
    - Before that, nobody had asked containerd to stop the container or its sandbox. A deletion of the Pod asks for it.
    """
    sandbox = ""
    started = restarted = asked = found = asked_before = False
    for line in log:
        if _STARTING in line:
            restarted = started
        elif container in line:
            if f"connecting to shim {container}" in line:
                if restarted:
                    found, asked_before = True, asked
                started = True
            elif "CreateContainer within sandbox" in line:
                sandbox = _first_id(line)
            elif f'StopContainer for \\"{container}\\" with timeout' in line:
                asked = True
            elif "received container exit event" in line:
                found = False
        elif sandbox and f'StopPodSandbox for \\"{sandbox}\\"' in line:
            asked = True
    return found and not asked_before


def _first_id(line: str) -> str:
    """Return the id of the sandbox in a line about the creation of a container."""
    return line.partition('within sandbox \\"')[2].partition("\\")[0]
