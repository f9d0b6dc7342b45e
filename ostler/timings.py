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
        default=5, gt=0, description="Interval in seconds of the sweep `resume`. Larger values resend lost steps later"
    )
    pools_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds at which all pools are reconciled. Larger values delay the reconcile of a pool "
            "that no wake was sent for"
        ),
    )
    autoscale_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds of the autoscaler. A job without a Pod also wakes the autoscaler. Larger values "
            "scale pools down later"
        ),
    )
    sweep_every: float = Field(
        default=60, gt=0, description="Interval in seconds of the regular sweeps. Larger values repair later"
    )
    catch_up_every: float = Field(
        default=300,
        gt=0,
        description="Interval in seconds of the sweep `catch_up`. Larger values find missed jobs later",
    )
    slow_sweep_every: float = Field(
        default=600,
        gt=0,
        description="Interval in seconds of the low-priority cleanup sweeps. Larger values clean up later",
    )
    prune_every: float = Field(
        default=86400,
        gt=0,
        description="Interval in seconds of the sweep `prune`. Larger values delete more rows in one run",
    )
    epoch_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds at which the epoch in Postgres is compared with the epoch in the cluster. Larger "
            "values detect a restored Postgres later"
        ),
    )
    gates_every: float = Field(
        default=15,
        gt=0,
        description="Interval in seconds at which the gates are evaluated. Larger values close and reopen gates later",
    )

    # Polls and deliveries
    poll_hold_min: float = Field(
        default=40,
        gt=0,
        description=(
            "Minimum time in seconds that web waits for a job before it answers a poll without a job. Larger values "
            "mean fewer polls"
        ),
    )
    poll_hold_max: float = Field(
        default=55,
        gt=0,
        description=(
            "Maximum time in seconds that web waits for a job before it answers a poll without a job. Larger values "
            "mean fewer polls"
        ),
    )
    token_review_timeout: float = Field(
        default=0.3,
        gt=0,
        le=5,
        description=(
            "Seconds that a delivery waits for the token review. After this time the delivery continues without the "
            "review. Larger values delay deliveries while the API server is slow"
        ),
    )

    # The claim path
    match_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of claims that one run of the matcher inserts. Larger values make its transaction longer"
        ),
    )
    due_after: float = Field(
        default=10,
        gt=0,
        description=(
            "Seconds without progress after which `resume` repeats a step, unless the message of the step might "
            "still wait in a queue. Larger values recover lost steps later"
        ),
    )
    stale_claim_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Age in seconds at which a claim without a delivery is released. Larger values give the Pod more time to "
            "poll"
        ),
    )
    requeue_after: float = Field(
        default=20,
        gt=0,
        description=(
            "Seconds for which the release of an undelivered claim tries to deregister the runner and to remove the "
            "stamp. After this time the job is queued again. If the stamp could not be removed, the Pod is retired. "
            "Larger values delay the job"
        ),
    )
    spare_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds after which an unused spare runner is deregistered. Larger values save mints and keep idle "
            "Pods longer"
        ),
    )
    probe_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds at which one job of a failing installation is tried. Larger values notice the "
            "recovery of the installation later"
        ),
    )
    reserve_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Seconds that a job waits for room in its account's budget before Ostler reserves room for this job. "
            "Larger values let small jobs overtake a large job for longer"
        ),
    )

    # Stamps
    stamp_returns_after: float = Field(
        default=5,
        gt=0,
        description=(
            "Seconds that Ostler waits after a delivery to a Pod without a stamp. Then Ostler stamps the Pod. "
            "Larger values leave the Pod without its network policy for longer. Smaller values might interrupt "
            "the answer to the poll of the Pod"
        ),
    )
    unstamp_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Seconds without a poll after which the stamp is removed from a Pod whose JIT was minted. Larger "
            "values leave a Pod cut off for longer if its stamp blocks its polls"
        ),
    )
    missing_stamp_after: float = Field(
        default=30,
        gt=0,
        description=(
            "Seconds that a sweep waits after a delivery to a Pod without a stamp. Then the sweep stamps the Pod. "
            "Larger values leave the Pod without its network policy for longer"
        ),
    )
    cut_off_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Seconds that Ostler waits after a delivery. If the poller of the Pod then still runs, Ostler checks "
            "the Pod for a cut connection. Larger values leave such a Pod cut off for longer"
        ),
    )
    orphaned_stamp_after: float = Field(
        default=300,
        ge=0,
        description=(
            "Seconds that a sweep waits after the last claim of a stamped Pod has ended. Then the sweep checks "
            "the stamp. Larger values remove stamps later"
        ),
    )

    # Runners and jobs
    unused_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds without an execution after which a delivered runner is looked up at GitHub. Larger values "
            "find unused runners later"
        ),
    )
    unused_polling_after: float = Field(
        default=150,
        gt=0,
        description=(
            "Seconds that a Pod can still poll for its JIT after the delivery. The time `unused_after` begins "
            "after these seconds. Larger values give the Pod more polls"
        ),
    )
    spent_after: float = Field(
        default=30,
        gt=0,
        description=(
            "Seconds that a spent Pod waits for the `completed` webhook of its job before Ostler asks GitHub. "
            "Larger values ask less often and replace the Pod later"
        ),
    )
    unresolved_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Seconds without progress after which Ostler asks GitHub about a job that needs a claim and has none. "
            "The interval grows with each request. Larger values find lost jobs later"
        ),
    )
    unresolved_late_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Seconds without progress after which Ostler asks GitHub about a job that is in the state `waiting`, is "
            "set aside, or runs on a runner that Ostler did not register. Larger values ask less often"
        ),
    )
    finished_job_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Seconds that a sweep waits after the end of a job. If the Pod then still runs, the sweep checks it. "
            "Larger values give the last steps of a job more time"
        ),
    )
    lingering_after: float = Field(
        default=90,
        ge=0,
        description=(
            "Seconds that a Pod can run on after the end of its job. Then the Pod is retired if two of GitHub's lists "
            "did not contain its runner. Larger values keep such a Pod longer"
        ),
    )
    orphaned_runner_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Seconds that an offline runner stays registered after its claim ended. Then a sweep deregisters the "
            "runner. Larger values keep the runner registered for longer"
        ),
    )
    orphaned_account_after: float = Field(
        default=600,
        ge=0,
        description="Age in seconds at which a ServiceAccount without a Pod is deleted. Larger values keep the "
        "ServiceAccount longer",
    )

    # Webhooks
    webhook_max_bytes: int = Field(
        default=25 * 1024 * 1024,
        ge=1024,
        description=(
            "Maximum size of a webhook in bytes. The default is GitHub's own limit. A larger webhook is refused "
            "while it is read. Larger values use more memory"
        ),
    )
    redelivery_again_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Seconds between two requests to GitHub to send a failed webhook again. The interval doubles with "
            "each request. Larger values ask less often"
        ),
    )
    redelivery_overlap: float = Field(
        default=900,
        gt=0,
        description=(
            "Maximum delay in seconds between a delivery and its entry in GitHub's list of deliveries. Each run of "
            "`redelivery` reads the list again for this time. Larger values need more calls"
        ),
    )
    redelivery_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of webhooks that one run of `redelivery` requests again. Larger values use more of "
            "the quota at once"
        ),
    )
    catch_up_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Age in seconds at which a job that GitHub lists as queued is accepted without its webhook. Larger "
            "values accept the job later"
        ),
    )
    catch_up_over_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Seconds that Ostler waits for the webhook after a job ended at GitHub. Then Ostler finishes the job "
            "without the webhook. Larger values finish the job later"
        ),
    )
    catch_up_seen_within: float = Field(
        default=86400,
        gt=0,
        description=(
            "Maximum age in seconds of a repository's last job. If the last job is older, `catch_up` does not "
            "list the runs of the repository. Larger values list more repositories"
        ),
    )
    catch_up_percent: float = Field(
        default=5,
        gt=0,
        le=50,
        description=(
            "Percentage of an installation's hourly quota that `catch_up` can use. Larger values leave less to "
            "other calls"
        ),
    )
    keep_deliveries: float = Field(
        default=604800,
        gt=259200,
        description=(
            "Seconds for which Ostler stores the GUIDs of webhooks. The value must be larger than the retention of "
            "deliveries at GitHub. Larger values use more disk"
        ),
    )

    # Repairs
    repair_budget_least: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of destructive repairs that one run of a sweep can always make, even if "
            "OSTLER_REPAIR_BUDGET_PERCENT allows fewer. Larger values repair more at once in a small fleet"
        ),
    )
    repair_settle_after: float = Field(
        default=600,
        gt=0,
        description=(
            "Seconds to wait for the effect of a repair before it is marked failed. Larger values report a failed "
            "repair later"
        ),
    )
    keep_repairs: float = Field(
        default=7776000,
        gt=0,
        description="Seconds for which Ostler stores repairs with a known outcome. Larger values use more disk",
    )

    # The epoch, which reveals that Postgres was restored from a backup
    epoch_trusted_for: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds after a successful epoch check. During these seconds Ostler can release claims and delete "
            "Pods. With larger values, Ostler releases and deletes for longer while it cannot reach the cluster"
        ),
    )

    # Gates
    gate_window: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds for which a call to an upstream counts when a gate is evaluated. Larger values react later"
        ),
    )
    gate_least_errors: int = Field(
        default=5,
        ge=1,
        description=(
            "Minimum number of failed calls that closes a gate. If there are few calls, larger values delay the "
            "closing of a gate"
        ),
    )
    gate_closes_at: float = Field(
        default=0.5,
        ge=0.5,
        le=1,
        description="Fraction of failed calls at which a gate closes. Larger values tolerate more failures",
    )
    gate_opens_at: float = Field(
        default=0.2,
        ge=0,
        lt=0.5,
        description=(
            "Maximum fraction of failed calls at which an evaluation of a closed gate counts as healthy. Larger "
            "values reopen gates earlier"
        ),
    )
    gate_healthy_checks: int = Field(
        default=4,
        ge=1,
        description="Number of healthy evaluations in a row that reopen a gate. Larger values reopen gates later",
    )
    gate_extra_checks: int = Field(
        default=4,
        ge=0,
        description=(
            "Maximum number of additional healthy evaluations before a gate reopens. The number is drawn at random "
            "each time a gate closes, so that several deployments do not reopen their gates at once. Larger values "
            "spread these times more"
        ),
    )

    # The watch
    watch_lease: float = Field(
        default=10,
        ge=2,
        le=300,
        description=(
            "Seconds without a sign of life from the active watch after which a standby takes over. Larger values "
            "delay the takeover"
        ),
    )
    watch_timeout: int = Field(
        default=30,
        ge=2,
        le=3600,
        description=(
            "Maximum lifetime in seconds of one watch connection. The watch closes a connection if it receives no "
            "data for this time plus 5 seconds. Larger values detect a dead connection later"
        ),
    )
    watch_executing_after: float = Field(
        default=5,
        ge=0,
        description=(
            "Seconds that the watch waits for the webhook of a started job before the watch itself reports the job. "
            "Larger values send fewer tasks"
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
