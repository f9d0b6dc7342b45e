"""`ostler check-deploy`: check whether a deploy would disturb running jobs.

Exit status 0: no danger was found. 1: the deploy is refused. 2: the check was not possible. 3: the API server did not
answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.kubeconfigs import Kubeconfig
from cli.manifest_files import STDIN, read_files
from cli.output import MISTAKE, Json, print_json
from cli.tables import Column, Kind, print_table, print_text
from ostler.errors import ConfigurationError

if TYPE_CHECKING:
    from deploys.addresses import Addresses
    from deploys.deploy_plan import Live, Verdict
    from deploys.deploys import Refusal
    from deploys.manifests import Manifests
    from deploys.selectors import Selector

REFUSED = 1


def check_deploy(
    manifests: Annotated[
        list[str],
        typer.Argument(
            metavar="[OLD] NEW",
            help="rendered manifests: a file, a folder, or - for stdin. OLD is optional with --live or --first",
        ),
    ],
    live: Annotated[
        bool, typer.Option("--live", help="also check the cluster: policies, runner Pods, finalizers, admission")
    ] = False,
    first: Annotated[bool, typer.Option("--first", help="first deployment: there are no old manifests")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="namespace of objects without one")] = "ostler",
    runners: Annotated[
        list[str] | None,
        typer.Option("--runners-namespace", help="namespace of runner Pods, in addition to those that objects name"),
    ] = None,
    web: Annotated[
        str, typer.Option("--web-selector", help="labels of web's Pods, as key=value,key=value")
    ] = "app.kubernetes.io/component=web",
    web_address: Annotated[
        list[str] | None, typer.Option("--web-address", help="CIDR block at which web is reached from outside")
    ] = None,
    allow_private: Annotated[
        list[str] | None, typer.Option("--allow-private", help="private CIDR block that jobs are allowed to reach")
    ] = None,
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Refuse a deploy that would disturb running jobs.

    Jobs go on during a deploy that the command accepts. If the deploy changes the Pod template, Ostler replaces
    starting and warm Pods step by step. With --live, OLD can be omitted.

    The command checks network policies, poll addresses, pools, namespaces and the admission policy.
    """
    from deploys.deploy_plan import Deploy, judge

    old_path, new_path = _paths(manifests, live=live, first=first)
    old = None if old_path is None else read_files("OLD", old_path, namespace=namespace)
    new = read_files("NEW", new_path, namespace=namespace)
    deploy = Deploy(
        old=old,
        new=new,
        runners=frozenset(runners or ()),
        web=_selector(web),
        web_addresses=_blocks("--web-address", web_address),
        allowed=_blocks("--allow-private", allow_private),
    )
    if live:
        verdict, refused, notes = _judge_live(deploy, kubeconfig)
    else:
        verdict, refused, notes = judge(deploy), [], []
    refusals, notes = [*verdict.refusals, *refused], [*verdict.notes, *notes]
    if as_json:
        print_json(_as_object(verdict, refusals, notes))
    else:
        _print(verdict, refusals, notes)
    if refusals:
        raise typer.Exit(REFUSED)


def _paths(given: list[str], *, live: bool, first: bool) -> tuple[str | None, str]:
    if len(given) > 2:  # noqa: PLR2004  OLD and NEW
        raise ConfigurationError(
            f"OLD NEW: found {len(given)} arguments; must be one or two, so put several files into a folder"
        )
    if given.count(STDIN) > 1:
        raise ConfigurationError("OLD NEW: both are -, but there is only one stdin; put one of them into a file")
    if len(given) == 2:  # noqa: PLR2004
        if first:
            raise ConfigurationError("--first: OLD is given too; remove one of them")
        return given[0], given[1]
    if not (live or first):
        raise ConfigurationError(
            "OLD: not given; name the deployed manifests (`helm get manifest`), or use --live to read the cluster, "
            "or --first if nothing is deployed"
        )
    return None, given[0]


def _judge_live(deploy: Any, kubeconfig: str | None) -> tuple[Verdict, list[Refusal], list[str]]:
    """Return the verdict on a deploy, and the refusals and notes of the API server.

    The verdict also considers the live objects of the cluster. The refusals and notes come from dry-run deletions with
    the identity of the garbage collector.
    """
    from dataclasses import replace

    from cli.cluster import calling
    from deploys.deploy_plan import judge

    with calling(kubeconfig, needs="get and list on all objects that a deploy changes", status=MISTAKE) as client:
        live = _read_live(client, deploy.old, deploy.new, deploy.runners)
        verdict = judge(replace(deploy, live=live))
        refusals, notes = _ask_as_collector(client, live, verdict)
    return verdict, refusals, notes


def _read_live(client: Any, old: Manifests | None, new: Manifests, runners: frozenset[str]) -> Live:
    from deploys.deploy_plan import DEFAULT_RUNNERS, Live
    from deploys.manifests import read_manifests
    from k8s_adapters.cluster.deployed import labels_of_runners, read_deployed

    places = {key[1] for each in (old, new) if each is not None for key in each.objects if key[1]}
    bodies = read_deployed(client, namespaces=places)
    found = read_manifests(bodies, namespace="default")
    known = found.runner_namespaces | new.runner_namespaces | (old.runner_namespaces if old else frozenset())
    namespaces = runners | known or frozenset({DEFAULT_RUNNERS})
    seen = [(name, labels) for name in sorted(namespaces) for labels in labels_of_runners(client, namespace=name)]
    return Live(found, tuple(seen), namespaces)


def _ask_as_collector(client: Any, live: Live, verdict: Verdict) -> tuple[list[Refusal], list[str]]:
    from deploys.deploys import Danger, Refusal
    from k8s_adapters.cluster.admission import refuses_the_collector

    refusals: list[Refusal] = []
    notes: list[str] = []
    at_stake = {each.namespace for each in live.manifests.pools} | {name for name, _ in live.runner_pods}
    for namespace in sorted(verdict.namespaces):
        if namespace not in at_stake:
            notes.append(f"{namespace} has no pools and no runner Pods, so the admission policy was not tested there")
            continue
        answer = refuses_the_collector(client, namespace)
        if answer.refused is not True:
            word = "not in force" if answer.refused is False else "not known to be in force"
            reason = f"The admission policy is {word} in {namespace}: {answer.why}."
            cure = answer.cure or ""
            refusals.append(Refusal(Danger.ADMISSION_OFF, (namespace,), reason, f"{cure[:1].upper()}{cure[1:]}."))
    return refusals, notes


def _selector(text: str) -> Selector:
    from deploys.selectors import Operator, Requirement, Selector

    parts = [part.partition("=") for part in text.split(",")]
    if not all(key and equals and value for key, equals, value in parts):
        raise ConfigurationError(f"--web-selector: found {text!r}; write it as key=value,key=value")
    return Selector(tuple(Requirement(key, Operator.IN, frozenset({value})) for key, _, value in parts))


def _blocks(option: str, given: list[str] | None) -> Addresses:
    from deploys.addresses import blocks

    try:
        return blocks(given or ())
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}; write it as 10.1.0.0/16 or fd00::/8") from None


def _as_object(verdict: Verdict, refusals: list[Refusal], notes: list[str]) -> dict[str, Any]:
    return {
        "safe": not refusals,
        "refusals": refusals,
        "changes": [
            {"action": each.action, "object": _key(each.key), "to": None if each.to is None else _key(each.to)}
            for each in verdict.changes
        ],
        "runner_pods": verdict.rows,
        "notes": notes,
    }


def _key(key: tuple[str, str, str]) -> dict[str, str]:
    return {"kind": key[0].rstrip("."), "namespace": key[1], "name": key[2]}


def _print(verdict: Verdict, refusals: list[Refusal], notes: list[str]) -> None:
    from deploys.manifests import title_of

    words = {None: "-", True: "yes", False: "NO"}
    print_table(
        ("runner Pods of", "state", Column("policies", Kind.TEXT), "unchanged", "reach web"),
        (
            (
                row.pool,
                row.state,
                ", ".join(row.policies) or "none",
                words[row.same],
                {None: "?", True: "yes", False: "no"}[row.reaches_web],
            )
            for row in verdict.rows
        ),
        empty="no runner Pods",
    )
    typer.echo()
    print_table(
        ("what", Column("object", Kind.TEXT), Column("becomes", Kind.TEXT)),
        ((each.action, title_of(each.key), title_of(each.to) if each.to else None) for each in verdict.changes),
        empty="nothing is deleted or renamed",
    )
    for note in notes:
        typer.echo()
        print_text(f"note: {note}")
    for each in refusals:
        about = f" ({', '.join(each.subjects)})" if each.subjects else ""
        typer.echo()
        print_text(f"REFUSED {each.danger}{about}")
        print_text(each.reason, indent="  ")
        print_text(f"cure: {each.cure}", indent="  ")
    typer.echo(f"\nrefused, number of reasons: {len(refusals)}" if refusals else "\nsafe")
