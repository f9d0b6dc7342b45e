"""The calls of GitHub's REST API that Ostler makes.

The modules of `endpoints` follow the pages of GitHub's documentation.

The caller can pass a policy for the retries of a call. Without a policy the call is tried once, and the calling task
decides about a retry, because two layers of retries would multiply the attempts. A call that is not idempotent (a mint,
a redelivery) is never retried here. If GitHub refuses an installation token, the token is renewed and the call is tried
once more. `docs/decisions/0002-github-client.md` gives the reasons for a client of our own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from github_adapters.calls.auth import AppAuth
from github_adapters.calls.governor import Governs, Ungoverned
from github_adapters.calls.http import Http
from github_adapters.calls.session import Session
from github_adapters.endpoints.app import App
from github_adapters.endpoints.check_runs import CheckRuns
from github_adapters.endpoints.deliveries import Deliveries
from github_adapters.endpoints.jobs import Jobs
from github_adapters.endpoints.runner_groups import RunnerGroups
from github_adapters.endpoints.runner_versions import RunnerVersions
from github_adapters.endpoints.runners import Runners
from github_adapters.endpoints.runs import Runs
from ostler.clock import Timing, machine_now
from ostler.secrets import Secret


class GitHub:
    """GitHub for one App. Threads may share it, and one object can serve the process for its whole life.

    `timeout` is in seconds, for one request and its answer. `deadline_seconds` and the deadline of a `policy` limit the
    time of a method with all its requests. `governor` allows each request with a credential and gets the answer.
    `left` is called with the id of an installation if GitHub does not know the installation.

    A method can raise these errors:

    - `RateLimited`: the governor denied the call, or GitHub answered 403 or 429 and asks to wait. The call was not
      applied.
    - `Forbidden`: GitHub answered 401, 403 or 451. Its subclass `Suspended` means a suspended installation.
    - `Gone`: GitHub answered 404, 410 or with a redirect, because the scope does not exist under this name. Its
      subclass `NotInstalled` means that the App is not installed there.
    - `Conflict`: GitHub answered 409.
    - `Invalid`: GitHub answered 400 or 422.
    - `Retryable`: GitHub gave another answer or none, or the answer cannot be parsed. The call might have been applied
      or not.
    """

    def __init__(
        self,
        *,
        api_url: str,
        app_id: str,
        private_key: Secret,
        timeout: float = 10,
        clock: Callable[[], datetime] = machine_now,
        governor: Governs | None = None,
        timing: Timing | None = None,
        left: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._http = Http(api_url=api_url, timeout=timeout)
        governor = governor or Ungoverned()
        session = Session(
            http=self._http,
            auth=AppAuth(
                http=self._http, app_id=app_id, private_key=private_key, clock=clock, governor=governor, left=left
            ),
            governor=governor,
            clock=clock,
            timing=timing or Timing(),
        )
        runners, groups, versions = Runners(session), RunnerGroups(session), RunnerVersions(session)
        jobs, runs, app, deliveries = Jobs(session), Runs(session), App(session), Deliveries(session)

        self.mint = runners.mint
        self.registration_token = runners.registration_token
        self.find_runner = runners.find_runner
        self.list_runners = runners.list_runners
        self.delete_runner = runners.delete_runner

        self.list_runner_groups = groups.list_runner_groups

        self.runner_ends = versions.runner_ends

        self.get_job = jobs.get_job
        self.list_run_jobs = jobs.list_run_jobs

        self.get_run = runs.get_run
        self.look_up_run = runs.look_up_run
        self.list_runs = runs.list_runs

        self.get_app = app.get_app
        self.is_public = app.is_public
        self.clock_ahead = app.clock_ahead
        self.get_installation = app.get_installation
        self.list_installations = app.list_installations

        self.tell_check_run = CheckRuns(session).tell

        self.list_deliveries = deliveries.list_deliveries
        self.probe = deliveries.probe
        self.redeliver = deliveries.redeliver

    def close(self) -> None:
        """Close every connection."""
        self._http.close()
