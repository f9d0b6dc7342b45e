"""`ostler restore`: rebuilds rows that a restored Postgres lacks, then ends the freeze of the rows.

The cluster and GitHub are the evidence. Stamped Pods show which claims existed. The containers of these Pods and
GitHub's runners show which of these claims got a JIT. If the evidence about a Pod is unclear, a claim is inserted for
the Pod, and the Pod is not deleted.

After the freeze has ended, GitHub is asked about every open job without a rebuilt claim. The freeze is therefore short
even with many jobs. If GitHub does not answer about a job, the job stays held until `unresolved_jobs` gets an answer.

Every step is safe to repeat. A restore that was killed during the freeze must be run again. If a restore was killed
after the freeze, `unresolved_jobs` handles the jobs that are still held. A dry run only reads.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from k8s_adapters.cluster.epochs import write_epoch
from k8s_adapters.cluster.probe_pods import PROBE_POOL
from k8s_adapters.pools.pools import list_pools
from k8s_adapters.runners.pods import list_pods
from models.db import epochs
from models.db.engine import why_away
from models.pools import pod_rows, pool_mirror
from models.restore import restoring
from models.routing import accounts
from models.routing.accounts import default_budget
from models.state import job_holds
from models.sweeps import redelivery, unresolved
from ostler.clock import utcnow
from ostler.errors import (
    Forbidden,
    Gone,
    Invalid,
    NotInstalled,
    RateLimited,
    StoreUnreachable,
    Suspended,
    UpstreamError,
)
from ostler.reasons import meaning_of, words_of
from rules.claims.pod_view import PodView
from rules.claims.stamps import parse
from rules.pools.pool_spec import PoolSpec
from rules.restore.epochs import CLUSTER_LOST_IT
from rules.restore.restoring import Act, PodVerdict, Registered, RestoredPod, judge_pod, stem_of, stem_of_runner
from rules.routing.scopes import Scope
from rules.sweeps.unresolved import Move, Unresolved, judge_unresolved
from tasks.claims.github import ask_job
from tasks.pools.facts import problem_of
from tasks.pools.mirror_pools import mark_unusable, mirror_pool
from tasks.restore.epochs import compare, judge_only, read
from tasks.worker.base import SWEEP, SWEEP_LIST, SWEEP_ROW, Policy, calls
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

T = TypeVar("T")
Say = Callable[[str], None]
log = structlog.get_logger(__name__)

QUIET_SECONDS = 10.0
"""Wait in seconds after the start of the freeze.

Within this time, a working kubelet reports every poller that exited before the freeze.
"""

STEPS_END = 30.0
"""Longest wait in seconds for the end of the steps that began before the freeze.

This time exceeds every `LEASE` of the transition table.
"""

WAIT_SECONDS = 300.0
"""Longest total time in seconds that a restore waits for GitHub's rate limits. The remaining jobs then stay held."""

OUT_OF_REACH = (Gone, Forbidden, NotInstalled, Suspended)
"""Errors that mean that GitHub refuses to answer for a scope. A repeated call gets the same error."""

ASKED = "asked for, though the epochs do not say so"  # stored in Postgres during a restore, so it must not change

MOST_JOBS = 1000
"""Upper bound on jobs that one transaction puts on hold."""


class NotRestored(Exception):
    """The restore stopped, and frozen rows stay frozen. The message names the cause. The command can be run again."""


class NotCompared(Exception):
    """It is unknown whether Postgres was restored to an earlier state. Nothing was changed.

    The message names the cause.
    """


NAMED = 10
"""Upper bound on Pods that an error message names."""


@dataclass(frozen=True, slots=True)
class PodJudgement:
    """One Pod with its evidence and verdict. `row` is None if the pool of the Pod has no row."""

    pod: PodView
    row: restoring.RowPod | None
    evidence: RestoredPod
    verdict: PodVerdict
    account_id: int | None


@dataclass(slots=True)
class Report:
    """Result of a restore.

    `needed`: True if Postgres was restored to an earlier state, or if the caller demanded the restore (`anyway`).
    `jobs`: number of jobs for each answer of GitHub. `unasked`: scopes without an answer of GitHub. `let_go`: True
    if the freeze has ended.
    """

    needed: bool
    why: str
    judgements: list[PodJudgement] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    unasked: list[str] = field(default_factory=list)
    let_go: bool = False

    @property
    def undecided(self) -> list[PodJudgement]:
        """Return the Pods without sufficient evidence, and the Pods without a row of their pool.

        Ostler does not delete these Pods before they have ended by themselves.
        """
        return [
            judgement
            for judgement in self.judgements
            if not judgement.verdict.decided or (judgement.row is None and _matters(judgement))
        ]


def _matters(judgement: PodJudgement) -> bool:
    return judgement.verdict.act is not Act.LEAVE


def restore(rt: Runtime, *, dry: bool, anyway: bool, emptied: bool = False, say: Say) -> Report:
    """Run a restore if Postgres was restored to an earlier state, or if `anyway` is true.

    `dry`: only read. `emptied`: the operator confirms that the cluster might have lost Pods and its epoch. `say`:
    function that gets each line of progress for people.

    Raises `NotRestored` if the cluster or GitHub cannot be read, if the cluster does not match these rows, if a Pod did
    not get its claim, or if another process changes the epoch. Frozen rows then stay frozen. Raises `NotCompared` if
    the epochs could not be compared; nothing is changed then. Raises `StoreUnreachable` if Postgres stopped answering.
    """
    work = _Restore(rt, dry=dry, anyway=anyway, emptied=emptied, say=say)
    try:
        return work.run()
    except UpstreamError as error:
        raise NotRestored(str(error)) from error
    except DBAPIError as error:
        if (why := why_away(error)) is None:
            raise
        raise StoreUnreachable(f"Postgres does not answer any more ({why}). {work.left_as}") from None


class _Restore:
    """One execution of `ostler restore`."""

    def __init__(self, rt: Runtime, *, dry: bool, anyway: bool, emptied: bool, say: Say) -> None:
        self._rt = rt
        self._dry = dry
        self._anyway = anyway
        self._emptied = emptied
        self._say = say
        self._waited = 0.0
        self._report = Report(needed=False, why="")

    @property
    def left_as(self) -> str:
        """Return the message for an operator after Postgres stopped answering: which steps remain and what to do."""
        if self._report.let_go:
            return "The rows are unlocked; `unresolved_jobs` asks GitHub for the jobs that are still held."
        return "Completed steps remain. Check that Postgres answers, then run `ostler restore` again to continue."

    def run(self) -> Report:
        """Run all steps. Each step needs the results of the steps before it."""
        report = self._report
        report.needed, report.why = self._earlier_state()
        if not report.needed:
            return report
        self._say(report.why)
        if not self._dry:
            self._wait_for_steps()
        pods = self._pods()
        known = self._rt.transaction(restoring.scopes)
        runners, unasked = self._runners(known)
        report.unasked = sorted(unasked)
        by_stem: dict[str | None, list[Registered]] = defaultdict(list)
        for runner in runners:
            by_stem[stem_of_runner(runner.name)].append(runner)
        rows = self._rt.transaction(restoring.pods, [pod.uid for pod in pods])
        several = {stem for stem, count in Counter(stem_of(pod.name) for pod in pods).items() if count > 1}
        for pod in pods:
            stem = stem_of(pod.name)
            report.judgements.append(
                _judge(pod, rows.get(pod.uid), by_stem[stem], known, unasked, shared=stem in several)
            )
        if self._dry:
            report.jobs["not asked about yet"] = self._rt.transaction(restoring.open_jobs)
            return report
        self._apply_all(report.judgements)
        self._hold_jobs()
        self._end_freeze()
        report.let_go = True
        self._ask_for_jobs()
        return report

    # Read

    def _earlier_state(self) -> tuple[bool, str]:
        """Return True if a restore is needed, and the reason. If so, freeze the rows, except in a dry run."""
        rt = self._rt
        ours = rt.transaction(epochs.read, now=NOW)
        if ours.older_since is not None:
            return True, ours.why or "Postgres was restored to an earlier state"
        if not (self._dry or self._anyway):
            found = compare(rt)
            if found is None:
                why = rt.transaction(epochs.read, now=NOW).why
                raise NotCompared(why or "another process wrote the epoch at the same time")
            return found.older, found.why
        # `compare` is not called here. If it finds no problem, it trusts the rows, and the recorded start of the loss
        # would change.
        verdict = judge_only(rt)
        why = ASKED if self._anyway and not verdict.older else verdict.why
        if self._dry:
            return (verdict.older or self._anyway), why
        kept = timedelta(seconds=rt.settings.redelivery_kept)
        if not rt.transaction(redelivery.mark_older, ours.epoch, why=why, kept=kept, unsure=True, now=NOW):
            raise NotRestored("the epoch changed during the restore; run `ostler restore` again")
        return True, why

    def _wait_for_steps(self) -> None:
        """Wait until the steps that began before the freeze have ended and their effects are visible.

        The wait lasts at least `QUIET_SECONDS` after the freeze, and at most `STEPS_END` seconds.
        """
        rt = self._rt
        frozen = rt.transaction(epochs.read, now=NOW).older_since
        until = (frozen or utcnow()) + timedelta(seconds=QUIET_SECONDS)
        end = time.monotonic() + STEPS_END
        while utcnow() < until or rt.transaction(restoring.leased, now=NOW):
            if time.monotonic() > end:
                return  # this lease was restored with the rows and expires late; no process works under it
            time.sleep(0.5)

    def _pods(self) -> list[PodView]:
        """Return the Pods of the cluster. Record each Pod in a row if its pool has a row."""
        rt, namespaces = self._rt, self._rt.settings.namespaces
        pools = [pool for each in namespaces for pool in list_pools(rt.kube, namespace=each, policy=calls(SWEEP))]
        listed = [pod for each in namespaces for pod in list_pods(rt.kube, namespace=each, policy=calls(SWEEP))]
        pods = [pod for pod in listed if pod.pool != PROBE_POOL]
        if not self._emptied:
            self._check_cluster(pods)
        if not self._dry:
            self._mirror(pools)
            self._record(pods)
        return pods

    def _mirror(self, pools: Sequence[PoolSpec]) -> None:
        for pool in pools:
            problem = problem_of(self._rt, pool)
            if problem is None:
                mirror_pool(self._rt, pool)
            else:
                mark_unusable(self._rt, pool, problem=problem)

    def _record(self, pods: Sequence[PodView]) -> None:
        """Record each Pod in a row. The ids of new claims begin after the highest id in a stamp."""
        rt = self._rt
        for namespace in rt.settings.namespaces:
            for row in rt.transaction(pool_mirror.mirrored_pools, namespace=namespace):
                mine = [pod for pod in pods if (pod.namespace, pod.pool) == (namespace, row.name)]
                rt.transaction(pod_rows.record_pods, pool_id=row.id, pods=mine, now=NOW)
        highest = max((stamp.claim_id for pod in pods if (stamp := parse(pod.stamp)) is not None), default=0)
        if highest:
            rt.transaction(restoring.skip_claim_ids, highest)

    def _check_cluster(self, pods: Sequence[PodView]) -> None:
        """Raise `NotRestored` if the rows probably belong to another cluster or namespace (law L8).

        A namespace that was not listed counts as empty, because OSTLER_ELEVATED_NAMESPACE might be missing.
        """
        rt, namespace = self._rt, self._rt.settings.namespace
        sure = (
            "Check the kubeconfig, OSTLER_NAMESPACE and OSTLER_ELEVATED_NAMESPACE. If they are right and the Pods are "
            "really gone, run the command again with --emptied"
        )
        seen = {pod.namespace for pod in pods}
        for place, live in rt.transaction(restoring.live_claims).items():
            if place not in seen:
                raise NotRestored(f"no Pod was found in namespace {place}, but Postgres has {live} live claims. {sure}")
        why = self._report.why
        if why != ASKED and not why.startswith(CLUSTER_LOST_IT) and read(rt) is None:
            raise NotRestored(f"the cluster's epoch has disappeared from namespace {namespace}. {sure}")

    def _runners(self, known: Sequence[restoring.KnownScope]) -> tuple[list[Registered], set[str]]:
        """Return GitHub's runners, and the scopes without an answer of GitHub.

        The Pods of these scopes are not deleted. If GitHub answers for no scope but might answer later, the error of
        GitHub's adapter is raised. A later restore is better than a restore that leaves every Pod undecided.
        """
        found: list[Registered] = []
        unasked: set[str] = set()
        down: UpstreamError | None = None
        for each in known:
            try:
                listed = self._patiently(
                    lambda policy, each=each: self._rt.github.list_runners(  # type: ignore[misc]
                        installation_id=each.installation_id, scope=Scope.parse(each.scope), policy=calls(policy)
                    ),
                    SWEEP_LIST,
                )
            except UpstreamError as error:
                if not isinstance(error, OUT_OF_REACH):
                    down = error
                self._say(f"GitHub does not answer for {each.scope}: {meaning_of(error)}")
                unasked.add(each.scope)
                continue
            found += [
                Registered(
                    id=runner.id,
                    name=runner.name,
                    online=runner.online,
                    busy=runner.busy,
                    installation_id=each.installation_id,
                    scope=each.scope,
                )
                for runner in listed
            ]
        if down is not None and unasked >= {each.scope for each in known}:
            raise down
        return found, unasked

    # Apply

    def _apply_all(self, judgements: Sequence[PodJudgement]) -> None:
        """Apply every verdict.

        Raises `NotRestored` if a verdict could not be applied. Without its claim, the Pod of this verdict would be
        unprotected. The message names up to `NAMED` such Pods.
        """
        failed: list[str] = []
        for judgement in judgements:
            if judgement.row is None and _matters(judgement):
                failed.append(
                    f"{judgement.pod.name} (Postgres has no row of its pool {judgement.pod.pool}: create the pool "
                    "again)"
                )
                continue
            try:
                self._apply(judgement)
            except DBAPIError as error:
                if why_away(error) is not None:
                    raise
                log.exception("restore.pod_failed", pod=judgement.pod.name)
                failed.append(f"{judgement.pod.name} ({words_of(error)})")
        if failed:
            more = len(failed) - NAMED
            named = ", ".join(failed[:NAMED]) + (f" and {more} more" if more > 0 else "")
            raise NotRestored(
                f"Pods that did not get their claims: {len(failed)}. Correct the causes in parentheses, then run "
                f"`ostler restore` again: {named}"
            )

    def _apply(self, judgement: PodJudgement) -> None:
        """Apply one verdict in one transaction."""
        rt, row, pod = self._rt, judgement.row, judgement.pod
        if row is None or (judgement.verdict.act is Act.LEAVE and judgement.verdict.drops is None):
            return
        held = row.job_id if judgement.verdict.act is Act.RELEASE and judgement.verdict.drops is None else None
        budget = default_budget(rt.settings)

        def body(db: Connection) -> None:
            now = utcnow()
            if held is not None:
                restoring.hold(db, [held])
            if judgement.account_id is not None:
                accounts.ensure_account(db, judgement.account_id, budget=budget, now=now)
            written = restoring.Pod(
                uid=pod.uid,
                row_id=row.id,
                stamp=pod.stamp or "0.0",
                stamped=judgement.evidence.stamped,
                account_id=judgement.account_id,
                runners=judgement.evidence.runners,
            )
            if not restoring.apply(db, written, judgement.verdict, judgement.evidence.claim, now=now):
                raise NotRestored(
                    f"the claim of Pod {pod.name} changed during the restore, or its state does not allow the step "
                    f"{judgement.verdict.act!r}; run `ostler restore` again"
                )

        rt.transaction(body)
        log.info("restore.pod_handled", pod=pod.name, action=judgement.verdict.act, why=judgement.verdict.why)

    def _hold_jobs(self) -> None:
        """Hold every open job that has no rebuilt claim.

        Such a job might be over. The matcher must not match the job before GitHub has answered.
        """
        while self._rt.transaction(restoring.hold_open_jobs, limit=MOST_JOBS):
            pass

    def _ask_for_jobs(self) -> None:
        """Ask GitHub once about each held job. If GitHub does not answer about a job, `unresolved_jobs` asks again."""
        rt, report = self._rt, self._report
        asked: set[int] = set()
        while found := [job for job in self._next_jobs() if job.id not in asked]:
            for job in found:
                asked.add(job.id)
                try:
                    said = self._ask(job)
                except RateLimited:
                    report.jobs["left to the sweep unresolved_jobs, because GitHub's rate limit is reached"] = (
                        rt.transaction(restoring.held_jobs)
                    )
                    return
                except (UpstreamError, Invalid) as error:
                    said = f"without an answer from GitHub ({meaning_of(error)})"
                    self._later(job)
                report.jobs[said] += 1

    def _next_jobs(self) -> list[unresolved.UnresolvedJob]:
        found = self._rt.transaction(unresolved.unresolved_jobs, soon=timedelta(0), late=timedelta(days=3650), now=NOW)
        return [job for job in found if job.kind is Unresolved.UNKNOWN]

    def _ask(self, job: unresolved.UnresolvedJob) -> str:
        """Ask GitHub about one job, and change the job's state by the answer.

        Return GitHub's state of the job for the report.
        """
        rt, installation_id = self._rt, job.installation_id
        if installation_id is None:
            self._later(job)
            return "without a known installation of the App"
        told = self._patiently(
            lambda policy: ask_job(
                rt, installation_id=installation_id, repository=job.repository, job_id=job.id, policy=policy
            ),
            SWEEP_ROW,
        )
        seen, now = told.job, utcnow()
        verdict = judge_unresolved(
            kind=job.kind,
            state=job.state,
            status=None if seen is None else seen.status,
            conclusion=None if seen is None else seen.conclusion,
            run=told.run,
            started=job.runner_name is not None,
            age=now - job.ready_at,
        )
        if verdict.move is not Move.KEEP:
            rt.transaction(unresolved.apply_verdict, job, verdict, now=now, who=restoring.WHO)
        self._later(job)  # `unresolved_jobs` asks again about a job that still runs
        return "unknown to GitHub" if seen is None else seen.status

    def _later(self, job: unresolved.UnresolvedJob) -> None:
        after = utcnow() + timedelta(seconds=self._rt.timings.unresolved_after)
        self._rt.transaction(job_holds.ask_later, [job.id], ask_after=after)

    def _end_freeze(self) -> None:
        """Raise the epoch above the cluster's, write it to the cluster, then end the freeze.

        If the write fails, the freeze does not end.
        """
        rt = self._rt
        seen = read(rt)
        risen = rt.transaction(epochs.rise_above, None if seen is None else seen.epoch)
        if risen is None:
            return  # another restore has ended the freeze
        if not write_epoch(rt.kube, namespace=rt.settings.namespace, epoch=risen, seen=seen, policy=calls(SWEEP)):
            raise NotRestored(
                "another process writes the cluster's epoch; stop every other Ostler of this namespace, then "
                "run the command again"
            )
        trusted_for = timedelta(seconds=rt.timings.epoch_trusted_for)
        rt.transaction(epochs.end_freeze, risen, trusted_for=trusted_for, now=NOW)
        log.info("restore.completed", epoch=risen.number)

    def _patiently(self, call: Callable[[Policy], T], policy: Policy) -> T:
        """Repeat a call as long as GitHub's rate limit refuses the call.

        GitHub's answer sets the wait before each repetition.

        Raises `RateLimited` if all waits of this restore together would exceed `WAIT_SECONDS` seconds.
        """
        while True:
            try:
                return call(policy)
            except RateLimited as error:
                self._waited += error.after
                if self._waited > WAIT_SECONDS:
                    raise
                time.sleep(max(0.05, error.after))


def _judge(
    pod: PodView,
    row: restoring.RowPod | None,
    mine: Sequence[Registered],
    known: Sequence[restoring.KnownScope],
    unasked: set[str],
    *,
    shared: bool,
) -> PodJudgement:
    """Judge one Pod.

    `mine`: runners whose name was made from the name of this Pod. `known`: scopes in which runners were registered.
    `unasked`: scopes without an answer of GitHub. `shared`: True if these names could also have been made from the
    name of another Pod. No runner is then known to belong to this Pod.
    """
    asked = not unasked
    if pod.owner:
        scopes = {each.scope for each in known if each.account_id == pod.owner}
        asked = bool(scopes) and scopes.isdisjoint(unasked)
    stamp = parse(pod.stamp)
    evidence = RestoredPod(
        terminal=pod.is_over,
        owner=pod.owner,
        stamp_claim=0 if stamp is None else stamp.claim_id,
        poller_exit_code=pod.poller_exit_code,
        runner_ready=pod.runner_ready,
        runners=() if shared else tuple(mine),
        asked=asked and not shared,
        used=row is not None and row.used,
        claim=None if row is None else row.claim,
    )
    account = pod.owner
    if account is None and evidence.runners:
        scope = evidence.runners[0].scope
        account = next((each.account_id for each in known if each.scope == scope), None)
    return PodJudgement(pod, row, evidence, judge_pod(evidence), account)
