"""Table of the states of claims and jobs, and of every allowed transition.

`models.state.claim_transitions` and `models.state.job_transitions` have the functions that change existing rows.
`models.state.transitions` applies a transition as one guarded UPDATE that also writes the event. No other code changes
the state of a job or a claim, so a transition that is not in the table cannot be committed. The state of a stamp also
changes with some transitions of its claim, and in a restore (`models.state.claim_checks`).
`models.state.claim_inserts` and `models.state.job_inserts` insert new rows. `models.state.claim_leases` commits the
`LEASE` transitions. A test in `tests/faults` kills a process before and after the commit of each transition in
`TRANSITIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Purpose(StrEnum):
    """Purpose of a claim.

    - `job`: the Pod runs one job.
    - `register`: the Pod registers a persistent runner, which GitHub gives jobs until Ostler removes the runner.
    - `retire`: the Pod is deleted.
    """

    JOB = "job"
    REGISTER = "register"
    RETIRE = "retire"


RUNNERS = frozenset({Purpose.JOB, Purpose.REGISTER})
"""Purposes of the claims that give a Pod a runner."""


class ClaimState(StrEnum):
    """State of a claim. Only `ended` is terminal."""

    CLAIMED = "claimed"
    MINTED = "minted"
    DELIVERED = "delivered"
    EXECUTING = "executing"
    RELEASING = "releasing"
    ENDED = "ended"


class JobState(StrEnum):
    """State of a job. `completed` is terminal."""

    WAITING = "waiting"
    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"


class Stamp(StrEnum):
    """Recorded state of a claim's stamp on its Pod. The state of the stamp is independent of the state of the claim."""

    NONE = "none"
    ON = "on"
    GAVE_UP = "gave_up"
    REMOVING = "removing"
    OFF = "off"


class EndReason(StrEnum):
    """Reason for the end of a claim."""

    COMPLETED = "completed"
    RELEASED = "released"
    POD_GONE = "pod_gone"
    POD_SPENT = "pod_spent"
    NEVER_STARTED = "never_started"
    RETIRED = "retired"


class Machine(StrEnum):
    """Subject of a transition. A `LEASE` transition commits the start of a step and changes no state."""

    CLAIM = "claim"
    JOB = "job"
    STAMP = "stamp"
    LEASE = "lease"


class Process(StrEnum):
    """Process that normally commits a transition. After a failure, another process might commit the transition."""

    WEB = "web"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed transition. If `sources` is empty, the transition inserts the row."""

    name: str
    machine: Machine
    sources: frozenset[str]
    target: str
    process: Process
    purposes: frozenset[Purpose] = RUNNERS
    """The claims with these purposes have the transition. For a transition of a job, this field has no meaning."""
    seconds: float = 0.0
    """How many seconds a `LEASE` lasts. The step must finish all its work within this time."""


_C = ClaimState
_J = JobState
_S = Stamp
_WEB = Process.WEB
_WORKER = Process.WORKER
_UNDELIVERED = (_C.CLAIMED, _C.MINTED)
_OPEN = (_C.CLAIMED, _C.MINTED, _C.DELIVERED)
_LIVE = (*_OPEN, _C.EXECUTING, _C.RELEASING)


def _claim(name: str, sources: tuple[ClaimState, ...], target: ClaimState, process: Process) -> Transition:
    return Transition(name, Machine.CLAIM, frozenset(sources), target, process)


def _of_job(name: str, sources: tuple[ClaimState, ...], target: ClaimState, process: Process) -> Transition:
    return Transition(name, Machine.CLAIM, frozenset(sources), target, process, frozenset({Purpose.JOB}))


def _retire(name: str, sources: tuple[ClaimState, ...], target: ClaimState) -> Transition:
    return Transition(name, Machine.CLAIM, frozenset(sources), target, _WORKER, frozenset({Purpose.RETIRE}))


def _job(name: str, sources: tuple[JobState, ...], target: JobState, process: Process) -> Transition:
    return Transition(name, Machine.JOB, frozenset(sources), target, process)


def _stamp(name: str, sources: tuple[Stamp, ...], target: Stamp, process: Process = _WORKER) -> Transition:
    return Transition(name, Machine.STAMP, frozenset(sources), target, process)


def _lease(
    name: str, sources: tuple[ClaimState, ...], *, seconds: float, purposes: frozenset[Purpose] = RUNNERS
) -> Transition:
    return Transition(name, Machine.LEASE, frozenset(sources), "", _WORKER, purposes, seconds)


TRANSITIONS: dict[str, Transition] = {
    transition.name: transition
    for transition in (
        # claims for a job or a registration, in the order of law L5
        _claim("claim", (), _C.CLAIMED, _WORKER),
        _claim("mint", (_C.CLAIMED,), _C.MINTED, _WORKER),
        _claim("deliver", (_C.MINTED,), _C.DELIVERED, _WEB),
        _of_job("execute", (_C.DELIVERED, _C.RELEASING), _C.EXECUTING, _WEB),
        # ends of a claim
        _claim("begin_release", _OPEN, _C.RELEASING, _WORKER),
        _of_job("refuse_release", (_C.RELEASING,), _C.EXECUTING, _WORKER),
        _claim("end_released", (_C.RELEASING,), _C.ENDED, _WORKER),
        _of_job("end_completed", (_C.DELIVERED, _C.EXECUTING, _C.RELEASING), _C.ENDED, _WEB),
        _claim("end_pod_gone", _LIVE, _C.ENDED, _WORKER),
        _claim("end_pod_spent", _LIVE, _C.ENDED, _WORKER),
        # claims that retire a Pod (law L7)
        _retire("retire", (), _C.CLAIMED),
        _retire("end_retired", (_C.CLAIMED,), _C.ENDED),
        # jobs
        _job("job_seen", (), _J.QUEUED, _WEB),
        _job("job_ready", (_J.WAITING,), _J.QUEUED, _WEB),
        _job("job_claim", (_J.QUEUED,), _J.CLAIMED, _WORKER),
        _job("job_run", (_J.WAITING, _J.QUEUED, _J.CLAIMED), _J.RUNNING, _WEB),
        _job("job_requeue", (_J.CLAIMED, _J.RUNNING), _J.QUEUED, _WORKER),
        _job("job_finish", (_J.WAITING, _J.QUEUED, _J.CLAIMED, _J.RUNNING), _J.COMPLETED, _WEB),
        # stamps
        _stamp("stamp_on", (_S.NONE, _S.GAVE_UP, _S.OFF, _S.ON), _S.ON),
        _stamp("stamp_gave_up", (_S.NONE, _S.OFF, _S.ON), _S.GAVE_UP),
        _stamp("stamp_removing", (_S.ON, _S.GAVE_UP), _S.REMOVING),
        _stamp("stamp_off", (_S.REMOVING,), _S.OFF),
        # a poll that arrives proves that no stamp cuts the Pod's connection to web
        _stamp("cancel_unstamp", (_S.REMOVING,), _S.OFF, _WEB),
        # leases of steps
        _lease("lease_stamp", (_C.CLAIMED, _C.DELIVERED, _C.EXECUTING), seconds=2.0),
        _lease("lease_mint", (_C.CLAIMED,), seconds=10.0),
        _lease("lease_unstamp", (_C.MINTED, _C.DELIVERED), seconds=5.0),
        _lease("lease_release", (_C.RELEASING,), seconds=20.0),
        _lease("lease_retire", (_C.CLAIMED,), seconds=20.0, purposes=frozenset({Purpose.RETIRE})),
    )
}


def allowed(name: str) -> Transition:
    """Return the transition `name`. Raises KeyError for an unknown name, which is a bug of the caller."""
    return TRANSITIONS[name]
