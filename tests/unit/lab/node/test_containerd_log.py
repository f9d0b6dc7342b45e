from __future__ import annotations

import pytest

from lab.node.containerd_log import ended_unseen

ME, OTHER, SANDBOX = "464d" * 16, "6c72" * 16, "74bc" * 16

START = 'time="T" level=info msg="starting containerd" revision= version=2.4.2'
CREATED = (
    rf'level=info msg="CreateContainer within sandbox \"{SANDBOX}\" for name:\"runner\" returns container id \"{ME}\""'
)
CONNECTED = rf'level=info msg="connecting to shim {ME}" address="unix:///run/s/1" protocol=ttrpc version=3'
RUNNING = rf'level=info msg="StartContainer for \"{ME}\" returns successfully"'
LEAKED = f'level=info msg="cleaning leaked shim process" id={ME} namespace=k8s.io'
EXIT = rf'level=info msg="received container exit event container_id:\"{ME}\" id:\"{ME}\" pid:915"'
STOP = rf'level=info msg="StopContainer for \"{ME}\" with timeout 30 (s)"'
STOP_SANDBOX = rf'level=info msg="StopPodSandbox for \"{SANDBOX}\""'
NOTHING_TO_STOP = rf'level=info msg="Container to stop \"{ME}\" must be in running or unknown state"'
BORN = [START, CREATED, CONNECTED, RUNNING]

UNSEEN = {
    "removed as a leaked shim": [*BORN, START, CONNECTED, LEAKED],
    "found stopped": [*BORN, START, CONNECTED],
    "running at a first restart and over at a second": [*BORN, START, CONNECTED, START, CONNECTED, LEAKED],
    "its sandbox was stopped afterwards": [*BORN, START, CONNECTED, LEAKED, STOP_SANDBOX, NOTHING_TO_STOP, START],
    "another container was stopped before": [*BORN, STOP.replace(ME, OTHER), START, CONNECTED, LEAKED],
}

SEEN = {
    "containerd was never restarted": [*BORN, EXIT],
    "containerd was restarted only before the container": [START, *BORN, EXIT],
    "the container ended after the restart": [*BORN, START, CONNECTED, EXIT],
    "the container was to be stopped": [*BORN, STOP, START, CONNECTED, LEAKED],
    "the sandbox was to be stopped": [*BORN, STOP_SANDBOX, START, CONNECTED, LEAKED],
    "the container was to be stopped before an earlier restart": [*BORN, STOP, *[START, CONNECTED] * 2, LEAKED],
    "the restarted containerd has not found the container": [*BORN, START],
    "the log is of another containerd": [START, CREATED.replace(ME, OTHER)],
    "the log is empty": [],
}


@pytest.mark.parametrize("case", UNSEEN)
def test_end_while_containerd_was_not_running_is_proven(case: str) -> None:
    assert ended_unseen(UNSEEN[case], ME)


@pytest.mark.parametrize("case", SEEN)
def test_other_ends_are_not_excused(case: str) -> None:
    assert not ended_unseen(SEEN[case], ME)
