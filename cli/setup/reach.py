"""Ways from an operator's browser to the local page: a browser of this machine, an SSH tunnel, or a port-forward.

GitHub redirects the browser to the address of the page, so the browser must reach the page at exactly this address.
"""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""File in which Kubernetes gives a container the namespace of its Pod."""


def open_browser(url: str, environment: Mapping[str, str]) -> bool:
    """Open a page in a browser with windows, and return whether there is one.

    A browser in the terminal is not used: it would hide the command's output and block the command.
    """
    windows = sys.platform in {"darwin", "win32"} or any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return windows and webbrowser.open(url)


def way_from_elsewhere(port: int, environment: Mapping[str, str], *, namespace: Path = NAMESPACE) -> str:
    """Return a command for another machine. While the command runs, a browser of that machine can open the page."""
    host = environment.get("HOSTNAME") or socket.gethostname()
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return f"ssh -N -L {port}:127.0.0.1:{port} {host}"
    try:
        where = f" --namespace {namespace.read_text().strip()}"
    except OSError:  # the Pod has no ServiceAccount token
        where = ""
    return f"kubectl port-forward{where} pod/{host} {port}"
