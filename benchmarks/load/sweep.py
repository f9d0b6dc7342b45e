"""One run of a sweep, or a bare loop over the same pages, in a separate process. It prints the cost as JSON."""

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

from k8s_adapters.calls.client import make_client, object_path
from k8s_adapters.calls.metadata import METADATA_LIST, OF_POOLS, PAGE
from models.db.engine import transaction
from ostler import logging
from ostler.settings import load
from ostler.upstreams import TALLY, Upstream
from tasks.worker.app import configure
from tasks.worker.runtime import runtime

_CONTINUE = re.compile(rb'"continue":"([^"]*)"')


def bare(parse: Callable[[bytes], object]) -> Callable[[], None]:
    """Return a loop that reads the same pages as `orphaned_stamps`, calls `parse` for each, and drops it."""
    settings = load()
    client = make_client(kubeconfig=settings.kubeconfig)
    path = object_path("pods", namespace=settings.namespace)

    def read(page: bytes) -> str | None:
        parse(page)
        found = _CONTINUE.search(page, 0, 2000)  # the token comes before the items
        return None if found is None else found[1].decode()

    def run() -> None:
        query: dict[str, str | int] = {"limit": PAGE, "labelSelector": OF_POOLS}
        while following := client.get(path, query=query, accept=METADATA_LIST, decode=read):
            query["continue"] = following

    return run


def sweep(name: str) -> Callable[[], None]:
    """Return a function that runs a sweep once, as a worker does."""
    tick: Callable[[], None] = getattr(importlib.import_module(f"tasks.sweeps.{name}"), name).run
    configure(load())
    rt = runtime()
    logging.configure(process="worker", level=rt.settings.log_level, style=rt.settings.log_style)
    # A worker in operation has open connections.
    transaction(rt.engine, lambda db: db.execute(text("SELECT 1")))
    rt.kube.request("GET", "/version")
    return tick


def peak() -> float:
    """Return the peak memory of this process in MiB since the peak was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no line VmHWM: the kernel does not report the peak memory")


def main() -> None:
    """Prepare, run once, and print the cost of the run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.sweep", description=__doc__)
    parser.add_argument(
        "what", help="name of a sweep; or `bare` to read the same pages only; or `parsed` to parse them with orjson"
    )
    what = parser.parse_args().what
    said = os.dup(1)
    os.dup2(2, 1)  # logs of the sweep must not be in the output
    run = bare(len) if what == "bare" else bare(orjson.loads) if what == "parsed" else sweep(what)
    statements: list[None] = []
    event.listen(Engine, "before_cursor_execute", lambda *_: statements.append(None))
    TALLY.take()  # drops the calls of the preparation
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
    before, began, used = peak(), time.perf_counter(), time.process_time()
    run()
    cpu, wall = time.process_time() - used, time.perf_counter() - began
    calls = TALLY.take()[Upstream.KUBERNETES].calls  # counts every attempt
    body = {
        "cpu": cpu,
        "wall": wall,
        "before": before,
        "peak": peak(),
        "calls": calls,
        "statements": len(statements),
    }
    os.write(said, json.dumps(body).encode())
    os._exit(0)  # threads of clients might block a normal exit


if __name__ == "__main__":
    main()
