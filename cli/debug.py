"""`ostler debug bundle`: everything that Ostler knows about one job, in one archive for a report.

The archive contains no secret. Settings with secrets show only that they are set, and each value of such a setting is
replaced wherever it appears in another file.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from cli.kubeconfigs import Kubeconfig
from cli.output import BIGGEST_ID, MISTAKE, dumped, fail, query
from ostler.clock import utcnow
from ostler.settings import Timed, is_secret_variable, read

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

HIDDEN = "***"
LEAST_SECRET = 8
"""Shorter values of secret settings are not replaced in other files, because they could be parts of ordinary words."""
MOST_REPAIRS = 200

app = typer.Typer(no_args_is_help=True, help="Collect what a report about a problem needs.")


@app.command("bundle")
def bundle(
    job_id: Annotated[int, typer.Argument(min=1, max=BIGGEST_ID, metavar="ID", help="GitHub's id of the job")],
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs",
            exists=True,
            dir_okay=False,
            readable=True,
            help="file with log lines of Ostler; only lines about the job, its claims and its Pods are collected",
        ),
    ] = None,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            help="collect the Kubernetes Events of the Pods of the job; most clusters keep them for an hour",
        ),
    ] = False,
    kubeconfig: Kubeconfig = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="path of the archive; by default ostler-job-ID.tar.gz")
    ] = None,
) -> None:
    """Collect a job, its Pods, pool and account with their explanations, repairs, gates, sweeps and settings.

    Secrets are left out. The archive contains names of repositories, workflows and branches: read it before you send it
    to somebody.
    """
    now = utcnow()
    found = query(lambda db: _collect(db, job_id, now=now))
    if found is None:
        fail(f"there is no job {job_id}; `ostler jobs` lists the known jobs")
    claims = found["job"]["claims"]
    subjects = {
        "job": {str(job_id)},
        "claim": {str(claim["id"]) for claim in claims},
        "pod": {str(each) for claim in claims for each in (claim["pod"], claim["pod_uid"])},
    }
    files = {f"{name}.json": dumped(content) for name, content in found.items()}
    if events:
        files["events.json"] = dumped(_events(found["pods"], kubeconfig))
    files["settings.json"] = dumped(_settings(os.environ))
    files["versions.json"] = dumped(_versions(now))
    for number, path in enumerate(logs or (), start=1):
        with path.open(encoding="utf-8", errors="replace") as lines:
            files[f"logs-{number}-{path.name}.txt"] = "".join(_about(lines, subjects))
    target = output or Path(f"ostler-job-{job_id}.tar.gz")
    try:
        _write(target, {name: _without_secrets(text, os.environ) for name, text in files.items()}, now=now)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}; choose another path with --output", status=MISTAKE)
    typer.echo(f"{target}: {', '.join(files)}")
    if not logs:
        typer.echo("The archive has no log lines: store the logs of web and the workers in files, and add --logs FILE")


def _collect(db: Connection, job_id: int, *, now: datetime) -> dict[str, Any] | None:
    from models.browse import jobs
    from models.browse.diagnoses import told_account, told_pod, told_pool
    from models.browse.repairs import RepairFilter, list_repairs
    from models.browse.sweeps import list_sweeps
    from models.upstream import gates

    timings = read(Timed).timings
    story = jobs.job_story(db, job_id, timings=timings, now=now)
    if story is None:
        return None
    uids = dict.fromkeys(claim.pod_uid for claim in story.claims)
    pods = [told_pod(db, uid, timings=timings, now=now) for uid in uids]
    return {
        "job": jobs.told(story, now=now),
        "pods": [each for each in pods if each is not None],
        "pool": None if story.job.pool_id is None else told_pool(db, story.job.pool_id, now=now),
        "account": told_account(db, story.job.account_id, timings=timings, now=now),
        "repairs": list_repairs(db, RepairFilter(job_id=job_id), limit=MOST_REPAIRS).rows,
        "gates": [str(each) for each in gates.shut(db)],
        "sweeps": list_sweeps(db, now=now),
    }


def _events(pods: Sequence[Mapping[str, Any]], kubeconfig: str | None) -> list[dict[str, Any]]:
    """Return the Kubernetes Events of Pods. Ends the command with a message if the cluster does not answer."""
    from cli.cluster import calling
    from k8s_adapters.runners.pod_events import list_pod_events

    with calling(kubeconfig, needs="list on events.events.k8s.io") as kube:
        return [
            {"pod": pod["name"], **asdict(event)}
            for pod in pods
            for event in list_pod_events(kube, namespace=pod["namespace"], name=pod["name"], uid=pod["uid"] or "")
        ]


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Ostler. A variable with a secret, and an unknown variable, shows only that it is set."""
    return {
        name: HIDDEN if is_secret_variable(name) or _password(value) else value
        for name, value in sorted(environment.items())
        if name.startswith("OSTLER_") and value
    }


def _versions(now: datetime) -> dict[str, str]:
    packages = ("ostler", "celery", "kombu", "redis", "sqlalchemy", "kubernetes")
    return {
        "at": f"{now:%Y-%m-%d %H:%M:%S} UTC",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _about(lines: Iterable[str], subjects: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the lines of a log whose fields name one of the subjects. `subjects` maps a kind to ids and names."""
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict) and any(
            str(fields.get(field)) in names
            for kind, names in subjects.items()
            for field in (kind, f"{kind}_id", f"{kind}_uid")
        ):
            yield line


def _without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Return a text in which the values of secret settings are replaced."""
    for name, value in environment.items():
        if not name.startswith("OSTLER_"):
            continue
        parts = {_password(value)}
        if is_secret_variable(name):
            parts |= {value, *value.split(","), *value.splitlines(), *value.split("\\n")}
        for part in sorted({part.strip() for part in parts}, key=len, reverse=True):
            if len(part) >= LEAST_SECRET:
                text = text.replace(json.dumps(part)[1:-1], HIDDEN).replace(part, HIDDEN)
    return text


def _password(value: str) -> str:
    """Return the password in an address, or an empty text."""
    try:
        return unquote(urlsplit(value).password or "")
    except ValueError:
        return ""


def _write(path: Path, files: Mapping[str, str], *, now: datetime) -> None:
    """Write the archive for its owner only."""
    with (
        open(path, "wb", opener=_opener) as raw,
        tarfile.open(fileobj=raw, mode="w:gz") as archive,
    ):
        for name, text in files.items():
            body = text.encode()
            member = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            member.size, member.mode, member.mtime = len(body), 0o600, int(now.timestamp())
            archive.addfile(member, io.BytesIO(body))


def _opener(path: str, flags: int) -> int:
    found = os.open(path, flags, 0o600)
    os.fchmod(found, 0o600)  # the file might exist with another mode
    return found
