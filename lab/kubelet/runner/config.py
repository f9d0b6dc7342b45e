"""The config.sh of the lab's runner: registers the runner and writes the three files of a registration.

It uses LAB_GITHUB_URL, whatever host `--url` names. It refuses to register a runner twice, as actions/runner does. It
imports the standard library only.
"""

import argparse
import http.client
import json
import os
import sys
from pathlib import Path


def parse(arguments: "list[str]") -> argparse.Namespace:
    """Read the options that Ostler uses. The token may also be in ACTIONS_RUNNER_INPUT_TOKEN."""
    options = argparse.ArgumentParser(prog="config.sh")
    for name in ("url", "name", "labels", "work"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--runnergroup", default="")
    options.add_argument("--token", default=os.environ.get("ACTIONS_RUNNER_INPUT_TOKEN", ""))
    for name in ("unattended", "replace", "no-default-labels"):
        options.add_argument(f"--{name}", action="store_true")
    return options.parse_args(arguments)


def main(arguments: "list[str]") -> int:
    """Register the runner. Return the exit code of config.sh."""
    given = parse(arguments)
    home = Path(__file__).parent
    if (home / ".runner").exists():
        sys.stderr.write("Cannot configure the runner because it is already configured.\n")
        return 1
    address, _, prefix = os.environ["LAB_GITHUB_URL"].removeprefix("http://").partition("/")
    body = {
        "token": given.token,
        "url": given.url,
        "name": given.name,
        "labels": [*([] if given.no_default_labels else ["self-hosted"]), *given.labels.split(",")],
        "group": given.runnergroup,
        "replace": given.replace,
    }
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        path = f"/{prefix}".rstrip("/") + "/_runner/registrations"
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"The request failed: {type(error).__name__}\n")
        return 1
    finally:
        connection.close()
    if answer.status != http.client.CREATED:
        sys.stderr.write(f"GitHub answers {answer.status}\n")
        return 1
    made = json.loads(text)
    write(home, ".runner", {"agentId": made["id"], "agentName": given.name})
    write(home, ".credentials", {"credential": made["credential"]})
    write(home, ".credentials_rsaparams", {})
    return 0


def write(home: Path, name: str, content: "dict[str, object]") -> None:
    """Write one file of the registration."""
    (home / name).write_text(json.dumps(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
