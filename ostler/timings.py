"""Timings of Ostler: one frozen record of periods, waits, thresholds and batch sizes that operators need not change.

Tests and chaos runs override timings with the developer variable `OSTLER_TIMINGS`, a JSON object such as
`{"sweep_every": 3, "due_after": 3}`. Neither the variable nor the names are a stable interface. Code reads
`settings.timings.<name>`; a task reads `rt.timings.<name>`.

`docs/configuration.md` lists all timings, and a test compares the list with this module. Times are in seconds.
"""

from __future__ import annotations

import ast
import inspect
import json
import threading
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field


class Timings(BaseModel):
    """Immutable record of periods, waits, thresholds and batch sizes. This class does not read the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # Periods of beat. Workers and web also use them to detect that a sweep is late.
    resume_every: float = Field(default=5, gt=0)
    """Seconds between two runs of the sweep `resume`. With larger values, lost steps are repeated later."""
    pools_every: float = Field(default=10, gt=0)
    """Seconds between two reconciles of all pools. With larger values, a pool without a wake is reconciled later."""
    autoscale_every: float = Field(default=10, gt=0)
    """Seconds between two runs of the autoscaler. The matcher also wakes it when a job of an autoscaled pool finds no
    free Pod. With larger values, pools are scaled down later.
    """
    sweep_every: float = Field(default=60, gt=0)
    """Seconds between two runs of each sweep that has no period of its own in this list. With larger values, repairs
    come later.
    """
    catch_up_every: float = Field(default=300, gt=0)
    """Seconds between two runs of the sweep `catch_up`, and first wait after GitHub refused a check of a repository.
    Each further refusal doubles this wait, up to one hour. With larger values, jobs whose webhooks were lost are found
    later.
    """
    slow_sweep_every: float = Field(default=600, gt=0)
    """Seconds between two runs of the sweeps `orphaned_runners` and `orphaned_service_accounts`. With larger values,
    leftover runners and ServiceAccounts are deleted later.
    """
    prune_every: float = Field(default=86400, gt=0)
    """Seconds between two runs of the sweep `prune`. A run that has no time for all old rows is repeated after a
    minute. With larger values, one run deletes more rows.
    """
    epoch_every: float = Field(default=10, gt=0)
    """Seconds between two comparisons of the epochs in Postgres and in the cluster. With larger values, a restored
    Postgres is detected later.
    """
    gates_every: float = Field(default=15, gt=0)
    """Seconds between two evaluations of the gates. With larger values, gates trip and recover later."""

    # Polls and deliveries
    poll_hold_min: float = Field(default=40, gt=0)
    """Shortest time in seconds that web holds a poll before it answers without a JIT; the time is random. Larger values
    cause fewer polls.
    """
    poll_hold_max: float = Field(default=55, gt=0)
    """Longest time in seconds that web holds a poll before it answers without a JIT; the time is random. Larger values
    cause fewer polls.
    """
    token_review_timeout: float = Field(default=0.3, gt=0, le=5)
    """Seconds that a delivery waits for the API server's review of the Pod's token, and then continues without it.
    Larger values delay deliveries while the API server is slow.
    """

    # The claim path
    match_batch: int = Field(default=100, ge=1, le=1000)
    """Maximum number of claims that one run of the matcher inserts. Larger values make its transaction longer."""
    due_after: float = Field(default=10, gt=0)
    """Seconds after the message of a claim's step was sent. If the step has not begun by then, `resume` sends a new
    message, unless the first message might still wait in a queue. With larger values, lost steps are repeated later.
    """
    stale_claim_after: float = Field(default=300, gt=0)
    """Seconds after the creation of a job claim. If it is not delivered by then, the sweep `stale_claims` releases it.
    Larger values give the Pod more time to poll for its JIT.
    """
    requeue_after: float = Field(default=20, gt=0)
    """Seconds during which the release of an undelivered claim retries a failed removal of the runner or of the stamp.
    The job is then queued again, unless GitHub reports that the runner is busy; if the stamp could not be removed, the
    Pod is retired. With larger values, the job waits longer.
    """
    spare_after: float = Field(default=60, gt=0)
    """Seconds that a spare waits for a job. The sweep `unused_runners` then deregisters its runner and retires its Pod.
    Larger values need fewer mints, but Pods stay idle longer.
    """
    probe_every: float = Field(default=10, gt=0)
    """Minimum number of seconds between two probes of an installation whose mints fail. With larger values, Ostler
    detects its recovery later.
    """
    reserve_after: float = Field(default=300, gt=0)
    """Seconds after the queue time of a job. If the job is then still queued, Ostler reserves budget of its
    account for it. Held jobs, and pools without offered Pods, get no reservation. With larger values, small jobs
    overtake a large job for longer.
    """

    # Stamps
    stamp_returns_after: float = Field(default=5, gt=0)
    """Seconds after a delivery to a Pod whose stamp was removed, or whose removal had begun. Ostler then stamps the Pod
    again. With larger values, the Pod is without its network policy for longer; smaller values might interrupt the
    answer to its poll.
    """
    unstamp_after: float = Field(default=15, gt=0)
    """Seconds without a poll, after the mint, after which Ostler removes the stamp of a Pod, because the stamp might
    block the polls. With larger values, the Pod waits longer for its JIT.
    """
    missing_stamp_after: float = Field(default=30, gt=0)
    """Seconds after a delivery. If the Pod then lacks the stamp of its claim, the sweep `missing_stamps` stamps the
    Pod. With larger values, the Pod is without its network policy for longer.
    """
    cut_off_after: float = Field(default=15, gt=0)
    """Seconds after a delivery. If the Pod's poller is not known to have ended by then, Ostler checks whether the stamp
    has cut off the Pod from web. With larger values, such a Pod waits longer for its JIT.
    """
    orphaned_stamp_after: float = Field(default=300, ge=0)
    """Seconds after the end of the last claim of a stamped Pod, or after the creation of a Pod without claims. The
    sweep `orphaned_stamps` then retires the Pod, unless it ever received a JIT. With larger values, the Pod is replaced
    later.
    """

    # Runners and jobs
    unused_after: float = Field(default=60, gt=0)
    """Seconds without an execution after which Ostler asks GitHub about the runner of a delivered claim. They begin
    when the poller exits 0, or `unused_polling_after` after the delivery. For a runner with an unidentified job, they
    begin with its execution. With larger values, unused runners are found later.
    """
    unused_polling_after: float = Field(default=150, gt=0)
    """Seconds after a delivery during which a Pod can still poll for its JIT. If Ostler removed the stamp because it
    cut off the Pod, Ostler stamps the Pod again after this time, or earlier if the poller ends or the Pod polls. Larger
    values give the Pod more polls.
    """
    spent_after: float = Field(default=30, gt=0)
    """Seconds that Ostler waits for the `completed` webhook after it saw that a Pod is over, but at most 5 if no job
    was seen to begin. Ostler then asks GitHub about the job. With larger values, Ostler asks less often and replaces
    the Pod later.
    """
    unresolved_after: float = Field(default=120, gt=0)
    """Seconds after the last change of a job. If the job then has the hold `ask_github`, or needs a claim and has none,
    Ostler asks GitHub about it, again and again at growing intervals. With larger values, lost jobs are found later.
    """
    unresolved_late_after: float = Field(default=3600, gt=0)
    """Seconds after which Ostler asks GitHub about a job whose state can be normal for long: `waiting`, set aside, in
    `backoff`, or running on a persistent or foreign runner. Also the longest time between two requests about one job.
    With larger values, Ostler asks less often.
    """
    finished_job_after: float = Field(default=900, ge=0)
    """Seconds after the end of a job, or of its claim. If the Pod still runs then, the sweep `finished_jobs` retires it
    as soon as two lists from GitHub show that its runner is not busy. For an unknown job, they begin with its recorded
    execution. Larger values give the last steps of a job more time.
    """
    lingering_after: float = Field(default=90, ge=0)
    """Seconds after the end of a job. If its Pod still runs then, and two lists from GitHub do not contain its runner,
    the sweep `finished_jobs` retires the Pod. With larger values, such a Pod runs longer.
    """
    orphaned_runner_after: float = Field(default=900, ge=0)
    """Seconds after the end of a claim. If GitHub then still shows its runner as offline, the sweep `orphaned_runners`
    deregisters the runner. With larger values, the runner stays registered longer.
    """
    registers_within: float = Field(default=600, ge=0)
    """Seconds after the delivery of a registration token within which a persistent runner must be online. Its Pod is
    then replaced. Values below 300 could end a Pod that still registers.
    """
    offline_runner_after: float = Field(default=600, ge=0)
    """Seconds after GitHub first shows a persistent runner as offline before the sweep `persistent_runners` replaces
    its Pod; six times as long while three or more runners, and most runners of the scope, are offline and its node is
    not gone. With larger values, runners survive longer interruptions of their network.
    """
    orphaned_account_after: float = Field(default=600, ge=0)
    """Minimum age in seconds at which the sweep `orphaned_service_accounts` deletes a ServiceAccount without a Pod.
    With larger values, the ServiceAccount exists longer.
    """

    # Webhooks
    webhook_max_bytes: int = Field(default=25 * 1024 * 1024, ge=1024)
    """Maximum size of a webhook in bytes. The default is GitHub's own limit. Larger values need more memory."""
    redelivery_again_after: float = Field(default=120, gt=0)
    """Seconds between the first two requests to GitHub to send a failed webhook again. Each further request doubles the
    time, up to OSTLER_REDELIVERY_KEPT. With larger values, Ostler asks less often.
    """
    redelivery_overlap: float = Field(default=900, gt=0)
    """Minimum number of seconds between the starts of two complete scans of GitHub's list of deliveries, and the
    overlap of two scans. Scans find deliveries that appear in the list up to this time late. Larger values make each
    scan longer.
    """
    redelivery_batch: int = Field(default=100, ge=1, le=1000)
    """Maximum number of webhooks that one run of `redelivery` asks GitHub to send again. Larger values use more of
    GitHub's rate limit at once.
    """
    catch_up_after: float = Field(default=120, gt=0)
    """Seconds after the creation of a job at GitHub. If GitHub then lists the job as queued and its webhook has not
    arrived, Ostler accepts the job without it. With larger values, the job is accepted later.
    """
    catch_up_over_after: float = Field(default=3600, gt=0)
    """Seconds that Ostler waits for the `completed` webhook of a job that GitHub lists as completed. Ostler then
    records the end without it. With larger values, the end is recorded later.
    """
    catch_up_seen_within: float = Field(default=86400, gt=0)
    """Seconds since the newest job of a repository was queued or changed. `catch_up` then skips the repository until a
    new job arrives, unless one of its jobs is not completed. With larger values, more repositories are checked.
    """
    catch_up_percent: float = Field(default=5, gt=0, le=50)
    """Maximum percentage of an installation's hourly rate limit that `catch_up` uses. Larger values leave fewer calls
    for other work.
    """
    keep_deliveries: float = Field(default=604800, gt=259200)
    """Retention of the GUID of a webhook in seconds: more than 259200, and not less than OSTLER_REDELIVERY_KEPT,
    because Ostler might otherwise request webhooks that already arrived. Larger values need more disk.
    """

    # Repairs
    repair_budget_least: int = Field(default=5, ge=1)
    """Number of objects that one run of a sweep can delete even if OSTLER_REPAIR_BUDGET_PERCENT allows fewer; six times
    as many in `orphaned_stamps` for Pods about which Postgres and Kubernetes agree. Larger values repair more at once
    in a small fleet.
    """
    repair_settle_after: float = Field(default=600, gt=0)
    """Seconds after a repair. If its effect has not appeared by then, the repair is marked as failed. With larger
    values, a failed repair is reported later.
    """
    keep_repairs: float = Field(default=7776000, gt=0)
    """Retention in seconds of repairs with a known result, and changes of accounts, gates, jobs, pools, sweeps and
    tokens. Larger values need more disk.
    """

    # The epoch, which reveals that Postgres was restored from a backup
    epoch_trusted_for: float = Field(default=60, gt=0)
    """Seconds after the last successful comparison of the epochs during which Ostler can release delivered claims and
    retire Pods. With larger values, it does so for longer while it cannot reach the cluster.
    """

    # Gates
    gate_window: float = Field(default=60, gt=0)
    """Maximum age in seconds of the calls that count in the evaluations of a gate. With larger values, gates trip and
    recover later.
    """
    gate_least_errors: int = Field(default=5, ge=1)
    """Minimum number of failed calls within `gate_window` for a gate to trip. With larger values, the gate of an
    upstream with few calls trips later.
    """
    gate_closes_at: float = Field(default=0.5, ge=0.5, le=1)
    """Fraction of failed calls within `gate_window`, from 0.5 to 1, at which a gate trips. With larger values, a gate
    trips only after more failures.
    """
    gate_opens_at: float = Field(default=0.2, ge=0, lt=0.5)
    """Maximum fraction of failed calls, below 0.5, in a healthy evaluation of a tripped gate. With larger values, gates
    recover earlier.
    """
    gate_healthy_checks: int = Field(default=4, ge=1)
    """Minimum number of consecutive healthy evaluations after which a gate recovers. An evaluation without calls is not
    counted. With larger values, gates recover later.
    """
    gate_extra_checks: int = Field(default=4, ge=0)
    """Maximum number of additional healthy evaluations before a gate recovers. The number is random, so that the gates
    of several deployments do not recover at once. Larger values spread the recoveries.
    """

    # The watch
    watch_lease: float = Field(default=10, ge=2, le=300)
    """Seconds without a renewal of the Lease after which a standby of the watch takes over. With larger values, the
    takeover comes later.
    """
    watch_timeout: int = Field(default=30, ge=2, le=3600)
    """Longest lifetime of one watch connection in seconds; the shortest is three quarters of it. The watch closes a
    connection without data 5 seconds after its lifetime. With larger values, a dead connection is detected later.
    """
    watch_executing_after: float = Field(default=5, ge=0)
    """Seconds that the watch waits after a runner began a job before it reports the start. The webhook of the job
    usually arrives first, and the report then needs no check of the Pod. With larger values, Ostler checks fewer Pods.
    """


_PARSING = threading.Lock()
"""Python 3.11 counts the depth of all parsers together, so two threads that parse at once can get a SystemError."""


def help_of(kind: type[BaseModel], name: str) -> str:
    """Return the help of a setting or timing: the docstring of its field, as one line without the last full stop.

    Only error messages and tests need it. pydantic could read the docstrings, but at each start of each process.
    """
    owner = next(each for each in kind.__mro__ if name in inspect.get_annotations(each))
    with _PARSING:
        [definition] = ast.parse(inspect.getsource(owner)).body
    for field, text in pairwise(cast("ast.ClassDef", definition).body):
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name:
            return " ".join(ast.literal_eval(cast("ast.Expr", text).value).split()).removesuffix(".")
    raise KeyError(name)


def overrides(value: Any) -> Any:
    """Return the overrides that the text of `OSTLER_TIMINGS` contains. A value that is not text is returned unchanged.

    An empty text means no overrides. `Timings` validates names and values. Raises ValueError if the text is not a JSON
    object.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        found = json.loads(value or "{}")
        if isinstance(found, dict):
            return found
    raise ValueError('must be a JSON object, for example {"sweep_every": 3}')
