"""Options of a container in the syntax of `docker create`."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_hooks.failures import HookFailed
from container_hooks.options import Health, duration, parse_options
from container_hooks.port_mappings import container_ports
from container_hooks.resources import Share, divide


def test_options_that_a_pod_can_express_are_parsed() -> None:
    found = parse_options(
        '--user 1000:1000 -e A=1 --env B="x y" -p 80:8080 --expose=9000 --entrypoint /run --cpus 1.5 -m 512m', of="job"
    )
    assert (found.user, found.group, found.entrypoint) == (1000, 1000, "/run")
    assert found.environment == {"A": "1", "B": "x y"}
    assert found.ports == ["80:8080", "9000"]
    assert (found.millicores, found.memory_mib, found.ignored) == (1500, 512, [])


def test_health_options_of_docker_become_one_check() -> None:
    found = parse_options(
        '--health-cmd "pg_isready -U shop" --health-interval 10s --health-timeout=1m30s --health-retries 5 '
        "--health-start-period 500ms",
        of="db",
    )
    assert found.health == Health(command="pg_isready -U shop", interval=10, timeout=90, retries=5, start_period=0.5)
    assert found.health.patience == 500.5


def test_health_options_have_the_defaults_of_docker() -> None:
    assert parse_options("--health-cmd true", of="db").health == Health(
        command="true", interval=30, timeout=30, retries=3
    )
    assert parse_options("--health-interval 5s", of="db").health is None
    assert parse_options("--health-cmd none", of="db").health is None


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("--privileged --network host", ["--privileged", "--network"]),
        ("--cap-add=SYS_ADMIN -v /a:/b --init", ["--cap-add", "-v", "--init"]),
        ("--init --user 5", ["--init"]),
        ("--env HOME", ["--env HOME"]),
        ("-u5 -eA=1", []),
        ("--no-healthcheck", ["--no-healthcheck"]),
        ("--health-start-interval 1s", ["--health-start-interval"]),
        ("", []),
    ],
)
def test_options_that_a_pod_cannot_express_are_named(text: str, ignored: list[str]) -> None:
    assert parse_options(text, of="job").ignored == ignored


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--user root", "use numbers"),
        ("--user 0", "must not run as root"),
        ("--user 0:5", "must not run as root"),
        ("--user 99999999999", "use numbers"),
        ("--user", "needs a value"),
        ("--cpus many", "use a number of CPUs"),
        ("--cpus nan", "use a number of CPUs"),
        ("--cpus 0", "use a number of CPUs"),
        ("--memory lots", "use bytes with a unit"),
        ("--health-cmd x --health-interval soon", "--health-interval soon: use a duration"),
        ("--health-cmd x --health-retries few", "use a whole number"),
        ('--health-cmd "x', "a quote is not closed"),
    ],
)
def test_wrong_value_is_one_line_that_names_the_container(text: str, words: str) -> None:
    with pytest.raises(HookFailed, match="the options of db") as caught:
        parse_options(text, of="db")
    assert words in str(caught.value)


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser_of_options(text: str) -> None:
    with contextlib.suppress(HookFailed):
        parse_options(text, of="db")


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("10s", 10), ("1h2m3s", 3723), ("1.5s", 1.5), ("100us", 1e-4)])
def test_durations_of_docker_are_parsed(text: str, seconds: float) -> None:
    assert duration(text, "x") == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("mapping", "port", "protocol"),
    [("80", 80, "TCP"), ("8080:80", 80, "TCP"), ("8080:80/udp", 80, "UDP"), ("127.0.0.1:1:65535/tcp", 65535, "TCP")],
)
def test_port_of_the_container_is_used(mapping: str, port: int, protocol: str) -> None:
    assert container_ports([mapping], of="x") == [{"containerPort": port, "protocol": protocol}]


@pytest.mark.parametrize("mapping", ["", "0", "65536", "a", "1:2/x", "8000-8010", "80:", "1/tcp/udp", "٣"])
def test_wrong_port_is_refused(mapping: str) -> None:
    with pytest.raises(HookFailed, match="use HOST:PORT"):
        container_ports([mapping], of="x")


def test_job_gets_all_of_a_pod_without_services() -> None:
    shares, lines = divide(millicores=2000, memory_mib=4096, job="job", options={"job": parse_options("", of="x")})
    assert (shares, lines) == ({"job": Share(2000, 4096)}, [])


def test_services_get_half_or_what_they_ask_for() -> None:
    options = {
        "job": parse_options("--cpus 64", of="x"),
        "a": parse_options("", of="x"),
        "b": parse_options("--cpus 0.1 --memory 1g", of="x"),
    }
    shares, lines = divide(millicores=2000, memory_mib=4096, job="job", options=options)
    assert shares == {"a": Share(500, 1024), "b": Share(100, 1024), "job": Share(1400, 2048)}
    assert lines == ["--cpus of container job is more than the hook Pod has left, and was reduced"]


@given(
    st.integers(100, 64_000),
    st.integers(128, 200_000),
    st.lists(st.tuples(st.none() | st.integers(1, 100_000), st.none() | st.integers(1, 300_000)), max_size=6),
)
def test_shares_never_exceed_the_pod(millicores: int, memory: int, asked: list[tuple[int | None, int | None]]) -> None:
    options = {"job": parse_options("", of="x")}
    for number, (cpu, mib) in enumerate(asked):
        options[f"s{number}"] = parse_options("", of="x")
        options[f"s{number}"].millicores, options[f"s{number}"].memory_mib = cpu, mib
    shares, _ = divide(millicores=millicores, memory_mib=memory, job="job", options=options)
    assert sum(each.millicores for each in shares.values()) <= millicores
    assert sum(each.memory_mib for each in shares.values()) <= memory
    assert all(each.millicores > 0 and each.memory_mib > 0 for each in shares.values())
