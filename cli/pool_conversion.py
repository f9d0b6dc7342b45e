"""`ostler pool convert`: RunnerPools from the runner objects of actions-runner-controller.

The command reads files and writes YAML. It reads and changes nothing in a cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import MISTAKE, OPEN, fail

if TYPE_CHECKING:
    from rules.conversion.arc_pods import Json, Note

_CURE = (
    "get the objects with `kubectl get secrets --selector owner=helm,status=deployed --output yaml`, `kubectl get "
    "--output yaml autoscalingrunnersets`, or `kubectl get --output yaml "
    "runnerdeployments,runnerreplicasets,runnersets,horizontalrunnerautoscalers`, and write them into a file"
)


def convert(
    file: Annotated[str, typer.Argument(help="file or folder with manifests, or - for stdin")],
) -> None:
    """Convert runner objects of actions-runner-controller, or values of gha-runner-scale-set, into RunnerPools.

    The values can be files, or Helm releases that kubectl exported.

    The pools are YAML on stdout. stderr shows what became of each field, and which objects become no pool. Lines that
    need a decision are marked with "!", and are also comments of the YAML. If there are such lines, the exit status is
    4. It is 2 if a runner object lacks what a pool needs, or if no object becomes a pool. Credentials are never
    printed.
    """
    import yaml

    from cli.manifest_files import read_objects
    from rules.conversion.arc import convert as converted
    from rules.conversion.arc_pods import NotConvertible

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
        if problem := _problem(pool.pool):
            pool.asks("RunnerPool", f"Ostler refuses this pool: {problem}")
        sys.stderr.write(f"{pool.kind} {pool.name} → RunnerPool {pool.name}\n")
        sys.stderr.writelines(f"  {_line(note)}\n" for note in pool.notes)
    pools = (_comments(pool.notes) + yaml.safe_dump(pool.pool, sort_keys=False) for pool in made.pools)
    sys.stdout.write(_comments(made.skipped) + "---\n".join(pools))
    if any(note.open for notes in (made.skipped, *(pool.notes for pool in made.pools)) for note in notes):
        raise typer.Exit(OPEN)


def _is_list(document: object) -> bool:
    """Return whether the document is a list of objects, as `kubectl get` prints it."""
    return isinstance(document, dict) and str(document.get("kind", "")).endswith("List")


def _line(note: Note) -> str:
    """Return a note as one line, also if the name of a field has line breaks: the line can be a comment of YAML."""
    return f"{'!' if note.open else ' '} {' '.join(f'{note.field}: {note.what}'.split())}"


def _comments(notes: Sequence[Note]) -> str:
    """Return the notes that need a decision as comments of YAML."""
    return "".join(f"# {_line(note)}\n" for note in notes if note.open)


def _problem(pool: Json) -> str | None:
    """Return what Ostler finds wrong in the pool, or None."""
    from k8s_adapters.pools.pool_reader import read_pool

    return read_pool({**pool, "metadata": {**pool["metadata"], "namespace": "", "uid": ""}}).problem
