"""The scripts of a persistent runner: register with the token, hand over the registration, become the runner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.poller.pod import Pod, make_pod, write_script
from tests.waiting import eventually

REGISTRATION = "url=https://github.com/acme\ntoken=AATOKEN\nname=static-1\nlabels=linux,gpu\ngroup=hard ware\n"
FILES = (".runner", ".credentials", ".credentials_rsaparams")
WRITES = "for file in .runner .credentials .credentials_rsaparams; do echo $file >$file; done"


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    made = make_pod(tmp_path)
    (tmp_path / "registration").mkdir()
    write_script(tmp_path / "home" / "run.sh", f'ls -A "$OSTLER_JIT_DIR" >"{tmp_path}/left"; exit 7')
    write_script(
        tmp_path / "home" / "config.sh",
        f'echo "$@" >"{tmp_path}/arguments"; echo "$ACTIONS_RUNNER_INPUT_TOKEN" >"{tmp_path}/token-given"; {WRITES}',
    )
    return replace(made, more={"OSTLER_REGISTRATION_DIR": str(tmp_path / "registration")})


def registers(pod: Pod, **more: str) -> tuple[int, set[str]]:
    """Run register.sh to its end. Return its exit code and the files that container `runner` gets."""
    given = replace(pod, more={**pod.more, **more})
    code = given.end(given.start("register.sh", url="")).code
    return code, {each.name for each in (pod.root / "registration").iterdir()}


def test_the_runner_is_registered_with_exactly_what_ostler_said(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION)

    code, files = registers(pod)

    assert (code, files) == (0, {*FILES, "registered"})
    assert (pod.root / "arguments").read_text() == (
        "--unattended --replace --no-default-labels --url https://github.com/acme --name static-1 "
        "--labels linux,gpu --work _work --runnergroup hard ware\n"
    )
    assert (pod.root / "token-given").read_text() == "AATOKEN\n"
    assert not (pod.jit_dir / "jit").exists()
    handed = "".join((pod.root / "registration" / name).read_text() for name in FILES)
    assert "AATOKEN" not in handed


def test_without_a_group_the_runner_joins_the_default_group(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION.replace("hard ware", ""))

    registers(pod)

    assert "--runnergroup" not in (pod.root / "arguments").read_text()


def test_a_failed_registration_is_tried_again_from_a_clean_home(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION)
    write_script(
        pod.root / "home" / "config.sh",
        f'[ ! -e .runner ] || exit 9; touch .runner; echo once >>"{pod.root}/tries"; '
        f'[ "$(wc -l <"{pod.root}/tries")" -ge 2 ] || exit 1; {WRITES}',
    )

    code, files = registers(pod)

    assert (code, "registered" in files) == (0, True)
    assert (pod.root / "tries").read_text() == "once\nonce\n"


def test_a_registration_that_keeps_failing_ends_and_the_runner_hears_of_it(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION)
    write_script(pod.root / "home" / "config.sh", "exit 1")

    assert registers(pod, OSTLER_REGISTER_SECONDS="1") == (1, {"not-registered"})


def test_a_config_that_stalls_is_killed_with_its_children_at_the_limit(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION)
    write_script(pod.root / "home" / "config.sh", f"/bin/sleep 20 & echo $! >{pod.root}/child; /bin/sleep 20; {WRITES}")

    assert registers(pod, OSTLER_REGISTER_SECONDS="1") == (1, {"not-registered"})

    child = int((pod.root / "child").read_text())
    eventually(lambda: not is_running(child), "the child of config.sh has ended")
    assert not (pod.root / "home" / ".runner").exists()


def test_a_signal_ends_config_too(pod: Pod) -> None:
    (pod.jit_dir / "jit").write_text(REGISTRATION)
    write_script(pod.root / "home" / "config.sh", f"echo $$ >{pod.root}/child; exec /bin/sleep 20")
    process = pod.start("register.sh", url="")
    eventually(lambda: (pod.root / "child").exists() and (pod.root / "child").read_text() != "")
    process.terminate()

    assert pod.end(process).code == 143
    eventually(lambda: not is_running(int((pod.root / "child").read_text())), "config.sh has ended")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("text", ["", "url=https://github.com/acme\nname=x\n"])
def test_an_incomplete_registration_is_refused(pod: Pod, text: str) -> None:
    (pod.jit_dir / "jit").write_text(text)

    assert registers(pod) == (1, {"not-registered"})
    assert not (pod.root / "arguments").exists()


def test_without_a_token_nothing_is_registered(pod: Pod) -> None:
    (pod.jit_dir / "no-work").touch()

    assert registers(pod) == (0, {"not-registered"})


def test_an_image_without_config_is_reported_to_the_poller(pod: Pod) -> None:
    (pod.root / "home" / "config.sh").unlink()

    assert registers(pod) == (22, {"not-registered"})
    assert (pod.jit_dir / "runner-unusable").read_text().startswith("22 there is no ")


def test_a_signal_ends_the_wait_for_the_token(pod: Pod) -> None:
    (pod.jit_dir / "runner-usable").unlink(missing_ok=True)
    process = pod.start("register.sh", url="")
    eventually((pod.jit_dir / "runner-usable").exists)
    process.terminate()

    assert pod.end(process).code == 143
    assert [each.name for each in (pod.root / "registration").iterdir()] == ["not-registered"]


def test_the_runner_starts_with_the_files_and_leaves_none_behind(pod: Pod) -> None:
    for name in FILES:
        (pod.jit_dir / name).write_text(name)
    (pod.jit_dir / "registered").touch()

    assert pod.end(pod.start("run-registered.sh", url="")).code == 7
    assert [(pod.root / "home" / name).read_text() for name in FILES] == list(FILES)
    assert (pod.root / "left").read_text() == "registered\nrunner-usable\n"


def test_a_runner_that_was_not_registered_ends_without_a_job(pod: Pod) -> None:
    (pod.jit_dir / "not-registered").touch()

    assert pod.end(pod.start("run-registered.sh", url="")).code == 0
    assert not (pod.root / "left").exists()


def test_the_end_of_a_job_takes_the_mark_of_its_start_away(pod: Pod) -> None:
    for script, marked in (("job-started.sh", True), ("job-completed.sh", False), ("job-completed.sh", False)):
        assert pod.end(pod.start(script, url="")).code == 0
        assert (pod.jit_dir / "job-started").exists() is marked
