"""Why a queued job is not offered to any Pod, and who may lift that.

A hold is a column beside the job's state, so that a held job stays queued at its age and costs the
matcher nothing. Every reason has exactly one owner (law L4).
"""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    """Why a job is held.

    - `unknown_account`: nobody has let its account in. Lifted when an operator allows the account, or when GitHub says
      that it owns the App; else `rematch`.
    - `no_pool`: no pool covers its labels. Lifted by a change of a pool, else `rematch`.
    - `not_allowed`: pools cover its labels, and a rule of each keeps it out. Lifted as `no_pool`.
    - `origin_unknown`: whether a fork sent it is not known yet. Lifted by `ask_run` with GitHub's answer; `rematch`
      sends that again until there is one.
    - `runner_group`: the pool's runner group does not exist at its owner, or does not admit its repository. Lifted by
      a change of the pool, else `rematch` after its wait.
    - `two_pools`: several pools serve it equally well. Lifted by a change of a pool, else `rematch`.
    - `budget_zero`: its account may run nothing. Lifted by a change of the account's budget, else `rematch`.
    - `backoff`: GitHub refused or asked to wait. Lifted by `rematch` once `not_before` has passed.
    - `set_aside`: GitHub refuses its runner as invalid, or three of its runners ended before it began. Lifted by
      `rematch` after its backoff; asked about after an hour by `unresolved_jobs`.
    - `ask_github`: what became of it is not known. Lifted by `unresolved_jobs` alone, with GitHub's answer.
    """

    UNKNOWN_ACCOUNT = "unknown_account"
    NO_POOL = "no_pool"
    NOT_ALLOWED = "not_allowed"
    ORIGIN_UNKNOWN = "origin_unknown"
    RUNNER_GROUP = "runner_group"
    TWO_POOLS = "two_pools"
    BUDGET_ZERO = "budget_zero"
    BACKOFF = "backoff"
    SET_ASIDE = "set_aside"
    ASK_GITHUB = "ask_github"
