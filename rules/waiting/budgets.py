"""Sentences about the budget and the usage of a job's account."""

from __future__ import annotations

from datetime import datetime

from rules.claims.fairness import AccountView, JobHead, SkipReason, refusal
from rules.waiting.facts import JobFacts, SupplyFacts


def short_of_budget(job: JobFacts, pool: SupplyFacts) -> str | None:
    """Return a clause about the budget if it has no room for the job, or None if it has room."""
    size = JobHead(
        job_id=job.id,
        account_id=job.account_id,
        priority=0,
        queued_at=datetime.min,  # noqa: DTZ901
        pool_id=pool.id,
        vcpu_millicores=pool.spec.charged_millicores,
        memory_mib=pool.spec.charged_mib,
    )
    account = AccountView(account_id=job.account_id, weight=1, budget=job.budget, usage=job.usage)
    if refusal(size, account) not in {SkipReason.BUDGET_ZERO, SkipReason.OVER_BUDGET}:
        return None
    told = use_of_budget(job, pool)
    return told[0].lower() + told[1:]


def use_of_budget(job: JobFacts, pool: SupplyFacts, *, who: str = "It") -> str:
    """Return a sentence about the budget and the usage of the job's account, and about the size of the job's Pod.

    `who` is the subject of the sentence.
    """
    budget, usage = job.budget, job.usage
    return (
        f"{who} uses {usage.count} of {budget.count} Pods, {cores(usage.vcpu_millicores)} of "
        f"{cores(budget.vcpu_millicores)} vCPU and {gib(usage.memory_mib)} of {gib(budget.memory_mib)} GiB, and "
        f"this job needs {cores(pool.spec.charged_millicores)} vCPU and {gib(pool.spec.charged_mib)} GiB"
    )


def cores(millicores: int) -> str:
    """Return a number of vCPU."""
    return f"{millicores / 1000:g}"


def gib(mib: int) -> str:
    """Return a number of GiB."""
    return f"{mib / 1024:g}"


def budget_cure(job: JobFacts, pool: SupplyFacts) -> str:
    """Return the cure for a full budget.

    The cure advises waiting only if the whole budget is large enough for the job.
    """
    budget, wanted = job.budget, []
    if budget.count < 1:
        wanted.append("--count 1")
    if budget.vcpu_millicores < pool.spec.charged_millicores:
        wanted.append(f"--vcpu {cores(pool.spec.charged_millicores)}")
    if budget.memory_mib < pool.spec.charged_mib:
        wanted.append(f"--memory {gib(pool.spec.charged_mib)}")
    if not wanted:
        return (
            "Wait until a Pod of the account ends. A Pod counts in the budget until it ends, even after its job. Or "
            "raise the budget: "
            f"`ostler account set {job.account_id}` with --count, --vcpu or --memory."
        )
    return (
        "Waiting does not help: the whole budget is too small for one job of this pool. Raise the budget to this size "
        "or more: "
        f"`ostler account set {job.account_id} {' '.join(wanted)}`."
    )
