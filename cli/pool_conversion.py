"""`ostler pool convert`: RunnerPools from the runner objects of actions-runner-controller.

The command reads files and writes YAML. It reads and changes nothing in a cluster.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import MISTAKE, fail

if TYPE_CHECKING:
    from rules.pools.arc_pods import Converted, Json, Note

_CURE = (
    "get the objects with `kubectl get --output yaml runnerdeployments,runnerreplicasets,runnersets,"
    "horizontalrunnerautoscalers`, and write them into a file"
)


def convert(
    file: Annotated[str, typer.Argument(help="file or folder with manifests, or - for stdin")],
) -> None:
    """Convert runner objects of actions-runner-controller into RunnerPools, as YAML on stdout.

    stderr shows what became of each field, and which objects become no pool. Lines that need a decision are marked
    with "!". The exit status is 0 also if there are such lines. It is 2 if a runner object lacks what a pool needs, or
    if no object becomes a pool. Runner scale sets are not converted yet.
    """
    import yaml

    from cli.manifest_files import read_objects
    from rules.pools.arc import convert as converted
    from rules.pools.arc_pods import NotConvertible

    objects = [
        each
        for document in read_objects("FILE", file, cure=_CURE)
        for each in (document.get("items") or () if _is_list(document) else (document,))
    ]
    try:
        made = converted(objects)
    except NotConvertible as error:
        fail(f"FILE: {file}: {error}; {_CURE}", status=MISTAKE)
    sys.stderr.writelines(f"{_line(note)}\n" for note in made.skipped)
    for pool in made.pools:
        _explain(pool)
    sys.stdout.write(yaml.safe_dump_all([pool.pool for pool in made.pools], sort_keys=False))


def _is_list(document: object) -> bool:
    """Return whether the document is a list of objects, as `kubectl get` prints it."""
    return isinstance(document, dict) and str(document.get("kind", "")).endswith("List")


def _line(note: Note) -> str:
    return f"{'!' if note.open else ' '} {note.field}: {note.what}"


def _explain(pool: Converted) -> None:
    lines = [f"{pool.kind} {pool.name} → RunnerPool {pool.name}"]
    lines += [f"  {_line(note)}" for note in pool.notes]
    if problem := _problem(pool.pool):
        lines.append(f"  ! Ostler refuses this pool: {problem}")
    sys.stderr.write("\n".join(lines) + "\n")


def _problem(pool: Json) -> str | None:
    """Return what Ostler finds wrong in the pool, or None."""
    from k8s_adapters.pool_reader import read_pool

    return read_pool({**pool, "metadata": {**pool["metadata"], "namespace": "", "uid": ""}}).problem
