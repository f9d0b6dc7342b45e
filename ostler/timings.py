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
    """Immutable record of periods, waits, thresholds and batch sizes. It does not read the environment itself."""

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
            "How often the autoscaler runs, in seconds. A job without a Pod also wakes the autoscaler. With "
            "larger values, pools are scaled down later"
        ),
    )
    sweep_every: float = Field(
        default=60,
        gt=0,
        description="How often the regular sweeps run, in seconds. With larger values, repairs come later",
    )
    catch_up_every: float = Field(
        default=300,
        gt=0,
        description=(
            "How often the sweep `catch_up` runs, in seconds. With larger values, jobs whose webhooks were lost "
            "are found later"
        ),
    )
    slow_sweep_every: float = Field(
        default=600,
        gt=0,
        description=(
            "How often the low-priority cleanup sweeps run, in seconds. With larger values, leftovers are deleted later"
        ),
    )
    prune_every: float = Field(
        default=86400,
        gt=0,
        description="How often the sweep `prune` runs, in seconds. With larger values, one run deletes more rows",
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
        description="How often the gates are evaluated, in seconds. With larger values, gates close and reopen later",
    )

    # Polls and deliveries
    poll_hold_min: float = Field(
        default=40,
        gt=0,
        description=(
            "Shortest time that web waits for a job before it answers a poll without a job, in seconds. Larger "
            "values cause fewer polls"
        ),
    )
    poll_hold_max: float = Field(
        default=55,
        gt=0,
        description=(
            "Longest time that web waits for a job before it answers a poll without a job, in seconds. Larger "
            "values cause fewer polls"
        ),
    )
    token_review_timeout: float = Field(
        default=0.3,
        gt=0,
        le=5,
        description=(
            "How long a delivery waits for the token review, in seconds. The delivery then continues without the "
            "review. Larger values delay deliveries while the API server is slow"
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
            "Time without progress after which `resume` repeats the step of a claim, in seconds. A step is not "
            "repeated while its message might still wait in a queue. With larger values, lost steps are repeated "
            "later"
        ),
    )
    stale_claim_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Age at which a claim without a delivery is released, in seconds. Larger values give the Pod more "
            "time to poll"
        ),
    )
    requeue_after: float = Field(
        default=20,
        gt=0,
        description=(
            "Time during which Ostler tries to deregister the runner and to remove the stamp before it releases an "
            "undelivered claim, in seconds. After this time, Ostler queues the job again. If the stamp could not be "
            "removed, Ostler retires the Pod. With larger values, the job waits longer"
        ),
    )
    spare_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Time without a job after which Ostler deregisters the runner of a spare, in seconds. Larger values "
            "need fewer mints, but Pods stay idle longer"
        ),
    )
    probe_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Time between two tries of a job of an installation whose mints fail, in seconds. With larger values, "
            "Ostler detects the recovery of the installation later"
        ),
    )
    reserve_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Time after which Ostler reserves budget of the account for a job that waits for budget, in seconds. "
            "With larger values, small jobs overtake a large job for longer"
        ),
    )

    # Stamps
    stamp_returns_after: float = Field(
        default=5,
        gt=0,
        description=(
            "How long Ostler waits after a delivery before it stamps a Pod that has no stamp, in seconds. With "
            "larger values, the Pod is without its network policy for longer. Smaller values might interrupt the "
            "answer to the poll of the Pod"
        ),
    )
    unstamp_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Time without a poll after which Ostler removes the stamp of a Pod with a minted JIT, in seconds. The "
            "stamp might block the polls of the Pod. With larger values, such a Pod waits longer"
        ),
    )
    missing_stamp_after: float = Field(
        default=30,
        gt=0,
        description=(
            "How long the sweep `missing_stamps` waits after a delivery before it stamps a Pod that has no stamp, "
            "in seconds. With larger values, the Pod is without its network policy for longer"
        ),
    )
    cut_off_after: float = Field(
        default=15,
        gt=0,
        description=(
            "How long Ostler waits after a delivery before it checks a Pod whose poller still runs, in seconds. "
            "The stamp might have cut the connection of that Pod to web. With larger values, such a Pod waits "
            "longer"
        ),
    )
    orphaned_stamp_after: float = Field(
        default=300,
        ge=0,
        description=(
            "How long the sweep `orphaned_stamps` waits after the end of the last claim of a stamped Pod before "
            "it checks the stamp, in seconds. With larger values, stamps are removed later"
        ),
    )

    # Runners and jobs
    unused_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Time without an execution after which Ostler asks GitHub about a delivered runner, in seconds. With "
            "larger values, unused runners are found later"
        ),
    )
    unused_polling_after: float = Field(
        default=150,
        gt=0,
        description=(
            "Time after the delivery during which a Pod can still poll for its JIT, in seconds. The time "
            "`unused_after` begins when this time ends. Larger values give the Pod more polls"
        ),
    )
    spent_after: float = Field(
        default=30,
        gt=0,
        description=(
            "How long Ostler waits for the `completed` webhook after a Pod is spent, in seconds. Ostler then asks "
            "GitHub about the job. With larger values, Ostler asks less often and replaces the Pod later"
        ),
    )
    unresolved_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Time after which Ostler asks GitHub about a job that needs a claim and has no claim, in seconds. The "
            "time between two requests grows with each request. With larger values, lost jobs are found later"
        ),
    )
    unresolved_late_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Time without progress after which Ostler asks GitHub about a job, in seconds. The setting applies to a "
            "job that is in the state `waiting`, is set aside, or runs on a runner that Ostler did not register. "
            "With larger values, Ostler asks less often"
        ),
    )
    finished_job_after: float = Field(
        default=900,
        ge=0,
        description=(
            "How long Ostler waits after the end of a job before the sweep `finished_jobs` checks a Pod that "
            "still runs, in seconds. Larger values give the last steps of a job more time"
        ),
    )
    lingering_after: float = Field(
        default=90,
        ge=0,
        description=(
            "Time after the end of a job after which Ostler retires a Pod that still runs, in seconds. Ostler "
            "retires the Pod only if its runner was missing in two lists from GitHub. With larger values, such a "
            "Pod runs longer"
        ),
    )
    orphaned_runner_after: float = Field(
        default=900,
        ge=0,
        description=(
            "How long an offline runner stays registered after its claim ended, in seconds. The sweep "
            "`orphaned_runners` then deregisters the runner. With larger values, the runner stays registered "
            "longer"
        ),
    )
    orphaned_account_after: float = Field(
        default=600,
        ge=0,
        description=(
            "Age at which a ServiceAccount without a Pod is deleted, in seconds. With larger values, the "
            "ServiceAccount exists longer"
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
            "request doubles the time. With larger values, Ostler asks less often"
        ),
    )
    redelivery_overlap: float = Field(
        default=900,
        gt=0,
        description=(
            "Longest time between a delivery and its entry in GitHub's list of deliveries, in seconds. Each run "
            "of `redelivery` reads the entries of this time again. Larger values need more calls"
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
            "Age at which Ostler accepts a job that GitHub lists as queued, although its webhook did not arrive, "
            "in seconds. With larger values, the job is accepted later"
        ),
    )
    catch_up_over_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "How long Ostler waits for the webhook after a job ended at GitHub, in seconds. Ostler then records "
            "the end of the job without the webhook. With larger values, the end is recorded later"
        ),
    )
    catch_up_seen_within: float = Field(
        default=86400,
        gt=0,
        description=(
            "Maximum age of the last job of a repository, in seconds. If the last job is older, `catch_up` does "
            "not list the runs of the repository. With larger values, more repositories are listed"
        ),
    )
    catch_up_percent: float = Field(
        default=5,
        gt=0,
        le=50,
        description=(
            "Percentage of an installation's hourly rate limit that `catch_up` can use. Larger values leave fewer "
            "calls for other work"
        ),
    )
    keep_deliveries: float = Field(
        default=604800,
        gt=259200,
        description=(
            "How long Ostler stores the GUIDs of webhooks, in seconds. The value must be larger than the time "
            "that GitHub stores deliveries. Larger values need more disk"
        ),
    )

    # Repairs
    repair_budget_least: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of objects that one run of a sweep can always delete, even if OSTLER_REPAIR_BUDGET_PERCENT "
            "allows fewer. Larger values repair more at once in a small fleet"
        ),
    )
    repair_settle_after: float = Field(
        default=600,
        gt=0,
        description=(
            "How long Ostler waits for the effect of a repair before it marks the repair as failed, in seconds. "
            "With larger values, a failed repair is reported later"
        ),
    )
    keep_repairs: float = Field(
        default=7776000,
        gt=0,
        description="How long Ostler stores repairs with a known outcome, in seconds. Larger values need more disk",
    )

    # The epoch, which reveals that Postgres was restored from a backup
    epoch_trusted_for: float = Field(
        default=60,
        gt=0,
        description=(
            "How long Ostler can release claims and delete Pods after a successful comparison of the epochs, in "
            "seconds. With larger values, Ostler releases and deletes for longer while it cannot reach the "
            "cluster"
        ),
    )

    # Gates
    gate_window: float = Field(
        default=60,
        gt=0,
        description=(
            "How long a call to an upstream is counted in the evaluations of its gate, in seconds. With larger "
            "values, gates close and reopen later"
        ),
    )
    gate_least_errors: int = Field(
        default=5,
        ge=1,
        description=(
            "Minimum number of failed calls that closes a gate. With larger values, the gate of an upstream with "
            "few calls closes later"
        ),
    )
    gate_closes_at: float = Field(
        default=0.5,
        ge=0.5,
        le=1,
        description=(
            "Fraction of failed calls, from 0 to 1, at which a gate closes. With larger values, a gate closes "
            "only after more failures"
        ),
    )
    gate_opens_at: float = Field(
        default=0.2,
        ge=0,
        lt=0.5,
        description=(
            "Maximum fraction of failed calls, from 0 to 1, in a healthy evaluation of a closed gate. With larger "
            "values, gates reopen earlier"
        ),
    )
    gate_healthy_checks: int = Field(
        default=4,
        ge=1,
        description=(
            "Number of consecutive healthy evaluations after which a gate reopens. With larger values, gates "
            "reopen later"
        ),
    )
    gate_extra_checks: int = Field(
        default=4,
        ge=0,
        description=(
            "Maximum number of additional healthy evaluations before a gate reopens. The number is drawn at "
            "random each time a gate closes, so that several deployments do not reopen their gates at once. "
            "Larger values spread the reopening over a longer time"
        ),
    )

    # The watch
    watch_lease: float = Field(
        default=10,
        ge=2,
        le=300,
        description=(
            "Duration of the Lease of the active watch, in seconds. A standby takes over if the active watch does "
            "not renew the Lease for this time. With larger values, the takeover comes later"
        ),
    )
    watch_timeout: int = Field(
        default=30,
        ge=2,
        le=3600,
        description=(
            "Longest lifetime of one watch connection, in seconds. The watch closes a connection that receives no "
            "data for this time plus 5 seconds. With larger values, a dead connection is detected later"
        ),
    )
    watch_executing_after: float = Field(
        default=5,
        ge=0,
        description=(
            "How long the watch waits for the webhook of a started job before it reports the job itself, in "
            "seconds. With larger values, the watch sends fewer tasks"
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
