"""Timings of Ostler: one frozen record of periods, waits, thresholds and batch sizes that operators need not change.

Tests and chaos runs override timings with the developer variable `OSTLER_TIMINGS`, a JSON object such as
`{"sweep_every": 3, "due_after": 3}`. Neither the variable nor the names are a stable interface. Code reads
`settings.timings.<name>`; a task reads `rt.timings.<name>`.

`docs/configuration.md` lists all timings, and a test compares the list with this module. Times are in seconds.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Timings(BaseModel):
    """Immutable record of periods, waits, thresholds and batch sizes. This class does not read the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # Periods of beat. Workers and web also use them to detect that a sweep is late.
    resume_every: float = Field(
        default=5,
        gt=0,
        description="How often the sweep `resume` runs, in seconds. With larger values, lost steps are repeated later",
    )
    pools_every: float = Field(
        default=10,
        gt=0,
        description=(
            "How often all pools are reconciled, in seconds. With larger values, a pool without a wake is "
            "reconciled later"
        ),
    )
    autoscale_every: float = Field(
        default=10,
        gt=0,
        description=(
            "How often the autoscaler runs, in seconds. The matcher also wakes the autoscaler when a job of an "
            "autoscaled pool finds no free Pod. With larger values, pools are scaled down later"
        ),
    )
    sweep_every: float = Field(
        default=60,
        gt=0,
        description=(
            "How often each sweep runs that has no period of its own in this list, in seconds. With larger values, "
            "repairs come later"
        ),
    )
    catch_up_every: float = Field(
        default=300,
        gt=0,
        description=(
            "How often the sweep `catch_up` runs, in seconds. After GitHub refused a check of a repository, the sweep "
            "skips the repository for this time. Each further refusal doubles the time, up to one hour. With larger "
            "values, jobs whose webhooks were lost are found later"
        ),
    )
    slow_sweep_every: float = Field(
        default=600,
        gt=0,
        description=(
            "How often the sweeps `orphaned_runners` and `orphaned_service_accounts` run, in seconds. With larger "
            "values, leftover runners and ServiceAccounts are deleted later"
        ),
    )
    prune_every: float = Field(
        default=86400,
        gt=0,
        description=(
            "How often the sweep `prune` runs, in seconds. If a run has no time for all old rows, the sweep runs again "
            "after a minute. With larger values, one run deletes more rows"
        ),
    )
    epoch_every: float = Field(
        default=10,
        gt=0,
        description=(
            "How often the epoch in Postgres is compared with the epoch in the cluster, in seconds. With larger "
            "values, a restored Postgres is detected later"
        ),
    )
    gates_every: float = Field(
        default=15,
        gt=0,
        description="How often the gates are evaluated, in seconds. With larger values, gates trip and recover later",
    )

    # Polls and deliveries
    poll_hold_min: float = Field(
        default=40,
        gt=0,
        description=(
            "Lower bound of the random time that web waits for a JIT before it answers a poll without a JIT, in "
            "seconds. The time begins when web has checked the token of the poll. Larger values cause fewer polls"
        ),
    )
    poll_hold_max: float = Field(
        default=55,
        gt=0,
        description=(
            "Upper bound of the random time that web waits for a JIT before it answers a poll without a JIT, in "
            "seconds. The time begins when web has checked the token of the poll. Larger values cause fewer polls"
        ),
    )
    token_review_timeout: float = Field(
        default=0.3,
        gt=0,
        le=5,
        description=(
            "How long a delivery waits until the API server has reviewed the token of the Pod, in seconds. After this "
            "time, the delivery continues without the review. Larger values delay deliveries while the API server is "
            "slow"
        ),
    )

    # The claim path
    match_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of claims that one run of the matcher inserts. Larger values make the transaction of "
            "the run longer"
        ),
    )
    due_after: float = Field(
        default=10,
        gt=0,
        description=(
            "Time after Ostler sent the message of a claim's step, in seconds. If the step has not begun by then, "
            "`resume` sends a new message, unless the first message might still wait in a queue. With larger values, "
            "lost steps are repeated later"
        ),
    )
    stale_claim_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Time after the creation of a job claim, in seconds. If the claim is not delivered by then, the sweep "
            "`stale_claims` releases the claim. Larger values give the Pod more time to poll for its JIT"
        ),
    )
    requeue_after: float = Field(
        default=20,
        gt=0,
        description=(
            "Time after the beginning of the release of an undelivered claim, in seconds. During this time, Ostler "
            "retries a failed removal of the runner or of the stamp. After this time, Ostler ends the claim and queues "
            "the job again, unless GitHub reports that the runner is busy. If the stamp could not be removed, Ostler "
            "retires the Pod. With larger values, the job waits longer"
        ),
    )
    spare_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Time after a claim became a spare, in seconds. If the spare has not got a job by then, the sweep "
            "`unused_runners` deregisters its runner and retires its Pod. Larger values need fewer mints, but Pods "
            "stay idle longer"
        ),
    )
    probe_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Minimum time between two probes of an installation whose mints fail, in seconds. A probe is an attempt to "
            "mint for one held job. With larger values, Ostler detects the recovery of the installation later"
        ),
    )
    reserve_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Time after a job was queued, in seconds. If the job is then still queued and not held, and Pods of its "
            "pool are offered, Ostler reserves budget of the account for the job. With larger values, small jobs "
            "overtake a large job for longer"
        ),
    )

    # Stamps
    stamp_returns_after: float = Field(
        default=5,
        gt=0,
        description=(
            "Time after a delivery, in seconds. If the stamp of the Pod was removed before the delivery, or its "
            "removal had begun, Ostler then puts the stamp on the Pod again. With larger values, the Pod is without "
            "its network policy for longer. Smaller values might interrupt the answer to the poll of the Pod"
        ),
    )
    unstamp_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Time without a poll after which Ostler removes the stamp of a Pod whose JIT is minted, in seconds. The "
            "time begins at the mint, or when the Pod's last offer expires, whichever is later. The stamp might block "
            "the polls. With larger values, the Pod waits longer for its JIT"
        ),
    )
    missing_stamp_after: float = Field(
        default=30,
        gt=0,
        description=(
            "Time after a delivery, in seconds. If the Pod then lacks the stamp of its claim, the sweep "
            "`missing_stamps` stamps the Pod. With larger values, the Pod is without its network policy for longer"
        ),
    )
    cut_off_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Time after a delivery, in seconds. If the end of the Pod's poller is not recorded by then, Ostler checks "
            "whether the stamp has cut the connection of the Pod to web. With larger values, a Pod that is cut off "
            "waits longer for its JIT"
        ),
    )
    orphaned_stamp_after: float = Field(
        default=300,
        ge=0,
        description=(
            "Time after the end of the last claim of a stamped Pod, in seconds. If the Pod never had a claim, the time "
            "begins at the creation of the Pod. After this time, the sweep `orphaned_stamps` retires the Pod, unless "
            "the Pod ever received a JIT. With larger values, such a Pod is replaced later"
        ),
    )

    # Runners and jobs
    unused_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Time without an execution after which Ostler asks GitHub about the runner of a delivered claim, in "
            "seconds. The time begins when the poller of the Pod ends. While the poller still runs, the time begins "
            "`unused_polling_after` seconds after the delivery. If the runner executes an unidentified job, Ostler "
            "asks about the claim's job this many seconds after the start of the execution. With larger values, unused "
            "runners are found later"
        ),
    )
    unused_polling_after: float = Field(
        default=150,
        gt=0,
        description=(
            "Time after a delivery during which a Pod can still poll for its JIT, in seconds. If the poller still "
            "runs, the time `unused_after` begins when this time ends. If Ostler removed the stamp because it cut off "
            "the Pod's connection, Ostler does not put the stamp back during this time, unless the poller ends or the "
            "Pod polls again. Larger values give the Pod more polls"
        ),
    )
    spent_after: float = Field(
        default=30,
        gt=0,
        description=(
            "How long Ostler waits for the `completed` webhook after it first saw that a Pod is over, in seconds. "
            "Ostler then asks GitHub about the job. With larger values, Ostler asks less often and replaces the Pod "
            "later. If no job of the Pod was seen to begin, Ostler waits at most 5 seconds"
        ),
    )
    unresolved_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Time after the last change of a job, in seconds. If the job then has the hold `ask_github`, or is in a "
            "state that needs a claim without having one, Ostler asks GitHub about the job. The wait before the next "
            "request is half the time since the last change of the job, with a minimum of `unresolved_after` and a "
            "maximum of `unresolved_late_after`. With larger values, lost jobs are found later"
        ),
    )
    unresolved_late_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Time after which Ostler asks GitHub about a job whose state can be normal for long, in seconds. For a job "
            "in the state `waiting`, and for a job on a persistent runner or on a runner that Ostler did not register, "
            "the time begins at the last change of the job. For a job with the hold `set_aside` or `backoff`, the time "
            "begins when the job was queued. This time is also the longest time between two requests about one job. "
            "With larger values, Ostler asks less often"
        ),
    )
    finished_job_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Time after the end of a job, in seconds. If the Pod of the job still runs then, the sweep `finished_jobs` "
            "retires the Pod as soon as two lists from GitHub show that its runner is not busy. If the claim of the "
            "Pod ended for another reason, the time begins at the end of the claim. If the runner executes an unknown "
            "job, the time begins when Ostler recorded this execution. Larger values give the last steps of a job more "
            "time"
        ),
    )
    lingering_after: float = Field(
        default=90,
        ge=0,
        description=(
            "Time after the end of a job, in seconds. If the Pod of the job still runs then, and two lists from GitHub "
            "after the end of the job do not contain its runner, the sweep `finished_jobs` retires the Pod. With "
            "larger values, such a Pod runs longer"
        ),
    )
    orphaned_runner_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Time after the end of a claim, in seconds. If GitHub then still lists the claim's runner and shows it as "
            "offline, the sweep `orphaned_runners` deregisters the runner. With larger values, the runner stays "
            "registered longer"
        ),
    )
    registers_within: float = Field(
        default=600,
        ge=0,
        description=(
            "Time after the delivery of a registration token within which a persistent runner must be online, "
            "in seconds. After this time its Pod is replaced. The script in the Pod stops its attempts to "
            "register after 300 seconds, so a smaller value could end a Pod whose runner is about to register"
        ),
    )
    offline_runner_after: float = Field(
        default=600,
        ge=0,
        description=(
            "How long GitHub must show a persistent runner as offline before the sweep `persistent_runners` replaces "
            "its Pod, in seconds. While three or more runners, and more than half of the runners in the organisation "
            "or repository, are offline, the sweep waits six times as long, unless the node of the runner is gone. "
            "With larger values, runners survive longer interruptions of their network"
        ),
    )
    orphaned_account_after: float = Field(
        default=600,
        ge=0,
        description=(
            "Minimum age at which the sweep `orphaned_service_accounts` deletes a ServiceAccount without a Pod, in "
            "seconds. With larger values, the ServiceAccount exists longer"
        ),
    )

    # Webhooks
    webhook_max_bytes: int = Field(
        default=25 * 1024 * 1024,
        ge=1024,
        description=(
            "Maximum size of a webhook in bytes. The default is GitHub's own limit. Web refuses a larger webhook "
            "while it reads the body. Larger values need more memory"
        ),
    )
    redelivery_again_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Time between the first two requests to GitHub to send a failed webhook again, in seconds. Each further "
            "request doubles the time, up to OSTLER_REDELIVERY_KEPT. With larger values, Ostler asks less often"
        ),
    )
    redelivery_overlap: float = Field(
        default=900,
        gt=0,
        description=(
            "Minimum time between the starts of two complete scans of GitHub's list of deliveries, in seconds. A scan "
            "reads the list back to this time before the start of the last complete scan. The scan therefore also "
            "finds deliveries that appear in GitHub's list up to this time late. Each run of `redelivery` also checks "
            "the newest deliveries, and reads back at most this time for the check. Larger values make each scan longer"
        ),
    )
    redelivery_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of webhooks that one run of `redelivery` asks GitHub to send again. Larger values use "
            "more of GitHub's rate limit at once"
        ),
    )
    catch_up_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Time after the creation of a job at GitHub, in seconds. If GitHub then lists the job as queued and its "
            "webhook has not arrived, Ostler accepts the job without the webhook. With larger values, the job is "
            "accepted later"
        ),
    )
    catch_up_over_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "How long Ostler waits for the `completed` webhook after a job ended at GitHub, in seconds. Ostler then "
            "records the end of the job without the webhook. With larger values, the end is recorded later"
        ),
    )
    catch_up_seen_within: float = Field(
        default=86400,
        gt=0,
        description=(
            "Maximum time since the newest job of a repository was queued or changed, in seconds. After this time, "
            "`catch_up` does not check the repository until a new job arrives, unless one of its jobs is not "
            "completed. With larger values, more repositories are checked"
        ),
    )
    catch_up_percent: float = Field(
        default=5,
        gt=0,
        le=50,
        description=(
            "Maximum percentage of an installation's hourly rate limit that `catch_up` uses. Larger values leave fewer "
            "calls for other work"
        ),
    )
    keep_deliveries: float = Field(
        default=604800,
        gt=259200,
        description=(
            "How long Ostler stores the GUID of a webhook after the webhook arrived, in seconds. The value must be "
            "larger than 259200, and must not be smaller than OSTLER_REDELIVERY_KEPT. With a smaller value, Ostler "
            "might request webhooks again that already arrived. The default is long enough for github.com and for an "
            "Enterprise Server. Larger values need more disk"
        ),
    )

    # Repairs
    repair_budget_least: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of objects that one run of a sweep can delete even if OSTLER_REPAIR_BUDGET_PERCENT allows fewer. "
            "The sweep `orphaned_stamps` can delete six times as many Pods if Postgres and Kubernetes agree that each "
            "of them never got a JIT. Larger values repair more at once in a small fleet"
        ),
    )
    repair_settle_after: float = Field(
        default=600,
        gt=0,
        description=(
            "Time after a repair, in seconds. If the effect of the repair has not appeared by then, the repair is "
            "marked as failed. With larger values, a failed repair is reported later"
        ),
    )
    keep_repairs: float = Field(
        default=7776000,
        gt=0,
        description=(
            "How long Ostler stores a repair after it was made, and a change of an account, pool, sweep or token, "
            "in seconds. A repair without a known outcome is not deleted. Larger values need more disk"
        ),
    )

    # The epoch, which reveals that Postgres was restored from a backup
    epoch_trusted_for: float = Field(
        default=60,
        gt=0,
        description=(
            "Time after the beginning of the last successful comparison of the epochs during which Ostler can release "
            "delivered claims and retire Pods, in seconds. With larger values, Ostler releases and retires for longer "
            "while it cannot reach the cluster"
        ),
    )

    # Gates
    gate_window: float = Field(
        default=60,
        gt=0,
        description=(
            "How long a call to an upstream is counted in the evaluations of its gate, in seconds. The time begins "
            "when the call is counted. With larger values, gates trip and recover later"
        ),
    )
    gate_least_errors: int = Field(
        default=5,
        ge=1,
        description=(
            "Minimum number of failed calls within `gate_window` for a gate to trip. The fraction `gate_closes_at` "
            "must also be reached. With larger values, the gate of an upstream with few calls trips later"
        ),
    )
    gate_closes_at: float = Field(
        default=0.5,
        ge=0.5,
        le=1,
        description=(
            "Fraction of failed calls within `gate_window`, from 0.5 to 1, at which a gate trips. There must also be "
            "`gate_least_errors` failed calls. With larger values, a gate trips only after more failures"
        ),
    )
    gate_opens_at: float = Field(
        default=0.2,
        ge=0,
        lt=0.5,
        description=(
            "Maximum fraction of failed calls, from 0 up to but not including 0.5, in a healthy evaluation of a "
            "tripped gate. With larger values, gates recover earlier"
        ),
    )
    gate_healthy_checks: int = Field(
        default=4,
        ge=1,
        description=(
            "Minimum number of consecutive healthy evaluations after which a gate recovers. An evaluation without "
            "calls is not counted. With larger values, gates recover later"
        ),
    )
    gate_extra_checks: int = Field(
        default=4,
        ge=0,
        description=(
            "Maximum number of additional healthy evaluations before a gate recovers. The number is drawn at "
            "random each time a gate trips, so that the gates of several deployments do not recover at once. "
            "Larger values spread the recoveries over a longer time"
        ),
    )

    # The watch
    watch_lease: float = Field(
        default=10,
        ge=2,
        le=300,
        description=(
            "Duration of the Lease of the active watch, in seconds. A standby takes over if it has not seen a renewal "
            "of the Lease for this time. With larger values, the takeover comes later"
        ),
    )
    watch_timeout: int = Field(
        default=30,
        ge=2,
        le=3600,
        description=(
            "Longest lifetime of one watch connection, in seconds. The lifetime of each connection is drawn at "
            "random, between three quarters of this time and this time. The API server should end a connection at its "
            "lifetime. If no data arrives for the lifetime plus 5 seconds, the watch closes the connection itself. "
            "With larger values, a dead connection is detected later"
        ),
    )
    watch_executing_after: float = Field(
        default=5,
        ge=0,
        description=(
            "How long the watch waits after a runner began a job before it reports the start, in seconds. The webhook "
            "of the job usually arrives during this time, and the report then needs no check of the Pod. With larger "
            "values, Ostler checks fewer Pods"
        ),
    )


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
