"""The family of sweeps. One entry per sweep: how a test stalls a row, checks the repair, and interrupts it.

The entry of a sweep in `FAMILY` also says which failures concern the sweep, and why the others do not. `test_family`
has one test per failure. `test_frame` tests missing data of a webhook, a killed process, and an error at one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from celery import Task

from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from github_adapters.endpoints.runners import RunnerSeen
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.names import CLAIM_ANNOTATION, OWNER_LABEL
from ostler.clock import utcnow
from ostler.errors import Conflict
from tasks.sweeps.catch_up import catch_up
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.gates import gates
from tasks.sweeps.gone_nodes import gone_nodes
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.missing_stamps import missing_stamps
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tasks.sweeps.orphaned_stamps import orphaned_stamps
from tasks.sweeps.persistent_runners import persistent_runners
from tasks.sweeps.prune import prune
from tasks.sweeps.redelivery import redelivery
from tasks.sweeps.rematch import rematch
from tasks.sweeps.resume import resume
from tasks.sweeps.stale_claims import stale_claims
from tasks.sweeps.unidentified_executions import unidentified_executions
from tasks.sweeps.unresolved_jobs import unresolved_jobs
from tasks.sweeps.unresponsive_pods import unresponsive_pods
from tasks.sweeps.unused_runners import unused_runners
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.listing import job

JSON_MERGE = "application/merge-patch+json"


@dataclass
class GitHub(StubGitHub):
    """A GitHub that also lists deliveries. Its lists can be empty, and its answers can wait for other events."""

    shows_nothing: bool = False
    breaks_off: bool = False
    meanwhile: Callable[[], object] | None = None
    """Called once, before GitHub answers for the first time."""
    calls: int = 0
    attempts: list[DeliverySeen] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def _answer(self) -> None:
        self.calls += 1
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
        StubGitHub._answer(self)

    def list_runners(self, **given: Any) -> list[RunnerSeen]:
        found = StubGitHub.list_runners(self, **given)
        return [] if self.shows_nothing else found

    def list_deliveries(self, *, cursor: str | None = None, **_: Any) -> DeliveryPage:
        self._answer()
        if cursor is not None:  # after a page that came
            self.broken = True
            self._answer()
        seen = () if self.shows_nothing else tuple(self.attempts)
        return DeliveryPage(deliveries=seen, next_cursor="2" if self.breaks_off else None, malformed=0)

    def probe(self, **_: Any) -> None:  # of a gate that another tick has tripped
        self._answer()

    def redeliver(self, *, delivery_id: int, **_: Any) -> None:
        self.asked.append(delivery_id)


Between = Callable[[Stage], object]


@dataclass(frozen=True)
class No:
    """A failure that does not concern a sweep, with the reason."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One sweep and its failures. A failure that does not concern the sweep is an explicit `No`.

    - `stall` creates the work to repair, and `repaired` counts the repairs.
    - `reads`: the list that the sweep begins with. `of_a_part`: the repairs after a list that breaks off after a page.
      If absence from a list means nothing, presence does.
    - `asks`: the sweep asks GitHub about its row. `gets`: it checks its Pod by a GET.
    - `moves`: changes of the row between verdict and action. `remapped`: GitHub gave the job to another runner during
      the question. `late`: an event between the list and the rows that prevents the repair.
    - `namesake`: the number of repairs if another Pod has the name of the stalled one.
    - `kills`, `writes` (an entry in the ledger), `repeats` (each tick repairs again until the effect is seen).
    """

    task: Task
    stall: Callable[[Stage, GitHub], object]
    repaired: Callable[[Stage, GitHub], int]
    reads: str | No
    of_a_part: int = 0
    asks: bool | No
    gets: bool | No
    moves: tuple[Between, ...] | No
    remapped: Between | No
    late: Between | No
    late_strands: bool = True
    """True if something was stalled before `late`. The sweep must not repair it."""
    namesake: int | No
    kills: bool | No
    writes: bool | No = True
    repeats: bool = False

    @property
    def name(self) -> str:
        return str(self.task.name).removeprefix("ostler.")


def pod_of(stage: Stage) -> str:
    return min(stage.pods())


# What is stalled


def never_delivered(stage: Stage, _github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="minted", age=400)


def lost_runner(stage: Stage, github: GitHub) -> None:
    offline_runner(stage, github)
    stage.rows(
        """
        UPDATE claims SET purpose = 'register', job_id = NULL, spare_since = NULL, runner_seen = 'offline',
               runner_seen_at = now() - interval '700 s', online_at = now() - interval '1 hour'
        """
    )


def offline_runner(stage: Stage, github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="delivered", age=90, runner=RUNNER)
    github.runner = "offline"


def vanished_pod(stage: Stage, _github: GitHub) -> None:
    stage.job(7, state="running")
    pod = pod_of(stage)
    stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    delete_pod(stage, pod)


def unstamped_pod(stage: Stage, _github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="delivered", age=60)


def unasked_job(stage: Stage, _github: GitHub) -> None:
    stage.job(7, state="running")
    stage.rows("UPDATE jobs SET hold_reason = 'ask_github', changed_at = now() - interval '1 h'")


def overdue_claim(stage: Stage, _github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="releasing")
    stage.rows("UPDATE claims SET due_at = now() - interval '1 s'")


def held_job(stage: Stage, _github: GitHub) -> None:
    stage.job(7, state="queued")
    stage.rows("UPDATE jobs SET hold_reason = 'no_pool', pool_id = NULL, labels = '{self-hosted,small}'")


def unnamed_execution(stage: Stage, github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="executing", age=100, runner=RUNNER)
    github.job = ("in_progress", None, RUNNER)


def pod_that_outlives_its_job(stage: Stage, github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="executing", age=4000, runner=RUNNER)
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() - interval '1 h'")
    stage.rows("UPDATE claims SET runner_idle_at = now() - interval '61 s'")
    github.runner = "online"


def stamped_pod(stage: Stage, _github: GitHub) -> None:
    body = {"metadata": {"labels": {OWNER_LABEL: "1"}}}
    stage.kube.request("PATCH", pod_path(stage, pod_of(stage)), body=body, content_type=JSON_MERGE)
    stage.with_settings(orphaned_stamp_after=0)
    stage.job(999)  # its account


def failed_poller(stage: Stage, _github: GitHub) -> None:
    stage.finish(pod_of(stage), phase="Running", poller=1, runner=None)
    stage.rows("UPDATE runner_pods SET first_polled_at = created_at")
    stage.job(999)  # its account


def gone_node_of(stage: Stage) -> str:
    """Return the name of the only node that the tests of the family see."""
    return f"{stage.namespace}-gone"


def pod_on_a_gone_node(stage: Stage, _github: GitHub) -> None:
    pod, node = pod_of(stage), gone_node_of(stage)
    with suppress(Conflict):
        stage.kube.request("POST", "/api/v1/nodes", body={"metadata": {"name": node}})
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    stage.kube.request("POST", f"{pod_path(stage, pod)}/binding", body=binding)
    stage.rows("UPDATE runner_pods SET node_gone_at = now() WHERE name = :name", name=pod)
    stage.job(999)  # its account


def left_runner(stage: Stage, github: GitHub) -> None:
    stage.job(7)
    stage.claim(pod_of(stage), job_id=7, state="minted", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'released', ended_at = now() - interval '1 h'")
    github.runner = "offline"


def left_account(stage: Stage, _github: GitHub) -> None:
    pod = pod_of(stage)
    delete_pod(stage, pod)
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE name = :name", name=pod)
    stage.with_settings(orphaned_account_after=0)


def lost_webhook(stage: Stage, github: GitHub) -> None:
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now(), now() + interval '1 h'")
    github.attempts.append(
        DeliverySeen(
            id=5,
            guid="a",
            delivered_at=utcnow() - timedelta(seconds=10),
            accepted=False,
            event="workflow_job",
            action="queued",
        )
    )


def old_delivery(stage: Stage, _github: GitHub) -> None:
    stage.rows("INSERT INTO deliveries VALUES ('a', 'workflow_job', 'queued', 1, 'accepted', now() - interval '8 d')")


def untold_job(stage: Stage, github: GitHub) -> None:
    stage.job(1, state="completed")
    github.listing.run(job(7))


def failing_upstream(stage: Stage, _github: GitHub) -> None:
    stage.rows("INSERT INTO upstream_calls VALUES ('github', now(), 20, 20)")


# How one sees that it was repaired


def sent(name: str) -> Callable[[Stage, GitHub], int]:
    return lambda stage, _: sum(message == name for message, _ in stage.outbox.sent)


def counted(statement: str) -> Callable[[Stage, GitHub], int]:
    return lambda stage, _: len(stage.rows(statement))


RELEASING = counted("SELECT 1 FROM claims WHERE state = 'releasing'")
RETIRING = counted("SELECT 1 FROM claims WHERE purpose = 'retire' AND ended_at IS NULL")
REQUEUED = counted("SELECT 1 FROM jobs WHERE state = 'queued' AND hold_reason IS NULL")


def accounts_gone(stage: Stage, _github: GitHub) -> int:
    pages = metadata_pages(stage.kube, "serviceaccounts", namespace=stage.namespace, selector=OF_POOLS)
    return 3 - sum(len(page) for page in pages)


# What comes between


def row(statement: str) -> Between:
    return lambda stage: stage.rows(statement)


ENDED = row("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed', due_at = NULL")


DELIVERED = row("UPDATE claims SET state = 'delivered', delivered_at = now()")
EXECUTES = row("UPDATE claims SET state = 'executing'")
OVER_JUST_NOW = row("UPDATE claims SET ended_at = now()")
BOUND = row(
    """
    INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
    SELECT job_id, runner_name, id, account_id, vcpu, memory, now() FROM claims
    """
)
TOLD = row(
    """
    INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels, state,
                      queued_at, changed_at)
    SELECT 7, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels, 'completed', now(),
           now() FROM jobs WHERE id = 1
    """
)


def claimed(stage: Stage) -> None:
    """The matcher claimed the Pod."""
    stage.claim(pod_of(stage), job_id=None, state="claimed")


def stamped(stage: Stage) -> None:
    """The stamp in progress succeeded."""
    (claim,) = stage.rows("SELECT id FROM claims")
    body = {"metadata": {"labels": {OWNER_LABEL: "1"}, "annotations": {CLAIM_ANNOTATION: f"{claim.id}.1"}}}
    stage.kube.request("PATCH", pod_path(stage, pod_of(stage)), body=body, content_type=JSON_MERGE)


def claimed_elsewhere(stage: Stage) -> None:
    """The matcher claimed another Pod for the job."""
    stage.rows("UPDATE jobs SET state = 'claimed', hold_reason = NULL")
    stage.claim(pod_of(stage), job_id=7, state="claimed")


def claimed_and_let_go(stage: Stage) -> None:
    """The matcher claimed the Pod, and the claim was released at once."""
    claimed(stage)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'released', ended_at = now(), due_at = NULL")


def wanted(stage: Stage) -> None:
    """A reconciler is about to create the Pod."""
    stage.rows("UPDATE runner_pods SET gone_at = NULL, uid = NULL WHERE gone_at IS NOT NULL")


def runs_another(stage: Stage) -> None:
    """GitHub gave job 8 to the runner. The job of the claim is queued again."""
    stage.job(8, state="running")
    stage.rows("UPDATE claims SET job_id = 8, state = 'executing'")
    stage.rows("UPDATE jobs SET state = 'queued', hold_reason = NULL WHERE id = 7 AND state <> 'completed'")


def runs_elsewhere(stage: Stage) -> None:
    """Job 7 was given to another runner, and ended there."""
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', hold_reason = NULL, changed_at = now()")


def another_pod_with_a_claim(stage: Stage) -> None:
    """A Pod was created, claimed and given its JIT, all after the list."""
    create_pod(stage, "small-late0001")
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT min(id), :namespace, 'small-late0001', :uid, 'a', 'h', now() FROM pools
        """,
        namespace=stage.namespace,
        uid=stage.pods()["small-late0001"].uid,
    )
    stage.job(8)
    stage.claim("small-late0001", job_id=8, state="delivered", age=60)


# The cluster


def pod_path(stage: Stage, pod: str) -> str:
    return f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"


def delete_pod(stage: Stage, pod: str) -> None:
    stage.kube.request("DELETE", pod_path(stage, pod), body={"gracePeriodSeconds": 0})


def create_pod(stage: Stage, name: str, **labels: str) -> None:
    """Create a Pod of the pool without a reconciler."""
    account = min(found for page in accounts_of(stage) for found in page)
    body = {
        "metadata": {"name": name, "labels": {"ostler.dev/pool": "small", **labels}},
        "spec": {"serviceAccountName": account, "containers": [{"name": "runner", "image": "runner:1"}]},
    }
    stage.kube.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods", body=body)


def accounts_of(stage: Stage) -> Iterator[list[str]]:
    for page in metadata_pages(stage.kube, "serviceaccounts", namespace=stage.namespace, selector=OF_POOLS):
        yield [account.name for account in page]


ONE_STATEMENT = No("one statement finds the rows and moves them")
OWN_ROWS = No("it begins with our rows, and no list is older than they are")
ROWS_FIRST = No("its rows come before the list: what is later is what moved")
NO_LIST = No("it begins with our rows")
NO_GITHUB = No("it asks GitHub for nothing")
NO_POD = No("it checks no Pod")
NO_NAME = No("it finds no Pod by its name")
NOTHING_ENDS = No("nothing that may run ends by it")

FAMILY = (
    Member(
        task=stale_claims,
        stall=never_delivered,
        repaired=RELEASING,
        reads=NO_LIST,
        asks=NO_GITHUB,
        gets=NO_POD,
        moves=(ENDED, DELIVERED),
        remapped=NO_GITHUB,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=unused_runners,
        stall=offline_runner,
        repaired=RELEASING,
        reads="runners",
        asks=True,
        gets=NO_POD,
        moves=(ENDED, EXECUTES),
        remapped=runs_another,
        late=ROWS_FIRST,
        namesake=NO_NAME,
        kills=True,
    ),
    Member(
        task=persistent_runners,
        stall=lost_runner,
        repaired=RELEASING,
        reads="runners",
        asks=No("the list of runners says enough"),
        gets=NO_POD,
        moves=(ENDED,),
        remapped=No("its claim has no job"),
        late=ROWS_FIRST,
        namesake=NO_NAME,
        kills=True,
    ),
    Member(
        task=missing_pods,
        stall=vanished_pod,
        repaired=counted("SELECT 1 FROM claims WHERE end_reason = 'pod_gone'"),
        reads="Pods",
        asks=True,
        gets=True,
        moves=(ENDED,),
        remapped=runs_another,
        late=another_pod_with_a_claim,
        late_strands=False,
        namesake=1,
        kills=No("what ran in a Pod that is gone is over"),
    ),
    Member(
        task=missing_stamps,
        stall=unstamped_pod,
        repaired=sent("ostler.stamp"),
        reads="Pods",
        asks=NO_GITHUB,
        gets=True,
        moves=(ENDED,),
        remapped=NO_GITHUB,
        late=stamped,
        namesake=0,
        kills=NOTHING_ENDS,
        repeats=True,
    ),
    Member(
        task=unresolved_jobs,
        stall=unasked_job,
        repaired=REQUEUED,
        reads=NO_LIST,
        asks=True,
        gets=NO_POD,
        moves=(runs_elsewhere, claimed_elsewhere),
        remapped=runs_elsewhere,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=resume,
        stall=overdue_claim,
        repaired=sent("ostler.release"),
        reads=NO_LIST,
        asks=NO_GITHUB,
        gets=NO_POD,
        moves=ONE_STATEMENT,
        remapped=NO_GITHUB,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=rematch,
        stall=held_job,
        repaired=REQUEUED,
        reads=NO_LIST,
        asks=NO_GITHUB,
        gets=NO_POD,
        moves=ONE_STATEMENT,
        remapped=NO_GITHUB,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=catch_up,
        stall=untold_job,
        repaired=REQUEUED,
        reads="runs",
        asks=True,
        gets=NO_POD,
        moves=(TOLD,),
        remapped=No("where its job runs is told by the webhook that it then finds"),
        late=No("the transaction that takes a job in reads its row anew"),
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=unidentified_executions,
        stall=unnamed_execution,
        repaired=counted("SELECT 1 FROM executions"),
        reads=NO_LIST,
        asks=True,
        gets=NO_POD,
        moves=(ENDED, runs_another),
        remapped=runs_another,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=finished_jobs,
        stall=pod_that_outlives_its_job,
        repaired=RETIRING,
        reads="runners",
        asks=True,
        gets=True,
        moves=(ENDED, runs_another),
        remapped=runs_another,
        late=ROWS_FIRST,
        namesake=0,
        kills=True,
    ),
    Member(
        task=orphaned_stamps,
        stall=stamped_pod,
        repaired=RETIRING,
        reads="pods by pages",
        of_a_part=1,
        asks=NO_GITHUB,
        gets=True,
        moves=(claimed, claimed_and_let_go),
        remapped=NO_GITHUB,
        late=claimed,
        namesake=0,
        kills=True,
    ),
    Member(
        task=unresponsive_pods,
        stall=failed_poller,
        repaired=RETIRING,
        reads="Pods",
        asks=NO_GITHUB,
        gets=True,
        moves=(claimed, claimed_and_let_go),
        remapped=NO_GITHUB,
        late=claimed,
        namesake=0,
        kills=True,
    ),
    Member(
        task=gone_nodes,
        stall=pod_on_a_gone_node,
        repaired=RETIRING,
        reads="Pods",
        asks=NO_GITHUB,
        gets=True,
        moves=(claimed,),
        remapped=NO_GITHUB,
        late=claimed,
        namesake=0,
        kills=True,
    ),
    Member(
        task=orphaned_runners,
        stall=left_runner,
        repaired=lambda _, github: len(github.deleted),
        reads="runners",
        asks=True,
        gets=NO_POD,
        moves=No("a claim that has ended stays ended"),
        remapped=No("it asks for no job; a runner that took one is refused"),
        late=OVER_JUST_NOW,
        namesake=NO_NAME,
        kills=True,
    ),
    Member(
        task=orphaned_service_accounts,
        stall=left_account,
        repaired=accounts_gone,
        reads="accounts by pages",
        of_a_part=1,
        asks=NO_GITHUB,
        gets=True,
        moves=(wanted,),
        remapped=NO_GITHUB,
        late=wanted,
        namesake=0,
        kills=True,
    ),
    Member(
        task=redelivery,
        stall=lost_webhook,
        repaired=lambda _, github: len(github.asked),
        reads="deliveries",
        of_a_part=1,
        asks=True,
        gets=NO_POD,
        moves=(row("INSERT INTO deliveries VALUES ('a', 'workflow_job', 'queued', 1, 'accepted', now())"),),
        remapped=No("it asks for no job"),
        late=No("the transaction before an ask reads what was accepted"),
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=prune,
        stall=old_delivery,
        repaired=lambda stage, _: 1 - len(stage.rows("SELECT FROM deliveries")),
        reads=NO_LIST,
        asks=NO_GITHUB,
        gets=NO_POD,
        moves=ONE_STATEMENT,
        remapped=NO_GITHUB,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
    ),
    Member(
        task=gates,
        stall=failing_upstream,
        repaired=counted("SELECT 1 FROM gates WHERE closed_at IS NOT NULL"),
        reads=NO_LIST,
        asks=No("an upstream that does not answer is what it is for"),
        gets=NO_POD,
        moves=ONE_STATEMENT,
        remapped=NO_GITHUB,
        late=OWN_ROWS,
        namesake=NO_NAME,
        kills=NOTHING_ENDS,
        writes=No("it repairs nothing: its own rows say when a gate tripped and why"),
    ),
)
