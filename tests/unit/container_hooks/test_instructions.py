"""The real `hook.sh` carries out each instruction of the sidecar, in each shell."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from container_hooks.desk import Session
from ostler.errors import Invalid
from tests.unit.container_hooks.sidecar import SHELLS, Json, is_installed, serving

BIG = 50 * 1024 * 1024


@pytest.fixture(params=sorted(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    """Return the name of a shell that this machine has."""
    name: str = request.param
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the socket."""
    (tmp_path / "hooks").mkdir()
    return tmp_path / "hooks"


def script(**arguments: object) -> Json:
    """Return the JSON of a command."""
    return {"command": "run_script_step", "responseFile": "", "state": {}, "args": arguments}


@pytest.mark.parametrize("code", [0, 7, 137])
def test_hook_ends_with_the_exit_code_of_the_command(folder: Path, shell: str, code: int) -> None:
    with serving(folder, lambda given, _: int(given["args"]["code"]), shell=shell) as sidecar:
        assert sidecar.run(script(code=code)).code == code


def test_log_of_the_command_is_printed_in_order_and_complete(folder: Path, shell: str) -> None:
    lines = [f"line {number} of the step" for number in range(20_000)]

    def execute(_: Json, session: Session) -> int:
        for line in lines:
            session.conversation.log.line(line)
        session.conversation.log.raw(b"no line break at the end")
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert ended.output == "\n".join([*lines, "no line break at the end"])


def test_log_is_printed_while_the_command_runs(folder: Path, shell: str) -> None:
    seen = threading.Event()

    def execute(_: Json, session: Session) -> int:
        session.conversation.log.line("the image is being pulled")
        return 0 if seen.wait(30) else 1

    with serving(folder, execute, shell=shell) as sidecar:
        hook = sidecar.start(script())
        assert hook.process.stdout is not None
        assert hook.process.stdout.readline() == "the image is being pulled\n"
        seen.set()
        assert hook.end().code == 0


def test_folder_is_copied_both_ways_with_odd_names_links_and_modes(folder: Path, shell: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a work folder", tmp_path / "new" / "target"
    (source / ".hidden" / "deep").mkdir(parents=True)
    (source / "..odd").write_text("odd")
    (source / "-option").write_text("no option")
    (source / "back\\nslash *").write_text("star")
    (source / ".hidden" / "deep" / "ü b").write_text("deep")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("/nowhere")
    (source / "empty").mkdir()

    def execute(_: Json, session: Session) -> int:
        files = session.conversation.files
        chunks = list(files.send(str(source)))
        files.receive(str(target), chunks)
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert (ended.code, ended.output) == (0, "")
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {str(path.relative_to(source)) for path in source.rglob("*")}
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert (target / "link").readlink() == Path("/nowhere")
    assert (target / "back\\nslash *").read_text() == "star"


def test_empty_folder_is_an_empty_archive(folder: Path, shell: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    def execute(_: Json, session: Session) -> int:
        files = session.conversation.files
        chunks = list(files.send(str(tmp_path / "empty")))
        files.receive(str(tmp_path / "target"), chunks)
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        assert sidecar.run(script()).code == 0

    assert list((tmp_path / "target").iterdir()) == []


def test_big_file_arrives_unchanged_both_ways(folder: Path, shell: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    block = os.urandom(1024 * 1024)
    with (tmp_path / "source" / "big").open("wb") as file:
        for number in range(BIG // len(block)):
            file.write(block[number:] + block[:number])
    kept = tmp_path / "kept.tar"

    def execute(_: Json, session: Session) -> int:
        files = session.conversation.files
        with kept.open("wb") as archive:
            archive.writelines(files.send(str(tmp_path / "source")))
        with kept.open("rb") as archive:
            files.receive(str(tmp_path / "target"), iter(lambda: archive.read(100_000), b""))
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        assert sidecar.run(script()).code == 0

    sent, arrived = (hashlib.sha256((tmp_path / each / "big").read_bytes()) for each in ("source", "target"))
    assert sent.hexdigest() == arrived.hexdigest()


def test_written_file_has_its_content_and_mode_0644(folder: Path, shell: str, tmp_path: Path) -> None:
    def execute(given: Json, session: Session) -> int:
        session.conversation.files.write(given["responseFile"], b'{"isAlpine": false}')
        return 0

    answer = tmp_path / "responses" / "an answer.json"
    with serving(folder, execute, shell=shell) as sidecar:
        assert sidecar.run({"command": "prepare_job", "responseFile": str(answer)}).code == 0

    assert answer.read_bytes() == b'{"isAlpine": false}'
    assert stat.S_IMODE(answer.stat().st_mode) == 0o644


def test_missing_folder_counts_as_empty(folder: Path, shell: str, tmp_path: Path) -> None:
    sizes: list[int] = []

    def execute(_: Json, session: Session) -> int:
        sizes.append(len(b"".join(session.conversation.files.send(str(tmp_path / "missing"))).strip(b"\0")))
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        assert sidecar.run(script()).code == 0

    assert sizes == [0]


@pytest.mark.parametrize("way", ["packed", "unpacked"])
def test_path_that_is_no_folder_fails_with_the_error_and_one_line(
    folder: Path, shell: str, tmp_path: Path, way: str
) -> None:
    (tmp_path / "file").write_text("no folder")

    def execute(_: Json, session: Session) -> int:
        if way == "packed":
            list(session.conversation.files.send(str(tmp_path / "file")))
        else:
            session.conversation.files.receive(str(tmp_path / "file"), [bytes(1024)] * 4000)
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert ended.code == 1
    assert f"ostler: {tmp_path}/file cannot be {way} in container `runner`" in ended.output
    assert "File exists" in ended.output
    assert "Traceback" not in ended.output


def test_archive_that_is_cut_fails_the_copy(folder: Path, shell: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(os.urandom(300_000))

    def execute(_: Json, session: Session) -> int:
        files = session.conversation.files
        archive = b"".join(files.send(str(tmp_path / "source")))
        files.receive(str(tmp_path / "target"), [archive[:100_000]])
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert ended.code == 1
    assert f"ostler: {tmp_path}/target cannot be unpacked in container `runner`" in ended.output


def test_failure_of_the_other_end_of_a_copy_is_what_the_log_shows(folder: Path, shell: str, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"\0" * 1024
        raise Invalid("the container of the job has no program tar")

    def execute(_: Json, session: Session) -> int:
        session.conversation.files.receive(str(tmp_path / "target"), chunks())
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert ended.code == 1
    assert "ostler: the container of the job has no program tar\n" in ended.output


def test_command_goes_on_after_an_archive_that_it_did_not_read_to_its_end(
    folder: Path, shell: str, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(os.urandom(5_000_000))

    def execute(_: Json, session: Session) -> int:
        archive = session.conversation.files.send(str(tmp_path / "source"))
        next(archive)
        del archive
        session.conversation.files.write(str(tmp_path / "answer"), b"done")
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        assert sidecar.run(script()).code == 0

    assert (tmp_path / "answer").read_bytes() == b"done"


def test_path_with_a_line_break_is_refused(folder: Path, shell: str) -> None:
    def execute(_: Json, session: Session) -> int:
        session.conversation.files.write("/home/a\nexit 0", b"")
        return 0

    with serving(folder, execute, shell=shell) as sidecar:
        ended = sidecar.run(script())

    assert ended.code == 1
    assert "a path with a line break or a NUL byte cannot be copied" in ended.output
