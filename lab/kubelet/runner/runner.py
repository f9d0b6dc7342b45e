"""The runner of the lab's GitHub as a process: one session, at most one job, then exit.

A runner that config.sh registered (`config.py`) runs one job after the other until GitHub deletes it.

It uses the protocol `/_runner/…` at LAB_GITHUB_URL. It runs the job-started hook (ACTIONS_RUNNER_HOOK_JOB_STARTED)
before it reports `started`. It writes its events to its output, one JSON object per line. It imports the standard
library only: it starts once per Pod, so its imports are most of the cost of a Pod.
"""

import http.client
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

HOLD_SECONDS = 50
HEARTBEAT_SECONDS = 1.0
CALL_SECONDS = 10
ATTEMPTS = 7
NO_ANSWER = 0
DEPRECATED = 7
ONLINE_BEFORE_UPDATE = 0.5


class GitHub:
    """Runner protocol of one session. Temporary errors are retried. Status 0 means that there was no answer."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme != "http":
            raise ValueError(f"LAB_GITHUB_URL must be an http:// address, not {url!r}")
        self._address, _, path = rest.partition("/")
        self._prefix = f"/{path}".rstrip("/") + "/_runner/sessions"

    def ask(
        self, method: str, path: str, body: Any = None, *, seconds: float = CALL_SECONDS, attempts: int = ATTEMPTS
    ) -> tuple[int, Any]:
        """Return the status and JSON body of one call."""
        wait = 0.25
        status, answer = NO_ANSWER, None
        for attempt in range(attempts):
            if attempt:
                time.sleep(wait)
                wait *= 2
            status, answer = self._once(method, path, body, seconds)
            if status != NO_ANSWER and status < http.client.INTERNAL_SERVER_ERROR:
                break
        return status, answer

    def tell(self, path: str, body: Any) -> bool:
        """Report to GitHub. Return False if GitHub refuses the report or no attempt gets an answer.

        A refusal after an attempt without an answer counts as success, because that attempt might have arrived.
        """
        doubt, wait = False, 0.25
        for _ in range(ATTEMPTS):
            status, _ = self._once("POST", path, body, CALL_SECONDS)
            if status == http.client.NO_CONTENT:
                return True
            if status in range(400, 500):
                return doubt
            doubt = True
            time.sleep(wait)
            wait *= 2
        return False

    def _once(self, method: str, path: str, body: Any, seconds: float) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=seconds)
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, self._prefix + path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError):
            return NO_ANSWER, None
        finally:
            connection.close()


def say(event: str, **facts: Any) -> None:
    """Write one event to the output."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def run(github: GitHub, jit_config: str) -> int:
    """Run one runner until it ends and return the exit code of run.sh.

    The run.sh of actions/runner exits with 0 after almost every failure. Its helper script treats these failures as
    final and does not restart the runner.
    """
    config = {"jit_config": jit_config, "version": os.environ.get("LAB_RUNNER_VERSION", "")}
    persistent = jit_config == credential()
    update = os.environ.get("LAB_RUNNER_UPDATE_SECONDS")
    if update is not None:
        status, session = github.ask("POST", "", {**config, "updates": True})
        if status == http.client.CREATED:
            time.sleep(ONLINE_BEFORE_UPDATE)
            github.ask("DELETE", f"/{session['session']}")
            time.sleep(float(update))
    status, session = github.ask("POST", "", config)
    if status == http.client.FORBIDDEN:
        return DEPRECATED if os.environ.get("ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE") == "1" else 0
    if status != http.client.CREATED:
        return 0
    say("runner_started", runner_name=session["runner_name"])
    path = f"/{session['session']}"
    while True:
        job = next_job(github, path)
        if job is None:
            return 0
        conclusion = do_job(github, path, job)
        say("job_finished", job=job["job_id"], conclusion=conclusion)
        hook = os.environ.get("ACTIONS_RUNNER_HOOK_JOB_COMPLETED")
        if hook:
            subprocess.run([hook], check=True)
        if not persistent:
            github.ask("DELETE", path)
            return 0


def next_job(github: GitHub, path: str) -> "dict[str, Any] | None":
    """Wait for a job and return it. Return None if the session is over, or the registration was deleted."""
    while True:
        status, job = github.ask("GET", f"{path}/message?wait={HOLD_SECONDS}", seconds=HOLD_SECONDS + 10)
        if status == http.client.OK:
            return dict(job)
        if status in range(400, 500):
            return None


def credential() -> str:
    """Return the credential that config.sh left beside this script, or an empty string."""
    try:
        with open(f"{__file__.rpartition('/')[0]}/.credentials") as file:  # noqa: PTH123 - pathlib is slow to import
            return str(json.load(file)["credential"])
    except FileNotFoundError:
        return ""


def do_job(github: GitHub, path: str, job: dict[str, Any]) -> str:
    """Execute a job and return its conclusion: `success`, `failure`, or `lost` if GitHub did not accept a report."""
    hook = os.environ.get("ACTIONS_RUNNER_HOOK_JOB_STARTED")
    if hook:
        subprocess.run([hook], check=True)
    say("job_started", job=job["job_id"])
    if not github.tell(f"{path}/started", {"job_id": job["job_id"]}):
        return "lost"
    lost = threading.Event()
    threading.Thread(target=beat, args=(github, path, lost), daemon=True).start()
    conclusion = execute(job, lost)
    if conclusion == "lost":
        return "lost"
    heard = github.tell(f"{path}/finished", {"job_id": job["job_id"], "conclusion": conclusion})
    return conclusion if heard else "lost"


def execute(job: dict[str, Any], lost: threading.Event) -> str:
    """Execute the steps of a job and return its conclusion. A job without script and containers only takes time."""
    if job.get("containers"):
        sys.path.insert(0, __file__.rpartition("/")[0])  # python3 -I leaves this folder out
        module = importlib.import_module("container_job")  # few jobs need it, and an import delays the start of a Pod
        conclusion: str = module.ContainerJob(job["containers"], say=say, lost=lost).run()
        return conclusion
    if job.get("script"):
        return run_script(job, lost)
    return "lost" if lost.wait(float(job["duration_seconds"])) else "success"


def run_script(job: dict[str, Any], lost: threading.Event) -> str:
    """Run the script of a job in a shell and return the conclusion. If the job is lost, the shell is killed."""
    process = subprocess.Popen(["/bin/sh", "-c", job["script"]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if lost.wait(0.1):
            process.kill()
            process.wait()
            return "lost"
    say("script_ended", job=job["job_id"], status=process.returncode)
    return "success" if process.returncode == 0 else "failure"


def beat(github: GitHub, path: str, lost: threading.Event) -> None:
    """Renew the lock on the job until GitHub no longer knows it, then set `lost`."""
    while not lost.is_set():
        time.sleep(HEARTBEAT_SECONDS)
        status, _ = github.ask("POST", f"{path}/heartbeat", {}, attempts=1)
        if status == http.client.NOT_FOUND:
            lost.set()


def main(arguments: list[str]) -> int:
    """Read the input as actions/runner does and run one job.

    It accepts no arguments. ACTIONS_RUNNER_INPUT_JITCONFIG has the JIT config and is removed from the environment.
    Without this variable, the runner that config.sh registered is started.
    """
    config = os.environ.pop("ACTIONS_RUNNER_INPUT_JITCONFIG", "") or credential()
    if arguments or not config:
        sys.stderr.write("usage: ACTIONS_RUNNER_INPUT_JITCONFIG=CONFIG run.sh\n")
        return 1
    if "LAB_RUNNER_CRASHES" in os.environ:
        return int(os.environ["LAB_RUNNER_CRASHES"])
    while os.environ.get("LAB_RUNNER_EGRESS") == "none":
        time.sleep(60)
    return run(GitHub(os.environ["LAB_GITHUB_URL"]), config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
