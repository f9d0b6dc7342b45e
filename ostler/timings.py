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
        default=5, gt=0, description="Interval of `resume`, in seconds. Larger values resend lost steps later"
    )
    pools_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval of `pools`, the reconciler, in seconds. Larger values reconcile a pool later that no wake "
            "announced"
        ),
    )
    autoscale_every: float = Field(
        default=10,
        gt=0,
        description="Interval of `autoscale` in seconds; jobs without Pods wake it too. Larger values scale down later",
    )
    sweep_every: float = Field(
        default=60, gt=0, description="Interval of the regular sweeps, in seconds. Larger values repair later"
    )
    catch_up_every: float = Field(
        default=300, gt=0, description="Interval of `catch_up`, in seconds. Larger values find missed jobs later"
    )
    slow_sweep_every: float = Field(
        default=600,
        gt=0,
        description="Interval of the low-priority cleanup sweeps, in seconds. Larger values clean later",
    )
    prune_every: float = Field(
        default=86400, gt=0, description="Interval of `prune`, in seconds. Larger values delete more rows in one run"
    )
    epoch_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds at which the epoch in Postgres is compared with the cluster. Larger values detect a "
            "restored Postgres later"
        ),
    )
    gates_every: float = Field(
        default=15, gt=0, description="Interval of `gates`, in seconds. Larger values close and reopen gates later"
    )

    # Polls and deliveries
    poll_hold_min: float = Field(
        default=40,
        gt=0,
        description="Shortest time in seconds for which a Pod's poll is held. Larger values mean fewer polls",
    )
    poll_hold_max: float = Field(
        default=55,
        gt=0,
        description="Longest time in seconds for which a Pod's poll is held. Larger values mean fewer polls",
    )
    token_review_timeout: float = Field(
        default=0.3,
        gt=0,
        le=5,
        description=(
            "Seconds that a delivery waits for the token review, before it continues without. Larger values delay "
            "deliveries while the API server is slow"
        ),
    )

    # The claim path
    match_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of claims that one run of the matcher makes. Larger values make its transaction longer"
        ),
    )
    due_after: float = Field(
        default=10,
        gt=0,
        description=(
            "Seconds without progress after which `resume` repeats a step, unless its message might still wait in a "
            "queue. Larger values recover lost steps later"
        ),
    )
    stale_claim_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Seconds after which a claim without a delivery is released. Larger values wait longer for the Pod's poll"
        ),
    )
    requeue_after: float = Field(
        default=20,
        gt=0,
        description=(
            "Seconds that a release before any delivery tries to deregister its runner and to un-stamp its Pod, "
            "before the job is queued again and the Pod retired. Larger values delay the job"
        ),
    )
    spare_after: float = Field(
        default=60,
        gt=0,
        description="Seconds after which a spare is deregistered. Larger values save mints and keep Pods longer",
    )
    probe_every: float = Field(
        default=10,
        gt=0,
        description=(
            "Interval in seconds at which one job of a failing installation is tried. Larger values notice its "
            "recovery later"
        ),
    )
    reserve_after: float = Field(
        default=300,
        gt=0,
        description=(
            "Seconds that a job waits for budget before it reserves its size. Larger values let small jobs pass a "
            "large one for longer"
        ),
    )

    # Stamps
    stamp_returns_after: float = Field(
        default=5,
        gt=0,
        description=(
            "Seconds between a delivery to an un-stamped Pod and its stamp. Smaller values risk that the stamp "
            "interrupts the answer"
        ),
    )
    unstamp_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Seconds without a poll after which a stamped and minted Pod is un-stamped. Larger values leave a Pod "
            "without its network for longer"
        ),
    )
    missing_stamp_after: float = Field(
        default=30,
        gt=0,
        description=(
            "Seconds after a delivery without a stamp until the Pod is stamped. Larger values leave the Pod without "
            "its network policy for longer"
        ),
    )
    cut_off_after: float = Field(
        default=15,
        gt=0,
        description=(
            "Seconds after a delivery before a Pod whose poller still runs is checked for a cut connection. Larger "
            "values leave such a Pod cut off for longer"
        ),
    )
    orphaned_stamp_after: float = Field(
        default=300,
        ge=0,
        description=(
            "Seconds since the last claim of a stamped Pod ended, before the stamp is checked. Larger values remove "
            "stamps later"
        ),
    )

    # Runners and jobs
    unused_after: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds without an execution after which a delivered runner is looked up at GitHub. Larger values find "
            "unused runners later"
        ),
    )
    unused_polling_after: float = Field(
        default=150,
        gt=0,
        description=(
            "Seconds after a delivery during which a polling Pod might still fetch its JIT; `unused_after` counts "
            "from their end. Larger values leave the Pod more polls"
        ),
    )
    spent_after: float = Field(
        default=30,
        gt=0,
        description=(
            "Seconds that a spent Pod waits for its `completed` webhook before GitHub is asked for the job. Larger "
            "values ask less often and free the Pod later"
        ),
    )
    unresolved_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Seconds without progress after which GitHub is asked about a job that needs a claim and has none; the "
            "interval grows with each request. Larger values find lost jobs later"
        ),
    )
    unresolved_late_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Seconds until GitHub is asked about a job that waits, is set aside, or runs on a runner that is not "
            "Ostler's. Larger values ask less often"
        ),
    )
    finished_job_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Seconds since a job ended, before its Pod is checked if it still runs. Larger values leave longer for "
            "steps after the job"
        ),
    )
    lingering_after: float = Field(
        default=90,
        ge=0,
        description=(
            "Seconds since the executed job ended, before a Pod is retired whose runner was absent from two of "
            "GitHub's lists. Larger values keep such a Pod longer"
        ),
    )
    orphaned_runner_after: float = Field(
        default=900,
        ge=0,
        description=(
            "Seconds since its claim ended, before an offline runner is deregistered. Larger values keep it "
            "registered longer"
        ),
    )
    orphaned_account_after: float = Field(
        default=600,
        ge=0,
        description="Age in seconds at which a ServiceAccount without a Pod is deleted. Larger values keep it longer",
    )

    # Webhooks
    webhook_max_bytes: int = Field(
        default=25 * 1024 * 1024,
        ge=1024,
        description=(
            "Maximum size of a webhook in bytes, which is GitHub's own; a larger one is refused while it is read. "
            "Larger values use more memory"
        ),
    )
    redelivery_again_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Seconds before GitHub is asked again for a failed webhook; the interval doubles with each request. "
            "Larger values ask less often"
        ),
    )
    redelivery_overlap: float = Field(
        default=900,
        gt=0,
        description="Seconds by which GitHub might list a delivery late. Larger values read more of the list again",
    )
    redelivery_batch: int = Field(
        default=100,
        ge=1,
        le=1000,
        description=(
            "Maximum number of webhooks that one tick requests again. Larger values use more of the quota at once"
        ),
    )
    catch_up_after: float = Field(
        default=120,
        gt=0,
        description=(
            "Age in seconds at which a job that GitHub lists as queued is accepted without its webhook. Larger values "
            "accept it later"
        ),
    )
    catch_up_over_after: float = Field(
        default=3600,
        gt=0,
        description=(
            "Seconds since GitHub ended a job, before it is finished here without its webhook. Larger values finish "
            "it later"
        ),
    )
    catch_up_seen_within: float = Field(
        default=86400,
        gt=0,
        description=(
            "Maximum age in seconds of a repository's last job at which `catch_up` lists its runs. Larger values list "
            "more repositories"
        ),
    )
    catch_up_percent: float = Field(
        default=5,
        gt=0,
        le=50,
        description=(
            "Percentage of an installation's hourly quota that `catch_up` can use. Larger values leave less to other "
            "calls"
        ),
    )
    keep_deliveries: float = Field(
        default=604800,
        gt=259200,
        description=(
            "Seconds for which GUIDs of webhooks are kept; it must be longer than GitHub keeps deliveries. Larger "
            "values use more disk"
        ),
    )

    # Repairs
    repair_budget_least: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of destructive repairs that one run of a sweep can always make. Larger values repair more at once "
            "in a small fleet"
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
        description="Seconds for which repairs with a known outcome are kept. Larger values use more disk",
    )

    # The epoch, which reveals that Postgres was restored from a backup
    epoch_trusted_for: float = Field(
        default=60,
        gt=0,
        description=(
            "Seconds after the last successful epoch check during which claims can be released and Pods deleted. "
            "Larger values continue for longer while the cluster cannot be reached"
        ),
    )

    # Gates
    gate_window: float = Field(
        default=60,
        gt=0,
        description="Seconds over which upstream calls are counted when a gate is evaluated. Larger values react later",
    )
    gate_least_errors: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of failed calls below which no gate closes. Larger values close gates later where calls are few"
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
            "Maximum fraction of failed calls at which an evaluation of a closed gate is healthy. Larger values "
            "reopen gates earlier"
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
            "Maximum number of random extra healthy evaluations before a gate reopens. Larger values spread the "
            "reopening of several deployments more"
        ),
    )

    # The watch
    watch_lease: float = Field(
        default=10,
        ge=2,
        le=300,
        description=(
            "Seconds of silence from the active watch after which a standby takes over. Larger values make a "
            "take-over later"
        ),
    )
    watch_timeout: int = Field(
        default=30,
        ge=2,
        le=3600,
        description=(
            "Longest life of one watch connection in seconds; a connection that is silent for 5 seconds longer is "
            "closed. Larger values detect a dead connection later"
        ),
    )
    watch_executing_after: float = Field(
        default=5,
        ge=0,
        description=(
            "Seconds that the watch leaves to the webhook of a job that began, before it reports the job itself. "
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
    raise ValueError('must be a JSON object, as {"sweep_every": 3}')
