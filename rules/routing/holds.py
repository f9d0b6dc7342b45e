"""Holds: the reason why the matcher ignores a queued job, and the task that may lift the hold.

A hold is a column beside the job's state. A held job therefore stays queued with its age, and the matcher skips the job
without cost. Every reason has exactly one owner (law L4).
"""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    """Reason why a job is held.

    - `unknown_account`: no operator has allowed the job's account, or an operator has held it. The hold is lifted when
      an operator allows the account, or when GitHub says that the account owns the App. `rematch` lifts the hold later
      if an allowed account still has held jobs.
    - `no_pool`: no pool covers the job's labels. A change of a pool or `rematch` lifts the hold.
    - `not_allowed`: pools cover the job's labels, but a rule of each pool refuses the job. A change of a pool or
      `rematch` lifts the hold.
    - `origin_unknown`: it is not known yet whether the job comes from a fork. `ask_run` lifts the hold with GitHub's
      answer. `rematch` sends `ask_run` again until there is an answer, and lifts the hold if the pool no longer depends
      on the origin.
    - `runner_group`: the pool's runner group does not exist at the job's owner, or does not admit the job's repository.
      Or the job has no labels, and GitHub gave it to no runner of the pool, probably because of its group.
      A change of the pool or `rematch` lifts the hold. `rematch` waits until `not_before`.
    - `two_pools`: several pools serve the job equally well. A change of a pool or `rematch` lifts the hold.
    - `budget_zero`: the budget of the job's account is 0. A change of the budget or `rematch` lifts the hold.
    - `backoff`: GitHub did not answer, refused a request or asked to wait. `rematch` lifts the hold once `not_before`
      has passed. The first successful mint ends this wait early. The matcher lifts the hold of one job that probes an
      installation.
    - `set_aside`: GitHub refuses the job's runner as invalid, or three runners for the job ended before the job began.
      `rematch` lifts the hold after `not_before`. A new template of the pool, or an execution in the pool, ends this
      wait early. `unresolved_jobs` asks GitHub about a job that stays queued for an hour.
    - `ask_github`: the result of the job is unknown. Only `unresolved_jobs` lifts the hold, with GitHub's answer.
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
