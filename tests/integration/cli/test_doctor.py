"""`ostler doctor` on real parts: cause and remedy of each problem, and an exit status for scripts."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from github_adapters import permissions
from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import create_pool
from lab.control_plane import ClusterAccess
from lab.control_plane_access import write_kubeconfig
from lab.redis import Redis
from ostler.clock import utcnow
from tests.contract.github.conftest import APP_ID, Lab, make_app_key, running
from tests.database import Database
from tests.integration.cli.test_operator import Operator
from tests.rows import insert_pool, run_sql
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)


@dataclass
class Patient:
    """An installation to check. Any part of it can be broken."""

    operator: Operator
    environment: dict[str, str] = field(default_factory=dict)

    def execute(self, statement: str) -> None:
        """Run a statement."""
        with self.operator.database.engine.begin() as db:
            db.execute(text(statement))

    def look(self, *arguments: str, **changes: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit status, and the findings by the names of the checks."""
        done = self.operator.run("doctor", "--json", *arguments, **(self.environment | changes))
        return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}


@pytest.fixture
def bare(database: Database) -> Patient:
    """An installation in which only the URL of the database is set."""
    return Patient(Operator(database))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return make_app_key(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def lab(app: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(app, tmp_path_factory.mktemp("github")) as lab:
        yield lab


@pytest.fixture
def whole(
    database: Database,
    redis: Redis,
    lab: Lab,
    app: tuple[Any, Path],
    control_plane: ClusterAccess,
    namespace: str,
    admin: KubeClient,
) -> Patient:
    """An installation with all settings, whose parts are all real."""
    create_pool(
        admin,
        namespace=namespace,
        name="small",
        spec={"image": "ghcr.io/actions/actions-runner:2.330.0", "runnerLabels": ["linux"]},
    )
    patient = Patient(
        Operator(database),
        {
            "OSTLER_REDIS_URL": redis.url,
            "OSTLER_GITHUB_API_URL": lab.url,
            "OSTLER_GITHUB_APP_ID": APP_ID,
            "OSTLER_GITHUB_PRIVATE_KEY": app[0].reveal(),
            "OSTLER_WEBHOOK_SECRETS": "hush-of-these-tests",
            "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
            "OSTLER_KUBECONFIG": str(control_plane.kubeconfig),
            "OSTLER_NAMESPACE": namespace,
        },
    )
    patient.execute("INSERT INTO sweeps (name, began_at, succeeded_at) VALUES ('resume', now(), now())")
    patient.execute("INSERT INTO web_instances VALUES ('web', now(), now())")
    patient.execute("INSERT INTO deliveries VALUES ('g', 'workflow_job', 'queued', 1, 'accepted', now())")
    image = "ghcr.io/actions/actions-runner:2.330.0"
    insert_pool(database.engine, namespace=namespace, image=image, vcpu=1, memory=1)
    assert lab.call("PUT", "/_lab/runner-versions", {"2.330.0": f"{utcnow() + timedelta(days=60):%FT%TZ}"})[0] == 204
    granted(lab, {**permissions.ORGANIZATION, "administration": "write"})
    return patient


def granted(lab: Lab, wanted: dict[str, str], events: tuple[str, ...] = permissions.WANTED_EVENTS) -> None:
    """Change the rights of the App."""
    assert lab.call("PATCH", "/_lab/app", {"permissions": wanted, "events": events})[0] == 200


# All of it


@pytest.mark.cluster
def test_doctor_checks_everything_and_reports_ok_for_what_works(whole: Patient, lab: Lab) -> None:
    lab.jobs()
    eventually(lambda: bool(lab.deliveries()))
    status, found = whole.look()
    outcomes = {name: each["outcome"] for name, each in found.items()}
    # No policy of either kind is in this cluster, and no worker has a role in the namespace.
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "ok"} == {
        "admission policy": "failed",
        "job network": "warning",
        "pod creation": "unknown",
        "role creation": "unknown",
    }, found
    assert status == 1
    assert next(iter(found)) == "epoch"
    assert all(each["cause"] and each["family"] for each in found.values())
    assert all(each["cure"] for each in found.values() if each["outcome"] != "ok")
    text_of = whole.operator.run("doctor", "--only", "postgres,redis", **whole.environment)
    assert text_of.returncode == 0
    for value in (whole.environment["OSTLER_GITHUB_PRIVATE_KEY"], "hush-of-these-tests"):
        assert value not in text_of.stdout + json.dumps(found)


def test_doctor_names_missing_settings_and_checks_the_rest(bare: Patient) -> None:
    status, found = bare.look(OSTLER_KUBECONFIG="/nowhere")
    assert status == 1
    assert found["settings"]["outcome"] == "failed"
    assert "OSTLER_REDIS_URL" in found["settings"]["cause"]
    assert found["postgres"]["outcome"] == "ok"
    assert {found[name]["outcome"] for name in ("redis", "kubernetes", "github app")} == {"failed"}
    assert {found[name]["outcome"] for name in ("redis options", "permissions", "rights", "sweeps")} == {"unknown"}


def test_a_family_that_there_is_not_is_refused(bare: Patient) -> None:
    assert bare.operator.run("doctor", "--only", "postgers").returncode == 2


# Postgres


def test_a_postgres_that_is_away_is_told_and_stops_nothing(whole: Patient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = f"postgresql+psycopg2://x@127.0.0.1:{taken.getsockname()[1]}/x"
        status, found = whole.look("--only", "postgres,redis,fleet", OSTLER_DATABASE_URL=away)
    assert status == 1
    assert found["postgres"]["outcome"] == "failed"
    assert "OSTLER_DATABASE_URL" in found["postgres"]["cure"]
    assert found["redis"]["outcome"] == "ok"
    assert found["beat"]["outcome"] == "unknown"


def test_a_database_that_was_put_back_is_named_first_with_its_cure(bare: Patient) -> None:
    bare.execute("UPDATE epochs SET older_since = now(), why = 'Postgres is at epoch 1 and the cluster at 9'")
    status, found = bare.look("--only", "postgres")
    assert status == 1
    assert next(iter(found)) == "epoch"
    assert found["epoch"]["outcome"] == "failed"
    assert "the cluster at 9" in found["epoch"]["cause"]
    assert "ostler restore" in found["epoch"]["cure"]
    assert "older than the cluster" in bare.operator.run("sweep", "list").stderr


def test_an_epoch_that_nobody_compares_says_what_keeps_them(bare: Patient) -> None:
    bare.execute("UPDATE epochs SET trusted_until = now(), why = 'the cluster could not be read: Forbidden'")
    status, found = bare.look("--only", "postgres")
    assert (status, found["epoch"]["outcome"]) == (1, "failed")
    assert "Forbidden" in found["epoch"]["cause"]
    assert "ConfigMap" in found["epoch"]["cure"]
    assert "ostler restore --anyway" in found["epoch"]["cure"]


def test_since_when_the_epoch_could_not_be_written_is_said(bare: Patient) -> None:
    bare.execute(
        """
        UPDATE epochs SET trusted_until = '2026-11-01 10:01+00', confirmed_at = '2026-11-01 10:00+00',
               why = 'the cluster''s epoch could not be written: Forbidden'
        """,
    )
    status, found = bare.look("--only", "postgres")
    assert (status, found["epoch"]["outcome"]) == (1, "failed")
    assert (
        "(last confirmed: 2026-11-01 10:00:00 UTC): the cluster's epoch could not be written" in found["epoch"]["cause"]
    )


def test_doctor_counts_persistent_runners_without_a_job_for_a_day(bare: Patient) -> None:
    engine = bare.operator.database.engine
    insert_pool(engine, "static", registers_in="orgs/acme")
    bare.execute("INSERT INTO accounts VALUES (1, 'acme', 1, 10, 100000, 100000, '[]', now())")
    for pod, hours in (("old", 25), ("young", 23)):
        run_sql(
            engine,
            """
            WITH pod AS (
                INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
                SELECT id, namespace, :pod, :pod, 'a', 'h', now() FROM pools RETURNING *
            )
            INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope, vcpu,
                                memory, state, stamp, created_at, changed_at, minted_at, delivered_at, runner_name,
                                runner_seen, online_at)
            SELECT 'register', id, uid, pool_id, 1, 501, 'orgs/acme', 0, 0, 'delivered', 'off', now(), now(), now(),
                   now(), name, 'online', now() - make_interval(hours => :hours) FROM pod
            """,
            pod=pod,
            hours=hours,
        )
    _, found = bare.look("--only", "fleet")
    assert found["unused runners"]["outcome"] == "warning"
    assert found["unused runners"]["cause"].endswith("without a job: static (1)")


def test_a_schema_of_before_and_a_fleet_that_is_away_are_found(bare: Patient) -> None:
    status, found = bare.look("--only", "fleet")
    assert status == 1
    assert {found[name]["outcome"] for name in ("beat", "web")} == {"failed"}
    assert found["webhooks"]["outcome"] == "warning"
    bare.execute("UPDATE alembic_version SET version_num = '0001'")
    _, found = bare.look("--only", "postgres")
    assert found["database revision"]["cure"].endswith("run `ostler migrate`")
    assert found["epoch"]["outcome"] == "unknown"


def test_a_budget_that_does_not_fit_is_told(whole: Patient) -> None:
    status, found = whole.look("--only", "postgres", OSTLER_CONNECTION_BUDGET="9999")
    assert (status, found["connections"]["outcome"]) == (1, "failed")


# Redis


def test_a_redis_that_throws_things_away_is_told(whole: Patient, redis: Redis) -> None:
    with redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            status, found = whole.look("--only", "redis")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert (status, found["redis options"]["outcome"]) == (1, "failed")
    assert "noeviction" in found["redis options"]["cure"]


# The cluster


@pytest.mark.cluster
def test_an_identity_without_rights_is_told_which_it_lacks(
    whole: Patient, admin: KubeClient, namespace: str, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    name = f"ostler-{secrets.token_hex(3)}-watch"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    admin.request("POST", accounts, body={"metadata": {"name": name}})
    token = admin.request("POST", f"{accounts}/{name}/token", body={"spec": {}})["status"]["token"]
    kubeconfig = tmp_path / "watch.yaml"
    write_kubeconfig(kubeconfig, url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    status, found = whole.look("--only", "cluster", OSTLER_KUBECONFIG=str(kubeconfig))
    assert status == 1
    assert found["kubernetes"]["outcome"] == "ok"
    assert found["rights"]["outcome"] == "failed"
    assert "watch: list pods, watch pods" in found["rights"]["cause"]
    assert "worker" not in found["rights"]["cause"]
    names = (
        "definition",
        "admission policy",
        "pod creation",
        "role creation",
        "hook pods",
        "job network",
        "pools",
    )
    assert {found[name]["outcome"] for name in names} == {"unknown"}


def test_a_pool_that_cannot_be_used_is_told(whole: Patient, admin: KubeClient, namespace: str) -> None:
    spec = {"image": "i", "runnerLabels": ["x"], "podTemplate": {"spec": {"hostNetwork": True}}}
    create_pool(admin, namespace=namespace, name="bad", spec=spec)
    status, found = whole.look("--only", "cluster")
    assert (status, found["pools"]["outcome"]) == (1, "failed")
    assert "bad: " in found["pools"]["cause"]


def test_pool_of_a_namespace_that_the_settings_lack_fails_until_it_is_gone(whole: Patient) -> None:
    insert_pool(whole.operator.database.engine, "wide", namespace="up")
    status, found = whole.look("--only", "cluster")
    assert (status, found["unread namespaces"]["outcome"]) == (1, "failed")
    assert "up: wide" in found["unread namespaces"]["cause"]
    assert "small" not in found["unread namespaces"]["cause"]
    elevated = {"OSTLER_ELEVATED_NAMESPACE": "up"}
    assert whole.look("--only", "cluster", **elevated)[1]["unread namespaces"]["outcome"] == "ok"
    whole.execute("UPDATE pools SET deleted_at = now() WHERE name = 'wide'")
    assert whole.look("--only", "cluster")[1]["unread namespaces"]["outcome"] == "ok"


def test_a_cluster_that_does_not_answer_is_told(whole: Patient, control_plane: ClusterAccess, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "away.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{taken.getsockname()[1]}"
        write_kubeconfig(kubeconfig, url=url, ca_file=control_plane.ca_file, token="t")
        status, found = whole.look("--only", "cluster", OSTLER_KUBECONFIG=str(kubeconfig))
    assert (status, found["kubernetes"]["outcome"]) == (1, "failed")


# GitHub


def test_a_key_that_github_does_not_know_is_told(whole: Patient, tmp_path: Path) -> None:
    other, _ = make_app_key(tmp_path)
    status, found = whole.look("--only", "github", OSTLER_GITHUB_PRIVATE_KEY=other.reveal())
    assert (status, found["github app"]["outcome"]) == (1, "failed")
    assert found["clock"]["outcome"] == "ok"
    assert found["permissions"]["outcome"] == "unknown"


def test_what_the_app_lacks_is_told(whole: Patient, lab: Lab) -> None:
    granted(lab, {"metadata": "read", "actions": "read", "administration": "write"}, ("repository",))
    status, found = whole.look("--only", "github")
    assert status == 1
    assert "acme lacks organization_self_hosted_runners: write" in found["permissions"]["cause"]
    assert found["events"]["outcome"] == "failed"


def test_a_runner_that_github_refuses_is_told(whole: Patient, lab: Lab) -> None:
    lab.call("PUT", "/_lab/runner-versions", {"2.330.0": "2026-01-01T00:00:00Z"})
    status, found = whole.look("--only", "github")
    assert (status, found["runner version"]["outcome"]) == (1, "failed")
    assert "small" in found["runner version"]["cure"]
    lab.call("PUT", "/_lab/runner-versions", {})
    assert "the lab's GitHub" in whole.look("--only", "github")[1]["runner version"]["cause"]
