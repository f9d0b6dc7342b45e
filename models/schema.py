"""All tables at once: importing this module fills the metadata that migrations and tests compare."""

from __future__ import annotations

from models import (
    accounts,
    api_tokens,
    backoffs,
    catch_up,
    claims,
    deliveries,
    epochs,
    executions,
    gates,
    jobs,
    offers,
    origins,
    pod_lists,
    pools,
    redelivery,
    repairs,
    runner_failures,
    runner_groups,
    runner_lists,
    runner_pods,
    runner_versions,
    stranded,
    sweep_runs,
)
from models.base import Base

metadata = Base.metadata

MODULES = (
    accounts, api_tokens, backoffs, catch_up, claims, deliveries, epochs, executions, gates, jobs, offers, origins,
    pod_lists, pools, redelivery, repairs, runner_failures, runner_groups, runner_lists, runner_pods,
    runner_versions, stranded, sweep_runs,
)  # fmt: skip
"""The modules that hold tables; the list keeps their imports from looking unused."""
