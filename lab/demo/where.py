"""Addresses and credentials of a running demo, and a shell environment for the operator's commands."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from sqlalchemy import Engine

from lab import kubectl
from lab.node.namespace import first_process, is_isolated
from lab.system import NODE, System
from models import api_tokens
from models.db.engine import transaction
from ostler.clock import utcnow
from rules.changes import Author, Via
from rules.token_scopes import TokenScope

CLUSTER_KINDS = {
    "embedded": "the lab's embedded API server, with simulated Pods; kubectl can list its objects",
    "real": "a real kube-apiserver and etcd, with simulated Pods",
    NODE: "a real kube-apiserver, etcd and kubelet, with real Pods",
}


def show_where(system: System, engine: Engine, console: Console, *, cluster: str) -> None:
    """Print the kind of the cluster, and the addresses that can be opened while the demo runs.

    All of them end with the demo.
    """
    by = Author("demo", Via.SHELL, utcnow())
    token_id, token = transaction(
        engine, lambda db: api_tokens.create(db, name="demo", scopes=list(TokenScope), expires_at=None, by=by)
    )
    until = by.at + timedelta(minutes=5)
    link = transaction(engine, lambda db: api_tokens.make_link(db, token_id, until=until, now=by.at))
    login = "" if link is None else f"login?link={link.reveal()}"
    user, password = system.flower_login
    for what, *lines in (
        ("pages", f"{system.web_url}/ui/{login}", "the link logs in once, within 5 minutes; later use the token"),
        ("cluster", CLUSTER_KINDS[cluster]),
        ("API", f"{system.web_url}/api/docs", f"token {token.reveal()}"),
        ("Flower", system.flower_url, f"user {user}, password {password}"),
        ("health", f"{system.private_url}/readyz", f"{system.private_url}/metrics"),
        ("GitHub", f"{system.github_url}/_lab/stats   (the lab's own)"),
        ("shell", *_shell(system)),
    ):
        for title, line in zip([what, *[""] * len(lines)], lines, strict=False):
            console.print(f"         [bold]{title:7}[/bold] {escape(line)}", highlight=False, soft_wrap=True)


def _shell(system: System) -> list[str]:
    """Return the lines that a second shell needs for the operator's commands.

    A run with a real node has its own processes, mounts and network. `nsenter` starts a shell there, in this folder.
    """
    environment = f". {shlex.quote(str(write_shell(system)))}"
    if not is_isolated():
        asks = f"; kubectl get pods,rpool --namespace {system.namespace}" if kubectl.cached() is not None else ""
        return [f"{environment}; ostler jobs{asks}"]
    sudo = "sudo " if "SUDO_USER" in os.environ else ""
    return [
        f"{sudo}nsenter -t {first_process()} -m -n -p --wd={shlex.quote(str(Path.cwd()))}",
        f"{environment}; ostler pool list; kubectl get pods --namespace {system.namespace}",
        "paste the first line into a second terminal, as root, and then the second line; the addresses above are",
        "reachable from that shell, for example with curl",
    ]


def write_shell(system: System) -> Path:
    """Write the environment of the operator's commands to a file that a shell can source. Return its path.

    The file also puts `ostler` into the path, and kubectl if it was built. kubectl uses the same cluster.
    """
    path = system.folder / "env"
    path.touch(mode=0o600)
    settings = {**system.operator_settings(), "KUBECONFIG": str(system.kubeconfig)}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    folders = [Path(sys.executable).parent, *([found.parent] if (found := kubectl.cached()) is not None else [])]
    lines.append(f'export PATH={":".join(shlex.quote(str(each)) for each in folders)}:"$PATH"\n')
    path.write_text("".join(lines))
    return path
