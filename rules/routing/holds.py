"""Holds: why a queued job is not offered to any Pod, and which task may lift the hold.

A hold is a column beside the job's state, so a held job stays queued at its age and costs the matcher nothing. Every
reason has exactly one owner (law L4).
"""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    """Reason why a job is held.

    - `unknown_account`: no operator has allowed its account. Lifted when an operator allows the account, or when GitHub
      says that it owns the App; else by `rematch`.
    - `no_pool`: no pool covers its labels. Lifted by a change of a pool, else by `rematch`.
    - `not_allowed`: pools cover its labels, but a rule of each refuses it. Lifted as `no_pool`.
    - `origin_unknown`: it is not known yet whether it comes from a fork. Lifted by `ask_run` with GitHub's answer;
      `rematch` sends that again until there is one.
    - `runner_group`: the pool's runner group does not exist at its owner, or does not admit its repository. Lifted by a
      change of the pool, else by `rematch` after its wait.
    - `two_pools`: several pools serve it equally well. Lifted by a change of a pool, else by `rematch`.
    - `budget_zero`: the budget of its account is 0. Lifted by a change of the budget, else by `rematch`.
    - `backoff`: GitHub refused or asked to wait. Lifted by `rematch` once `not_before` has passed.
    - `set_aside`: GitHub refuses its runner as invalid, or three of its runners ended before it began. Lifted by
      `rematch` after its backoff; `unresolved_jobs` asks GitHub about it after an hour.
    - `ask_github`: its result is unknown. Lifted only by `unresolved_jobs`, with GitHub's answer.
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
