"""One tick of a sweep, or a bare loop over the same pages, in a process of its own; prints what it cost as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from sqlalchemy import Engine, event, text

from k8s_adapters.client import make_client, object_path
from k8s_adapters.metadata import METADATA_LIST, OF_POOLS, PAGE
from models.db.engine import transaction
from ostler import logging
from ostler.settings import load
from ostler.upstreams import TALLY, Upstream
from tasks.worker.runtime import runtime

_CONTINUE = re.compile(rb'"continue":"([^"]*)"')


def bare(parse: Callable[[bytes], object]) -> Callable[[], None]:
    """Return a loop over the pages that `orphaned_stamps` reads, each handed to `parse` and forgotten."""
    settings = load()
    client = make_client(kubeconfig=settings.kubeconfig)
    path = object_path("pods", namespace=settings.namespace)

    def read(page: bytes) -> str | None:
        parse(page)
        found = _CONTINUE.search(page, 0, 2000)  # it stands before the items
        return None if found is None else found[1].decode()

    def run() -> None:
        query: dict[str, str | int] = {"limit": PAGE, "labelSelector": OF_POOLS}
        while following := client.get(path, query=query, accept=METADATA_LIST, decode=read):
            query["continue"] = following

    return run


def sweep(name: str) -> Callable[[], None]:
    """Return one tick of a sweep, as a worker runs it."""
    tick: Callable[[], None] = getattr(importlib.import_module(f"tasks.sweeps.{name}"), name).run
    rt = runtime()
    logging.configure(process="worker", level=rt.settings.log_level, style=rt.settings.log_style)
    # Connections of a worker that runs for a while are open.
    transaction(rt.engine, lambda db: db.execute(text("SELECT 1")))
    rt.kube.request("GET", "/version")
    return tick


def peak() -> float:
    """Return the most memory that this process had since the mark was reset, in MiB, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM")


def main() -> None:
    """Prepare, run once, and print what that once cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.sweep", description=__doc__)
    parser.add_argument("what", help="a sweep, or `bare`, or `parsed`: the pages alone, and parsed")
    what = parser.parse_args().what
    said = os.dup(1)
    os.dup2(2, 1)  # what the sweep logs is no part of the answer
    run = bare(len) if what == "bare" else bare(orjson.loads) if what == "parsed" else sweep(what)
    statements: list[None] = []
    event.listen(Engine, "before_cursor_execute", lambda *_: statements.append(None))
    TALLY.take()  # what was called to prepare
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began, used = peak(), time.perf_counter(), time.process_time()
    run()
    cpu, wall = time.process_time() - used, time.perf_counter() - began
    calls = TALLY.take()[Upstream.KUBERNETES].calls  # each attempt, also one that is repeated
    body = {
        "cpu": cpu,
        "wall": wall,
        "before": before,
        "peak": peak(),
        "calls": calls,
        "statements": len(statements),
    }
    os.write(said, json.dumps(body).encode())
    os._exit(0)  # threads of clients may wait for something


if __name__ == "__main__":
    main()
