"""Counts of the operations of one process of Ostler, by task.

Python imports this module at its start if the folder of the module is in PYTHONPATH.

Each process writes its counts to a file of its own in the folder `BENCH_COUNTS`, twice a second. `benchmarks.steps`
reads the files. The version of Ostler that is measured need not know this module. The counters change no result of a
call, and cost CPU themselves, so compare their CPU only with the CPU of another counted run.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

EVERY = 0.5
"""Seconds between two writes of the counts."""

counts: Counter[tuple[str, str, str]] = Counter()
"""Number of operations by step, kind and detail. Threads add to it without a lock: a rare lost count is no problem."""


def step() -> str:
    """Return the task that this thread executes, or a name for all other work of the process."""
    from celery._state import get_current_task  # noqa: PLC0415  not in every Python process

    task = get_current_task()
    return "-" if task is None or task.name is None else task.name.removeprefix("ostler.")


def add(kind: str, detail: str, amount: float = 1) -> None:
    """Count one operation of the current step."""
    counts[step(), kind, detail] += amount  # type: ignore[assignment]


def _count_statements() -> None:
    from sqlalchemy import Engine, event  # noqa: PLC0415

    def statement(_db: object, _cursor: object, sql: str, *_: object) -> None:
        add("statements", re.sub(r"\s+", " ", sql).strip()[:110])

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", lambda _db: add("transactions", "commit"))
    event.listen(Engine, "rollback", lambda _db: add("transactions", "rollback"))


def _count_redis() -> None:
    from redis import connection  # noqa: PLC0415

    serializer: Any = connection.PythonRespSerializer
    pack = serializer.pack

    def counted(self: Any, *arguments: Any) -> Any:
        add("Redis commands", str(arguments[0]))
        return pack(self, *arguments)

    serializer.pack = counted


def _count_messages() -> None:
    from celery import signals  # noqa: PLC0415

    def sent(sender: str, **_: Any) -> None:
        add("messages", str(sender).removeprefix("ostler."))

    signals.after_task_publish.connect(sent, weak=False)
    began = threading.local()

    def before(**_: Any) -> None:
        began.cpu = time.thread_time()

    def after(task: Any, **_: Any) -> None:
        name = task.name.removeprefix("ostler.")
        counts[name, "CPU", "ms"] += (time.thread_time() - began.cpu) * 1000
        counts[name, "runs", "tasks"] += 1

    signals.task_prerun.connect(before, weak=False)
    signals.task_postrun.connect(after, weak=False)


def _count_calls() -> None:
    from urllib3 import connectionpool  # noqa: PLC0415

    whole = connectionpool.HTTPConnectionPool.urlopen

    def urlopen(self: Any, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        path = url.removeprefix(f"{self.scheme}://{self.host}:{self.port}")
        server = "Kubernetes calls" if path.startswith(("/api", "/apis")) else "GitHub calls"
        words = path.partition("?")[0].split("/")
        add(server, f"{method} {_resource(words)}")
        return whole(self, method, url, *arguments, **options)

    connectionpool.HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign]


def _resource(words: list[str]) -> str:
    if "namespaces" in words:
        after = words[words.index("namespaces") + 2 :]
        named = "" if len(after) < 2 else "/NAME"  # noqa: PLR2004  the resource, and the name of the object
        return after[0] + named if after else "namespaces"
    return re.sub(r"\d+", "N", "/".join(words[-2:]))


def _write(folder: Path) -> None:
    path = folder / f"{os.getpid()}.json"
    words = [each for each in sys.orig_argv if not each.startswith("-")]
    while True:
        time.sleep(EVERY)
        rows = [[*key, value] for key, value in list(counts.items())]
        cpu = time.process_time()
        body = {"process": words[-1] if "ostler" in words else "", "argv": words, "cpu": cpu, "counts": rows}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(body))
        part.rename(path)


if (folder := os.environ.get("BENCH_COUNTS")) and "ostler" in sys.orig_argv:
    _count_statements()
    _count_redis()
    _count_messages()
    _count_calls()
    threading.Thread(target=_write, args=(Path(folder),), name="counter", daemon=True).start()
