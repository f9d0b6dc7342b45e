"""Messages that the containers of a runner Pod send to the kubelet while they run, real or simulated."""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Receiver of events. They arrive in the order in which they happen."""

    def poller_started(self, *, simulated: bool) -> None:
        """Handle the start of the poller."""

    def jit_received(self, *, claim: str, runner_name: str, simulated: bool) -> None:
        """Handle the work that the poller received."""

    def poller_exited(self, *, code: int, message: str) -> None:
        """Handle the exit of the poller; `message` is its termination message."""

    def runner_started(self, *, runner_name: str) -> None:
        """Handle the connection of the runner to GitHub."""

    def runner_ready(self, *, is_ready: bool = True) -> None:
        """Handle the file that the job-started hook has written, or its removal by the job-completed hook."""

    def register_exited(self, *, code: int) -> None:
        """Handle the exit of the container that registers a persistent runner."""

    def job_started(self, *, job: int) -> None:
        """Handle the start of a job."""

    def job_finished(self, *, job: int, conclusion: str) -> None:
        """Handle the end of a job."""

    def hook_reported(self, event: str, facts: dict[str, object]) -> None:
        """Handle an event of the runner about a command of the container hooks."""

    def runner_exited(self, *, code: int) -> None:
        """Handle the exit of the runner."""
