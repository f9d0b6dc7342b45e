"""`ostler changes`: changes by operators at a shell are recorded with their names."""

from __future__ import annotations

import os
import pwd

from tests.integration.cli.test_operator import Operator, operator
from tests.integration.cli.test_remote import Developer, developer

__all__ = ["developer", "operator"]

ME = pwd.getpwuid(os.getuid()).pw_name


def test_command_is_recorded_with_the_user_of_the_system_and_of_postgres(operator: Operator) -> None:
    operator.run("account", "set", "acme", "--count", "3")
    operator.run("sweep", "pause", "rematch", "--why", "we restore Postgres")
    operator.run("token", "create", "laptop")
    token, sweep, account = operator.json("changes")
    assert {(each["who"], each["via"]) for each in (token, sweep, account)} == {(ME, "shell")}
    (row,) = operator.execute("SELECT SESSION_USER AS name")
    assert {each["database_user"] for each in (token, sweep, account)} == {row.name}
    assert (sweep["name"], sweep["new"], sweep["why"]) == ("rematch", {"paused": True}, "we restore Postgres")
    shown = operator.run("changes", "--kind", "account", "--object", "acme").stdout
    assert "budget_count: " in shown
    assert " → 3" in shown
    assert operator.run("changes", "-o", "name").stdout.split() == [str(each["id"]) for each in (token, sweep, account)]


def test_name_in_the_environment_does_not_hide_the_user_of_the_system(operator: Operator) -> None:
    operator.run("sweep", "pause", "rematch", LOGNAME="somebody", USER="somebody")
    (change,) = operator.json("changes")
    assert change["who"] == ME


def test_history_of_a_pool_shows_its_changes_alone(operator: Operator) -> None:
    operator.execute(
        "INSERT INTO changes (at, kind, name, object_id, who, via, old, new) "
        "SELECT now(), 'pool', name, id, 'kubectl-edit', 'cluster', '{\"paused\": false}', '{\"paused\": true}' "
        "FROM pools"
    )
    operator.run("account", "set", "acme", "--count", "3")
    ((pool,),) = operator.execute("SELECT name FROM pools")
    (change,) = operator.json("pool", "history", pool)
    assert (change["who"], change["new"]) == ("kubectl-edit", {"paused": True})
    assert "paused: no → yes" in operator.run("pool", "history", pool).stdout
    assert operator.run("pool", "history", "none").stdout == "no changes\n"


def test_api_tells_the_same_changes(developer: Developer) -> None:
    developer.operator.run("account", "set", "acme", "--count", "3")
    developer.operator.execute("UPDATE changes SET at = now() - interval '3 days 90 minutes'")
    for command in (("changes", "--since", "9d"), ("changes", "--kind", "account"), ("pool", "history", "linux")):
        local, remote = developer.operator.run(*command), developer.run(*command)
        assert (remote.returncode, remote.stderr) == (0, local.stderr)
        assert remote.stdout == local.stdout
