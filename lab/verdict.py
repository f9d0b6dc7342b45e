"""Verdict on a run, from the logs of the lab's GitHub and kubelet alone.

The module is pure: it reads two logs and returns the problems as sentences. It uses neither Ostler's rows nor Ostler's
code, so that an error in Ostler cannot hide in the verdict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Log = Iterable[Mapping[str, Any]]

# Conclusions that the workflow or a user wanted, as opposed to a failure.
GOOD_CONCLUSIONS = frozenset({"success", "cancelled", "skipped", "neutral"})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a run. `waiting` counts jobs that still wait for an approval at GitHub, which is no problem.

    `remaps` counts jobs that ran on a runner minted for another job. It is None if the caller did not say which job
    each runner was minted for.
    """

    problems: tuple[str, ...]
    jobs: int
    completed: int
    waiting: int
    executions: int
    conclusions: Mapping[str, int]
    requeued: int
    webhooks_lost: int
    remaps: int | None
    leftover_runners: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Return whether no problem was found."""
        return not self.problems


def judge(
    github_log: Log,
    kubelet_log: Log,
    *,
    expected_failures: Collection[int] = frozenset(),
    claimed: Mapping[str, int] | None = None,
    allow_leftover_runners: bool = False,
) -> Verdict:
    """Return the verdict on a run that is over.

    `expected_failures` are jobs that the run broke on purpose, for example by killing a node; they may fail once.
    `claimed` maps each runner to the job that it was minted for. With `allow_leftover_runners`, runners that are still
    registered are listed without being a problem.
    """
    github = _GitHub(github_log)
    broken = frozenset(expected_failures)
    problems = [*github.problems(broken), *_Kubelet(kubelet_log, github).problems(broken)]
    leftover = tuple(sorted(github.registered))
    if leftover and not allow_leftover_runners:
        problems.append(f"{len(leftover)} runners are still registered: {_some(leftover)}")
    started = [(runner, job) for job, runners in github.started.items() for runner in runners]
    return Verdict(
        problems=tuple(problems),
        jobs=len(github.jobs),
        completed=sum(1 for job in github.jobs if github.ended[job]),
        waiting=len(github.waiting),
        executions=len(started),
        conclusions=Counter(conclusion for found in github.ended.values() for conclusion in found),
        requeued=github.counts["job_requeued"],
        webhooks_lost=github.counts["webhook_lost"],
        remaps=None if claimed is None else sum(1 for runner, job in started if claimed.get(runner, job) != job),
        leftover_runners=leftover,
    )


def jobs_in_progress(kubelet_log: Log) -> Mapping[str, int]:
    """Return the job that each Pod began and has not ended, by the Pod's UID."""
    return _Kubelet(kubelet_log, _GitHub(())).unfinished


def ended_unseen(github_log: Log, kubelet_log: Log) -> frozenset[str]:
    """Return the UIDs of the Pods whose runner ended unseen and whose job, according to GitHub, ended well.

    Containerd was not running when such a runner ended (`lab.node.containerd_log`), so the last lines of the runner are
    lost, among them the end of its job.
    """
    github = _GitHub(github_log)
    return frozenset(_Kubelet(kubelet_log, github).ended_unseen)


class _GitHub:
    """Events of GitHub's log, grouped by job."""

    def __init__(self, log: Log) -> None:
        self.jobs: dict[int, None] = {}
        self.waiting: set[int] = set()
        self.assigned: defaultdict[int, list[str]] = defaultdict(list)
        self.started: defaultdict[int, list[str]] = defaultdict(list)
        self.ended: defaultdict[int, list[str]] = defaultdict(list)
        self.registered: set[str] = set()
        self.persistent: set[str] = set()
        self.left: set[int] = set()
        self.counts: Counter[str] = Counter()
        for event in log:
            self._read(event)

    def problems(self, expected_failures: frozenset[int]) -> Iterable[str]:
        """Yield each problem with the jobs as a sentence."""
        for job in {**self.jobs, **dict.fromkeys(self.started), **dict.fromkeys(self.ended)}:
            yield from self._executions(job)
            yield from self._ends(job, expected=job in expected_failures)
        for runner, count in self._jobs_of_runners().items():
            if runner in self.persistent:
                continue
            if count > 1:
                yield f"runner {runner} executed {count} jobs"

    def _executions(self, job: int) -> Iterable[str]:
        runners = sorted(set(self.started[job]))
        if job not in self.jobs:
            yield f"job {job} was executed or ended but never queued"
        if len(runners) > 1:
            yield f"job {job} was executed on {len(runners)} runners: {_some(runners)}"
        for runner, times in Counter(self.started[job]).items():
            if times > 1:
                yield f"job {job} was started {times} times on runner {runner}"

    def _ends(self, job: int, *, expected: bool) -> Iterable[str]:
        ends = self.ended[job]
        if len(ends) > 1:
            yield f"job {job} ended {len(ends)} times: {_some(ends)}"
        if not ends and job not in self.waiting and job not in self.left:
            state = "running" if self.started[job] else "assigned" if self.assigned[job] else "queued"
            yield f"job {job} is still {state}"
        bad = [conclusion for conclusion in ends if conclusion not in GOOD_CONCLUSIONS]
        if bad and not expected:
            yield f"job {job} ended with {bad[0]}, and the run did not break it on purpose"

    def _jobs_of_runners(self) -> Counter[str]:
        return Counter(runner for runners in self.started.values() for runner in set(runners))

    def _read(self, event: Mapping[str, Any]) -> None:
        name = event["event"]
        self.counts[name] += 1
        # Jobs of an ended workflow run: GitHub neither runs nor completes them.
        self.left.update(event.get("jobs_left", ()))
        if name == "job_queued":
            self.jobs[event["job"]] = None
            if event.get("waiting"):
                self.waiting.add(event["job"])
        elif name == "job_approved":
            self.waiting.discard(event["job"])
        elif name == "job_assigned":
            self.assigned[event["job"]].append(event["runner"])
        elif name == "job_requeued":
            self.assigned[event["job"]].clear()
        elif name == "job_started":
            self.started[event["job"]].append(event["runner"])
        elif name == "job_completed":
            self.waiting.discard(event["job"])
            self.ended[event["job"]].append(event["conclusion"])
        else:
            self._read_runner(event)

    def _read_runner(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "runner_registered":
                self.registered.add(event["runner"])
            case "runner_persists":
                self.persistent.add(event["runner"])
            case "runner_deleted":
                self.registered.discard(event["runner"])


class _Kubelet:
    """Events of the kubelet's log, grouped by runner, job and Pod UID.

    A runner can ask to begin a job and be refused, or its Pod can end before GitHub receives the request. Such a Pod
    did not execute the job. `started`, GitHub's record of the runners that started each job, has no entry for it. Only
    the Pod of a persistent runner may execute several jobs.

    The node can lose the end of a runner. The event `end_not_seen` proves that nobody had asked containerd to stop the
    runner, but not that the job was over. `ended`, GitHub's record of the conclusions of each job, proves this: only
    the runner reports `success`, and a job whose Pod died is a `failure`.
    """

    def __init__(self, log: Log, github: _GitHub) -> None:
        self._started: Mapping[int, list[str]] = github.started
        self._ended: Mapping[int, list[str]] = github.ended
        self._persistent = github.persistent
        self._runners: defaultdict[str, set[str]] = defaultdict(set)
        self.pods_of_runner: defaultdict[str, set[str]] = defaultdict(set)
        self.pods_of_job: defaultdict[int, list[str]] = defaultdict(list)
        self.unfinished: dict[str, int] = {}
        self.cut_short: list[tuple[str, str, int]] = []
        self.ended_unseen: set[str] = set()
        self.names: dict[str, str] = {}
        for event in log:
            self._read(event)

    def problems(self, expected_failures: frozenset[int]) -> Iterable[str]:
        """Yield each problem with the Pods as a sentence."""
        yield from self._executions()
        yield from self._credentials()
        for uid, what, job in self.cut_short:
            if job not in expected_failures:
                yield f"Pod {self.names[uid]} was {what} while it executed job {job}"
        for uid, job in self.unfinished.items():
            yield f"Pod {self.names[uid]} began job {job} and did not end it"

    def _credentials(self) -> Iterable[str]:
        for runner, uids in self.pods_of_runner.items():
            if len(uids) > 1:
                yield f"the JIT of runner {runner} was used in {len(uids)} Pods: {self._pods(uids)}"
        for uid, count in Counter(uid for uids in self.pods_of_runner.values() for uid in uids).items():
            if count > 1:
                yield f"Pod {self.names[uid]} was given the JITs of {count} runners"

    def _executions(self) -> Iterable[str]:
        for job, uids in self.pods_of_job.items():
            if len(uids) > 1:
                yield f"job {job} was executed by Pods {len(uids)} times: {self._pods(uids)}"
        for uid, count in Counter(uid for uids in self.pods_of_job.values() for uid in set(uids)).items():
            if count > 1 and not self._runners[uid] & self._persistent:
                yield f"Pod {self.names[uid]} executed {count} jobs"

    def _pods(self, uids: Iterable[str]) -> str:
        return _some(self.names[uid] for uid in uids)

    def _read(self, event: Mapping[str, Any]) -> None:
        name, uid, job = event["event"], str(event.get("uid")), event.get("job")
        self.names[uid] = str(event.get("pod") or self.names.get(uid, uid))
        if name in {"jit_received", "runner_started"} and event.get("runner_name"):
            self.pods_of_runner[event["runner_name"]].add(uid)
            self._runners[uid].add(event["runner_name"])
        elif name == "job_started" and job is not None:
            self.pods_of_job[job].append(uid)
            self.unfinished[uid] = job
        elif name in {"killed", "end_not_seen", "pod_deleted"} and job is not None:
            if name == "end_not_seen" and self._ended_well(job):
                self.ended_unseen.add(uid)
            if uid not in self.ended_unseen:
                self.cut_short.append((uid, "deleted" if name == "pod_deleted" else "killed", job))
            if not self._begun(uid, job) and uid in self.pods_of_job[job]:
                self.pods_of_job[job].remove(uid)
        elif name == "job_finished" and job is not None and self._refused(event):
            self.pods_of_job[job].remove(uid)
        if name in {"killed", "end_not_seen", "pod_deleted", "job_finished", "pod_ended"}:
            self.unfinished.pop(uid, None)

    def _refused(self, end: Mapping[str, Any]) -> bool:
        uid, job = str(end.get("uid")), end["job"]
        return end.get("conclusion") == "lost" and not self._begun(uid, job) and uid in self.pods_of_job[job]

    def _ended_well(self, job: int) -> bool:
        """Return whether the job ended at GitHub, and not with a failure."""
        ends = self._ended.get(job, [])
        return bool(ends) and GOOD_CONCLUSIONS.issuperset(ends)

    def _begun(self, uid: str, job: int) -> bool:
        return bool(self._runners[uid] & set(self._started.get(job, [])))


def _some(items: Iterable[str], *, most: int = 5) -> str:
    """Return the first `most` items in sorted order, and the number of the others."""
    found = sorted(items)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
