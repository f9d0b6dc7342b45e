"""Messages that the containers of a runner Pod send to the kubelet while they run, real or simulated."""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Receiver of events. They arrive in the order in which they happen."""

    def poller_started(self, *, simulated: bool) -> None:
        """The poller started."""

    def jit_received(self, *, claim: str, runner_name: str, simulated: bool) -> None:
        """The poller received work."""

    def poller_exited(self, *, code: int, message: str) -> None:
        """The poller exited; `message` is its termination message."""

    def runner_started(self, *, runner_name: str) -> None:
        """The runner connected to GitHub."""

    def runner_ready(self) -> None:
        """The job-started hook has written its file."""

    def job_started(self, *, job: int) -> None:
        """The runner started a job."""

    def job_finished(self, *, job: int, conclusion: str) -> None:
        """The runner finished a job."""

    def runner_exited(self, *, code: int) -> None:
        """The runner exited."""
