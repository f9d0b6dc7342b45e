"""Holds: the reason why a queued job is not offered to any Pod, and the task that may lift the hold.

A hold is a column beside the job's state. A held job therefore stays queued with its age, and the matcher skips it
without cost. Every reason has exactly one owner (law L4).
"""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    """Reason why a job is held.

    - `unknown_account`: no operator has allowed its account. It is lifted when an operator allows the account, or when
      GitHub says that the account owns the App. Otherwise `rematch` lifts it.
    - `no_pool`: no pool covers its labels. A change of a pool lifts it, or `rematch`.
    - `not_allowed`: pools cover its labels, but a rule of each pool refuses it. A change of a pool lifts it, or
      `rematch`.
    - `origin_unknown`: it is not known yet whether it comes from a fork. `ask_run` lifts it with GitHub's answer, and
      `rematch` sends `ask_run` again until there is an answer.
    - `runner_group`: the pool's runner group does not exist at its owner, or does not admit its repository. A change of
      the pool lifts it, or `rematch` after its wait.
    - `two_pools`: several pools serve it equally well. A change of a pool lifts it, or `rematch`.
    - `budget_zero`: the budget of its account is 0. A change of the budget lifts it, or `rematch`.
    - `backoff`: GitHub refused or asked to wait. `rematch` lifts it once `not_before` has passed.
    - `set_aside`: GitHub refuses its runner as invalid, or three of its runners ended before it began. `rematch` lifts
      it after its backoff, and `unresolved_jobs` asks GitHub about it after an hour.
    - `ask_github`: its result is unknown. Only `unresolved_jobs` lifts it, with GitHub's answer.
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
