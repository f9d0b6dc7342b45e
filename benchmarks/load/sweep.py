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
from typing import Any

import orjson
import urllib3

_CONTINUE = re.compile(rb'"continue":"([^"]*)"')


def bare(parse: Callable[[bytes], object]) -> Callable[[], dict[str, int]]:
    """Return a loop over the pages that `orphaned_stamps` reads, each handed to `parse` and forgotten."""
    from k8s_adapters.client import make_client  # noqa: PLC0415  what a tick imports is in memory before it is measured
    from k8s_adapters.metadata import _ACCEPT, PAGE, STAMPED  # noqa: PLC0415
    from ostler.settings import load  # noqa: PLC0415

    settings = load()
    api = make_client(kubeconfig=settings.kubeconfig)._load()  # noqa: SLF001  the same TLS and login
    token = api.configuration.auth_settings()["BearerToken"]["value"]
    http: urllib3.PoolManager = api.rest_client.pool_manager
    url = f"{api.configuration.host}/api/v1/namespaces/{settings.namespace}/pods"

    def run() -> dict[str, int]:
        calls, following = 0, b""
        while True:
            fields = {"limit": str(PAGE), "labelSelector": STAMPED, **({"continue": following} if following else {})}
            headers = {"Accept": _ACCEPT, "Authorization": token}
            answer = http.request("GET", url, fields=fields, headers=headers, retries=False)  # type: ignore[arg-type]
            calls += 1
            if answer.status == 504:  # noqa: PLR2004  its cache was behind etcd for three seconds
                continue
            if answer.status != 200:  # noqa: PLR2004
                raise RuntimeError(f"status {answer.status}")
            found = _CONTINUE.search(answer.data, 0, 2000)  # it stands before the items
            parse(answer.data)
            if found is None:
                return {"calls": calls, "statements": 0}
            following = found[1]

    return run


def sweep(name: str) -> Callable[[], dict[str, int]]:
    """Return one tick of a sweep, as a worker runs it."""
    from sqlalchemy import event, text  # noqa: PLC0415

    from models.engine import transaction  # noqa: PLC0415
    from ostler import logging  # noqa: PLC0415
    from tasks.runtime import runtime  # noqa: PLC0415

    task = getattr(importlib.import_module(f"tasks.sweeps.{name}"), name)
    rt = runtime()
    logging.configure(process="worker", level=rt.settings.log_level, style=rt.settings.log_style)
    counted = {"calls": 0, "statements": 0}

    def count(what: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            counted[what] += 1

        return note

    event.listen(rt.engine, "before_cursor_execute", count("statements"))
    pool = rt.kube._api.rest_client.pool_manager  # noqa: SLF001  each attempt is counted, also one that is repeated
    sent = pool.urlopen

    def urlopen(*given: Any, **named: Any) -> Any:
        counted["calls"] += 1
        return sent(*given, **named)

    pool.urlopen = urlopen  # type: ignore[method-assign]
    # Connections of a worker that runs for a while are open.
    transaction(rt.engine, lambda db: db.execute(text("SELECT 1")))
    rt.kube.request("GET", "/version")

    def run() -> dict[str, int]:
        counted.update(calls=0, statements=0)
        task.run()
        return counted

    return run


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
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began, used = peak(), time.perf_counter(), time.process_time()
    counted = run()
    body = {
        "cpu": time.process_time() - used, "wall": time.perf_counter() - began, "before": before, "peak": peak(),
        **counted,
    }  # fmt: skip
    os.write(said, json.dumps(body).encode())
    os._exit(0)  # threads of clients may wait for something


if __name__ == "__main__":
    main()
