"""No code deletes, un-stamps or scales a Pod away without a check whether it might hold a JIT (laws L3 and L7).

The test reads the source. A new caller of a function that ends Pods must be added here, and must check.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("tasks", "models", "web", "ostler", "cli", "watch", "rules", "deploys", "github_adapters", "k8s_adapters")

ENDS = {
    # The ways to delete a Pod: under its retire claim, also when its node is gone, or once it is terminal.
    ("tasks/claims/retire.py", "request_deletion"): "delete_runner",
    ("tasks/claims/retire.py", "force"): "delete_runner",
    ("tasks/pools/finished_pods.py", "delete_pod"): "delete_runner",
    # The one way to take a stamp off, and its three callers.
    ("tasks/claims/annotation.py", "write"): "take_off",
    ("tasks/claims/release.py", "make_warm"): "write without owner",
    ("tasks/claims/stamp.py", "remove_stamp"): "write without owner",
    ("tasks/claims/cuts.py", "reopen"): "write without owner",
    # What inserts retire claims, each in the transaction of who judged.
    ("models/claims/releases.py", "insert_retire"): "insert_retirement",
    ("models/claims/releases.py", "end_never_delivered"): "insert_retire",
    ("models/claims/releases.py", "end_delivered"): "insert_retire",
    ("models/pools/pool_plans.py", "_retire"): "insert_retire",
    ("models/pools/pod_rows.py", "retire_over"): "insert_retire",
    ("models/sweeps/unresponsive.py", "retire_quiet"): "insert_retire",
    ("models/sweeps/stuck_pods.py", "allow_force"): "insert_retire",
    ("models/sweeps/orphans.py", "retire_stamped"): "insert_retire",
    ("models/sweeps/orphans.py", "reap_finished"): "insert_retire",
}

ASKS = {
    # Who calls those, and what it asks.
    ("tasks/claims/retire.py", "carry_out"): {"ask"},
    ("tasks/claims/retire.py", "force"): {"ask", "gone_now", "may_force"},
    ("tasks/pools/finished_pods.py", "handle_spent"): {"delete_pod", "judge", "retire_over"},
    ("tasks/pools/reconcile.py", "reconcile_pool"): {"plan"},
    ("tasks/pools/plan.py", "plan"): {"make_plan", "commit_plan"},
    ("tasks/pools/plan.py", "make_plan"): {"observed_pod", "plan"},
    ("tasks/pools/plan.py", "observed_pod"): {"judge"},
    ("tasks/claims/release.py", "make_warm"): {"ask", "read_pod"},
    ("tasks/claims/release.py", "end_delivered"): {"ask"},
    ("tasks/claims/stamp.py", "remove_stamp"): {"ask", "read_pod"},
    # A Pod that had a delivery: the cluster and GitHub have to show that it never arrived.
    ("tasks/claims/cuts.py", "reopen"): {"check"},
    ("tasks/claims/cuts.py", "check"): {"judge_cut", "get_pod", "runner_of"},
    ("tasks/sweeps/unresponsive_pods.py", "check"): {"evidence_of", "judge_unresponsive", "retire_quiet"},
    ("tasks/sweeps/orphaned_stamps.py", "check"): {"evidence_of", "judge_orphaned_stamp", "retire_stamped"},
    ("tasks/sweeps/finished_jobs.py", "check"): {"_judge", "_end_pod"},
    ("tasks/sweeps/finished_jobs.py", "_judge"): {"judge_finished"},
    ("tasks/sweeps/finished_jobs.py", "_end_pod"): {"reap_finished"},
    ("tasks/sweeps/gone_nodes.py", "check"): {"evidence_of", "gone_now", "judge_forced", "allow_force"},
    ("rules/sweeps/nodes.py", "judge_forced"): {"may_force", "may_hold_jit"},
    ("tasks/claims/evidence.py", "judge"): {"may_hold_jit"},
    ("rules/sweeps/orphans.py", "judge_finished"): {"may_hold_jit"},
    ("rules/sweeps/orphans.py", "_never_given"): {"may_hold_jit"},
}

CALLERS = {
    # Of what inserts a retire claim: nobody gets there past the questions above.
    "end_never_delivered": {
        ("tasks/claims/release.py", "end"),
        ("tasks/claims/release.py", "carry_out"),
    },
    # A requeue asks nothing: it un-stamps nothing, and its retirement checks the Pod before it deletes.
    "end": {("tasks/claims/release.py", "end_never_delivered"), ("tasks/claims/release.py", "requeue")},
    "end_delivered": {("tasks/claims/release.py", "end_delivered"), ("tasks/claims/release.py", "carry_out")},
    "commit_plan": {("tasks/pools/plan.py", "plan")},
    "_retire": {("models/pools/pool_plans.py", "commit_plan")},
    "retire_over": {("tasks/pools/finished_pods.py", "handle_spent"), ("tasks/pools/finished_pods.py", "retire_over")},
    "retire_quiet": {("tasks/sweeps/unresponsive_pods.py", "check")},
    "retire_stamped": {("tasks/sweeps/orphaned_stamps.py", "check")},
    "reap_finished": {("tasks/sweeps/finished_jobs.py", "_end_pod")},
    "_end_pod": {("tasks/sweeps/finished_jobs.py", "check")},
    "allow_force": {("tasks/sweeps/gone_nodes.py", "check")},
    "request_deletion": {("tasks/claims/retire.py", "carry_out")},
    "force": {("tasks/claims/retire.py", "carry_out")},
    "make_warm": {("tasks/claims/release.py", "end_never_delivered")},
    "reopen": {("tasks/claims/stamp.py", "unstamp")},
    "delete_pod": {("tasks/pools/finished_pods.py", "handle_spent")},
    "plan": {("tasks/pools/reconcile.py", "reconcile_pool")},
}


@functools.cache
def functions() -> list[tuple[str, ast.FunctionDef]]:
    """Return each outermost function or method, with the path of its file."""
    return [
        (str(path.relative_to(ROOT)), each)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts
        for each in outermost(ast.parse(path.read_text()))
        if isinstance(each, ast.FunctionDef)
    ]


def outermost(tree: ast.Module) -> list[ast.stmt]:
    return [*tree.body, *(each for holder in tree.body if isinstance(holder, ast.ClassDef) for each in holder.body)]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


@functools.cache
def calls(function: ast.FunctionDef) -> list[ast.Call]:
    """Return the calls in a function. `rt.transaction(module.f, …)` also counts as a call of `module.f`."""
    found = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
    through = [
        ast.Call(each.args[0], each.args[1:], each.keywords)
        for each in found
        if name_of(each) in {"transaction", "read"} and each.args and isinstance(each.args[0], ast.Attribute)
    ]
    return found + through


def ends(call: ast.Call) -> str | None:
    """Return the kind of a call that ends a Pod's life or its warm state, or None."""
    name = name_of(call)
    if name == "delete_runner" and not receiver(call).endswith("github"):  # GitHub's is of a runner
        return name
    if name == "write" and any(
        each.arg == "owner" and isinstance(each.value, ast.Constant) and each.value.value is None
        for each in call.keywords
    ):
        return "write without owner"
    return name if name in {"take_off", "insert_retire", "insert_retirement"} else None


def test_only_these_functions_end_a_pod_or_its_stamp() -> None:
    found = {(path, each.name): how for path, each in functions() for call in calls(each) if (how := ends(call))}
    assert found == ENDS


def test_each_of_them_asks() -> None:
    asked = {
        (path, each.name): ASKS[path, each.name] & {name_of(call) for call in calls(each)}
        for path, each in functions()
        if (path, each.name) in ASKS
    }
    assert asked == ASKS


@pytest.mark.parametrize("name", CALLERS)
def test_nobody_comes_to_them_past_the_question(name: str) -> None:
    packages = ("tasks/", "models/", "web/")
    found = {
        (path, each.name)
        for path, each in functions()
        if path.startswith(packages)
        for call in calls(each)
        if name_of(call) == name
        and receiver(call) in {"", "releases", "pod_rows", "pool_plans", "unresponsive", "orphans", "stuck_pods"}
    }
    assert found == CALLERS[name]


def test_stamps_adapter_is_imported_only_where_the_annotation_is_written() -> None:
    importers = {
        path
        for package in ("tasks", "web", "ostler", "cli", "watch", "models")
        for file in (ROOT / package).rglob("*.py")
        if "import unstamp" in file.read_text() or "stamps.unstamp" in file.read_text()
        for path in [str(file.relative_to(ROOT))]
    }
    assert importers == {"tasks/claims/annotation.py"}


DELETES = {
    "k8s_adapters/runners/runners.py",
    "k8s_adapters/runners/owners/stateful_set.py",  # StatefulSets, and their Pods stay; or one that has no Pod yet
    "k8s_adapters/runners/owners/volumes.py",  # PersistentVolumeClaims, which Kubernetes keeps while a Pod uses them
    "k8s_adapters/pools/pools.py",
    "k8s_adapters/cluster/probe_pods.py",  # Pods that it made itself, which are no pool's; it refuses any other
    "k8s_adapters/cluster/admission.py",  # a dry run, on such a Pod
}


def test_only_these_adapters_send_a_delete() -> None:
    senders = {
        path
        for path, each in functions()
        if path.startswith(("k8s_adapters/", "tasks/", "watch"))
        for call in calls(each)
        if any(isinstance(given, ast.Constant) and given.value == "DELETE" for given in call.args)
    }
    assert senders == DELETES
