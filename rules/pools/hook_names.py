"""Names of the objects of container jobs: hook Pods and their Secrets, derived from the name of the runner Pod.

`hook_size` is the name of a size. The other names are a fixed set, because the Role of a runner Pod and an admission
policy must contain each name. A hook Pod is a Pod in which containers of a job run. A job has one Pod for its container
and its services, and one Pod per container step.
"""

from __future__ import annotations

WORKFLOW = "workflow"

JOB_SERVICE, JOB_STEP = "job-service-", "job-step-"
"""Beginnings of the names of the containers that a runner Pod with a shared workspace gets, besides `job`.

An admission policy allows no other names.
"""

STEPS = 32
"""Number of container steps that can exist at once."""

SECRETS = 8
"""Number of Secrets that can exist at once."""

LONGEST_POD = 54
"""Maximum number of characters in the name of a runner Pod with container jobs.

The name of a hook Pod is the host name in its containers, and a host name has at most 63 characters.
"""

LONGEST_POOL = LONGEST_POD - 9
"""Maximum number of characters in the name of a pool with container jobs. A Pod's name adds `-` and 8 hex digits."""


def workflow_pod(pod: str) -> str:
    """Return the name of the Pod for the job's container and its services. Raises ValueError if it is too long."""
    return f"{_fitting(pod)}-{WORKFLOW}"


def step_pod(pod: str, n: int) -> str:
    """Return the name of the Pod for container step `n`, from 0 to `STEPS` - 1.

    Raises ValueError if `n` is out of this range or the name is too long.
    """
    return f"{_fitting(pod)}-step-{_numbered(n, STEPS)}"


def secret(pod: str, n: int) -> str:
    """Return the name of Secret `n`, from 0 to `SECRETS` - 1.

    Raises ValueError if `n` is out of this range or the name is too long.
    """
    return f"{_fitting(pod)}-secret-{_numbered(n, SECRETS)}"


def login_secret(pod: str) -> str:
    """Return the name of the Secret with all registry logins of a job whose containers run in the runner Pod.

    Raises ValueError if the name is too long.
    """
    return secret(pod, SECRETS - 1)


def pod_names(pod: str) -> tuple[str, ...]:
    """Return the names of all hook Pods that a runner Pod may create. Raises ValueError if they are too long."""
    return (workflow_pod(pod), *(step_pod(pod, n) for n in range(STEPS)))


def secret_names(pod: str) -> tuple[str, ...]:
    """Return the names of all Secrets that a runner Pod may create. Raises ValueError if they are too long."""
    return tuple(secret(pod, n) for n in range(SECRETS))


def hook_size(*, millicores: int, memory_mib: int) -> str:
    """Return the name of the size of a hook Pod, for example `1500m-4096Mi`.

    A Role of a runner Pod contains this name.
    """
    return f"{millicores}m-{memory_mib}Mi"


def _fitting(pod: str) -> str:
    if not 0 < len(pod) <= LONGEST_POD:
        raise ValueError(
            f"the name of runner Pod {pod!r} has {len(pod)} characters; with container jobs, 1 to {LONGEST_POD} are "
            f"possible: give the pool a name of at most {LONGEST_POOL} characters"
        )
    return pod


def _numbered(n: int, count: int) -> int:
    if not 0 <= n < count:
        raise ValueError(f"number {n} of a hook object is outside of 0 to {count - 1}")
    return n
