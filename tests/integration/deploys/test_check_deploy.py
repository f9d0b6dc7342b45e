"""`ostler check-deploy` on files: exit status, output, and messages about invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.deploys.charts import broken_chart
from tests.integration.deploys.operator import Operator


def test_a_new_image_of_a_sound_chart_is_safe(operator: Operator) -> None:
    done = operator.run("check-deploy", operator.write("old.yaml", tag="1"), operator.write("new.yaml", tag="2"))
    assert (done.status, done.err) == (0, "")
    assert "safe" in done.out
    assert "nothing is deleted or renamed" in done.out
    assert "ostler-runners/linux" in done.out


def test_the_original_fault_is_refused_with_reason_and_cure(operator: Operator, tmp_path: Path) -> None:
    chart = broken_chart("the_original_fault", tmp_path)
    old, new = operator.write("old.yaml", chart, tag="1"), operator.write("new.yaml", chart, tag="2")
    done = operator.run("check-deploy", old, new)
    assert done.status == 1
    assert "REFUSED rolling-peer" in done.out
    assert "Deployment ostler/web" in done.out
    assert "cure: Move those peers" in done.out
    told = json.loads(operator.run("check-deploy", old, new, "--json").out)
    assert told["safe"] is False
    assert "rolling-peer" in {each["danger"] for each in told["refusals"]}
    assert all(each["reason"] and each["cure"] for each in told["refusals"])


def test_what_goes_and_what_is_renamed_is_listed(operator: Operator) -> None:
    old = operator.write("old.yaml", pools=["linux", "windows"])
    new = Path(operator.write("new.yaml", pools=["linux", "win"]))
    new.write_text(new.read_text().replace("runnerLabels:\n  - win\n", "runnerLabels:\n  - windows\n"))
    told = json.loads(operator.run("check-deploy", old, str(new), "--json").out)
    assert told["changes"] == [
        {
            "action": "renamed",
            "object": {"kind": "RunnerPool.ostler.dev", "namespace": "ostler-runners", "name": "windows"},
            "to": {"kind": "RunnerPool.ostler.dev", "namespace": "ostler-runners", "name": "win"},
        }
    ]
    assert any("use --live" in each for each in told["notes"])


def test_a_first_installation_is_judged_by_itself(operator: Operator, tmp_path: Path) -> None:
    assert operator.run("check-deploy", operator.write("new.yaml"), "--first").status == 0
    broken = operator.write("broken.yaml", broken_chart("no_base", tmp_path))
    assert operator.run("check-deploy", broken, "--first").status == 1


def test_a_deploy_without_the_admission_policy_is_refused(operator: Operator) -> None:
    done = operator.run("check-deploy", operator.write("old.yaml"), operator.write("new.yaml", guard=False))
    assert done.status == 1
    assert "REFUSED admission-missing" in done.out


def test_a_namespace_or_the_definition_that_goes_is_refused_unless_it_is_kept(operator: Operator) -> None:
    more = """
---
apiVersion: v1
kind: Namespace
metadata: {name: ostler-runners, annotations: {a: b}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: runnerpools.ostler.dev, annotations: {a: b}}
"""
    new = operator.write("new.yaml")
    for kept, expected in ((False, 1), (True, 0)):
        old = Path(operator.write("old.yaml"))
        old.write_text(old.read_text() + (more.replace("a: b", "helm.sh/resource-policy: keep") if kept else more))
        done = operator.run("check-deploy", str(old), new)
        assert done.status == expected
        assert ("REFUSED namespace-deleted" in done.out) is not kept
        assert ("REFUSED definition-deleted" in done.out) is not kept
        assert ("kept" in done.out) is kept


def test_a_public_address_of_web_and_a_private_one_for_jobs_are_arguments(operator: Operator) -> None:
    old, new = operator.write("old.yaml"), operator.write("new.yaml")
    done = operator.run("check-deploy", old, new, "--web-address", "198.51.100.7")
    assert done.status == 1
    assert "at 198.51.100.7/32" in done.out
    for path in (old, new):
        Path(path).write_text(Path(path).read_text().replace("- 10.0.0.0/8\n", "- 10.128.0.0/9\n"))
    assert "REFUSED private-egress" in operator.run("check-deploy", old, new).out
    assert operator.run("check-deploy", old, new, "--allow-private", "10.0.0.0/9").status == 0


def test_a_folder_and_stdin_do_as_well(operator: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "old" / "templates"
    folder.mkdir(parents=True)
    Path(operator.write("some.yaml", tag="1")).rename(folder / "some.yaml")
    (folder / "README.md").write_text("no manifest")
    new = Path(operator.write("new.yaml", tag="2")).read_text()
    assert operator.run("check-deploy", str(tmp_path / "old"), "-", stdin=new).status == 0


_BAD_POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p}
spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [1.0.0.0/8]}}]}]}
"""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "contains no objects"),
        ("a: [b", "is not valid YAML, line "),
        (
            "kind: Deployment\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{ports: [80]}]}}}\n",
            "Deployment ostler/a",
        ),
        ("just text", "is not a Kubernetes object: it has no kind"),
        ("kind: Pod\nmetadata: {}\n", "of kind Pod has no metadata.name"),
        ("kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: a}\n", "Pod ostler/a appears twice"),
        (_BAD_POLICY, "1.0.0.0/8 is not within 10.0.0.0/8"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_a_cure(
    operator: Operator, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    done = operator.run("check-deploy", operator.write("old.yaml"), str(tmp_path / "bad.yaml"))
    assert done.status == 2
    assert done.out == ""
    assert said in done.err
    assert "NEW: " in done.err
    assert "helm template" in done.err
    assert done.err.count("\n") == 1


def test_wrong_uses_say_what_to_do(operator: Operator, tmp_path: Path) -> None:
    new = operator.write("new.yaml")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, said in (
        ((new,), "--live"),
        ((new, new, "--first"), "--first"),
        (("-", "-"), "one stdin"),
        ((new, new, new), "found 3"),
        ((new, str(tmp_path / "nothing.yaml")), "does not exist"),
        ((new, str(empty)), "no file that ends in .yaml"),
        ((new, new, "--web-address", "10.0.0.300"), "--web-address"),
        ((new, new, "--web-selector", "web"), "key=value"),
        ((new, new, "--live", "--kubeconfig", str(tmp_path / "none")), " does not exist; name an existing kubeconfig"),
    ):
        done = operator.run("check-deploy", *arguments)
        assert (done.status, said in done.err) == (2, True), done.err
