"""Metadata of all tables, for migrations and tests. The import of this module registers every table."""

from __future__ import annotations

from models import api_tokens
from models.claims import runner_failures
from models.db import epochs
from models.db.base import Base
from models.pools import pod_lists, runner_versions
from models.routing import accounts, run_origins, runner_groups
from models.state import changes, claims, deliveries, executions, jobs, offers, pools, runner_pods, stalls
from models.sweeps import catch_up, redelivery, repairs, runner_lists, sweep_runs
from models.upstream import backoffs, gates

metadata = Base.metadata

MODULES = (
    accounts,
    api_tokens,
    backoffs,
    catch_up,
    changes,
    claims,
    deliveries,
    epochs,
    executions,
    gates,
    jobs,
    offers,
    run_origins,
    pod_lists,
    pools,
    redelivery,
    repairs,
    runner_failures,
    runner_groups,
    runner_lists,
    runner_pods,
    runner_versions,
    stalls,
    sweep_runs,
)
"""The modules that define tables. The tuple uses the imports, so that the linter does not report unused imports."""
