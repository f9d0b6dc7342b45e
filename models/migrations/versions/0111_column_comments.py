"""Comments of columns in plain English, for operators who read the schema in psql.

`COMMENT ON` blocks no reader and no writer. A downgrade keeps the comments, because they are true of the previous
release too.
"""

from __future__ import annotations

from alembic import op

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None

COMMENTS = {
    "accounts": {
        "budget_vcpu": "most vCPU that the account may use at once, in millicores",
        "budget_memory": "most memory that the account may use at once, in MiB",
        "access": "whether jobs of the account are served: allowed or held",
        "access_asked_at": "time at which GitHub said that another account owns the App; NULL while held: to be asked",
    },
    "api_tokens": {
        "key_id": "public part of the token, which identifies the row",
        "digest": "SHA-256 of the secret part of the token",
        "accounts": "GitHub ids of the accounts that the caller may see; NULL: all accounts",
        "last_used_at": "time of the last use, updated at most once a minute",
    },
    "backoffs": {
        "key": "installation id, account id, repository name, or installation/group; of a limit: installation/quota",
        "probed_at": "time of the last probe or of the last failure, whichever is later",
    },
    "catch_up_quotas": {
        "calls": "calls that the sweep may still make, as of `at`",
        "quota": "calls per hour that GitHub allows the installation",
    },
    "catch_up_repositories": {
        "repository": "owner/name",
        "due_at": "time of the last tick that had to check the repository",
        "tried_at": "time at which the last check began or stopped",
        "checked_at": "start of the last complete check",
        "began_at": "start of the check in progress; NULL: no check is in progress",
        "next_run": "next run of the check in progress; NULL: the first run",
        "lists": "last list of runs by status, with its etag; the next page of an unfinished job list",
        "settled": "etag of the job list of each run in which no job needed a repair",
    },
    "claims": {
        "job_id": "job of the claim; NULL: spare, registration or retirement",
        "repository_id": "GitHub id of the repository scope; NULL: organisation scope, or unknown",
        "vcpu": "millicores of the Pod when the claim was inserted",
        "memory": "MiB of the Pod when the claim was inserted",
        "stamp_no": "second part of the annotation of the Pod; increased before each write of the annotation",
        "chain_no": "number of the current chain of steps; steps of an older chain change nothing",
        "due_at": "time at which sweep `resume` repeats the next step; NULL: no step is due",
        "stamp_after": "earliest time of the next stamp; NULL: no limit",
        "runner_name": "name of the registered runner, written when its mint is committed",
        "jit": "encrypted JIT or registration token; erased at the execution or end, or when GitHub shows the runner",
        "runner_absent_at": "time of the first check that did not find the runner; NULL: found later, or not checked",
        "runner_idle_at": "time of the first check after the job that found the runner absent or idle; NULL: none did",
        "runner_seen": "state of the persistent runner in the last list of GitHub: online, busy or offline",
        "force_deleted_at": "time since which the Pod may be deleted without its kubelet; NULL: it must not be",
        "stalled_at": "time since which only a repair can continue the claim; NULL after the repair",
    },
    "epochs": {
        "database": "random id of this database; a backup contains the same id",
        "confirmed_at": "time of the last check that found Postgres as new as the cluster",
        "trusted_server": "start time of the Postgres server that passed the last check",
        "older_since": "time at which Postgres was found older than the cluster; NULL: never, or a restore ended this",
        "why": "reason of `older_since`, or why the last check could not be made",
        "lost_from": "events from this time to `lost_until` might be missing; NULL with `lost_until`: no known start",
    },
    "gates": {
        "closed_at": "time at which the gate tripped; NULL: the gate is ok",
        "opened_at": "time of the last recovery of the gate",
        "why": "reason of the last trip",
        "needs": "healthy evaluations in a row until the recovery, chosen when the gate trips",
    },
    "installations": {
        "event_at": "time of the last `installation` event that showed it works; NULL: known by webhooks of jobs only",
        "left_at": "time at which GitHub no longer knew it (404 for its token, or event `deleted`); NULL: it is known",
    },
    "jobs": {
        "repository": "owner/name",
        "repository_id": "GitHub id of the repository; NULL: queued before Ostler stored it",
        "public": "whether the repository is public; NULL: queued before Ostler stored it",
        "scope": "scope in which the runner is registered: orgs/LOGIN or repos/OWNER/NAME",
        "ask_after": "time before which sweep `unresolved_jobs` does not ask GitHub about the job; NULL: no limit",
        "failures": "number of holds after a refused mint or after failed runners; never reset",
        "queued_at": "time at which the job was queued; a release does not change it",
    },
    "offers": {
        "poll_id": "id of the newest poll of the Pod; only this poll can receive the JIT",
    },
    "pod_lists": {
        "pool": "name of the pool, as in the label of its Pods",
        "taken_at": "time at which the first page was requested",
        "whole_at": "time at which the last page had arrived",
        "pods": "deflated JSON: the names of the fields, and one row per Pod",
    },
    "pools": {
        "labels": "labels as in the spec; the matching ignores case",
        "runner_group_id": "id of the runner group; 0: `runner_group_name` selects the group",
        "allow_forks": "whether the pool serves jobs from forks of public repositories",
        "pod_security": "Pod Security level that the spec requests",
        "workload": "kind of the object that owns a runner Pod: Pod (none) or StatefulSet",
        "volume_reclaim": "spec.volumes.reclaim; NULL: the runners have no volumes",
        "volume_shape": "digest of the volume claims in spec.volumes; NULL: the runners have no volumes",
        "registers_in": "scope of the persistent runners; NULL: each runner executes one job",
        "max_runner_age": "greatest age of a persistent runner, in seconds; NULL: no limit",
        "vcpu": "millicores of one Pod",
        "memory": "MiB of one Pod",
        "replicas_writer": "other field manager that sets spec.replicas of an autoscaled pool; NULL: none",
        "generation": "generation of the spec that was read last, usable or not",
        "scale_down_delay": "seconds after a scale-up during which the pool is not scaled down",
        "max_surge": "most Pods above `replicas` during a rollout; NULL: default",
        "start_timeout": "seconds that a Pod may take to its first poll",
        "max_concurrent": "most Pods that may be starting at the same time",
        "drain_timeout": "seconds of a drain after which the status of the pool reports it as late; NULL: no limit",
        "max_job_seconds": "seconds after which a job is ended; NULL: no limit",
        "template_at": "time at which `recorded_template` was written",
        "recorded_template": "template hash that is kept for two minutes; no effect if `template_hash` differs",
        "wants_pods": "whether the matcher left jobs without Pods, so that the next poll wakes the pool",
        "routed_at": "time of the last change of the routing, which decides the jobs that the pool serves",
        "rerouting_since": "time of a routing change; no job is matched until queued jobs are taken out; NULL: done",
        "rerouting_jobs": "jobs that were locked when the others were taken out; not matched until they are out too",
        "scaled_up_at": "time of the last scale-up by the autoscaler; `scale_down_delay` begins here",
        "scaling": "last decision of the autoscaler, with its numbers",
        "typical_pods": "usual load: 95th percentile of the peaks of the last 60 minutes, in Pods with a job",
        "typical_at": "time at which `typical_pods` was computed",
        "draining_since": "time of the request to delete the object of the pool; NULL: none was seen",
        "failed_starts": "counted failed starts in a row",
        "failed_at": "time of the last counted failed start",
        "create_after": "time before which no Pod is created; NULL: no limit",
        "start_trouble": "reason why no Pod starts; NULL: none is known",
        "start_detail": "explanation of `start_trouble`",
        "tick_at": "start of the period of the budget of retirements",
        "tick_retired": "retirements in the period that began at `tick_at`",
        "failing_calls": "failed writes to the API server in the last runs, with their number, times and messages",
        "problem": "reason why the spec cannot be used; NULL: it can be used",
        "status": "status that was written to the object last",
        "status_at": "time at which `status` was written to the object",
        "status_checked_at": "time at which a reconcile last found `status` to be current",
        "listed_at": "start of the last Pod list whose missing Pods were all handled",
    },
    "redeliveries": {
        "installation_id": "installation of the webhook, so that installations take turns; NULL: none, or unknown",
        "malformed": "whether web refused the payload; the next request then waits 12 hours",
    },
    "redelivery_progress": {
        "not_before": "time before which the sweep does not ask GitHub, as GitHub requested; NULL: no limit",
    },
    "repairs": {
        "subject": "subject that is no Pod, claim, job or runner, for example the GUID of a webhook",
        "verify_by": "time after which an unverified repair counts as failed",
    },
    "run_origins": {
        "origin": "origin of the run: here or fork; NULL: unknown",
        "failures": "failed questions in a row",
    },
    "runner_failures": {
        "exit_code": "exit code of container `runner`; NULL: unknown",
        "cleared_at": "time at which a later execution cleared the failure; NULL: it still counts for the brake",
    },
    "runner_group_lists": {
        "repository_id": "repository whose groups are listed; 0: all groups of the installation",
    },
    "runner_lists": {
        "taken_at": "time at which the first page was requested; NULL: no list is stored",
        "used_for": "seconds after `taken_at` during which the list may be used",
        "runners": "deflated JSON: [id, name, online, busy] of each runner",
        "versions": "deflated JSON: for each version, the ids of the runners that have connected",
        "reader": "process that has reserved the next list; NULL: none",
    },
    "runner_pods": {
        "attempt_id": "id in an annotation of the Pod, so that a repeated creation recognises its own Pod",
        "stamp_value": "last known value of the claim annotation, which each write compares and replaces",
        "polled_at": "time of the last poll, updated at most once a minute",
        "gated_at": "time at which the Pod last had a scheduling gate, updated at most twice a minute; NULL: never",
        "terminal_at": "time at which the Pod was first seen over: poller and runner have terminated",
        "poller_ended_at": "time at which the container `poller` was first seen terminated",
        "deletion_at": "time of the deletion request, as the watch saw it; explains the end, decides no deletion",
        "deleted_first": "whether the deletion request came before the end of poller and runner; NULL: unknown",
        "deletion_sent_at": "time of the first deletion request by Ostler; NULL: none, or another client was first",
        "events_read_at": "time at which the Events about the end of the Pod were requested",
        "event_reason": "reason of the Event that best explains the end of the Pod",
        "event_by": "component that wrote the Event of `event_reason`",
        "event_message": "message of the Event of `event_reason`: one line, at most 200 characters",
        "gone_at": "time at which the Pod was found gone, or given up because it never appeared; NULL: neither",
        "node_gone_at": "time at which the node of the Pod was found gone; NULL: it was not, or is back",
        "charged_account_id": "account of the delivered JIT, charged until the Pod is over or gone or its node is gone",
        "charged_vcpu": "millicores of the delivered claim",
        "charged_memory": "MiB of the delivered claim",
    },
    "runner_versions": {
        "ends_at": "time at which GitHub begins to refuse the version; NULL: unknown",
        "asked_at": "time of the last answer about `ends_at`; earlier while an answer is missing, to ask again soon",
    },
    "sweep_runs": {
        "asked": "id of the request of an operator who waits for this tick; NULL: none",
    },
    "sweeps": {
        "lease_no": "increased by each tick that takes the lease; writes with an older number are refused",
        "rerun_requested": "whether another tick was requested while the last one ran",
        "began_at": "start of the last tick that was no dry run",
        "succeeded_at": "end of the last tick with outcome done or unfinished",
    },
}


def upgrade() -> None:
    for table, comments in COMMENTS.items():
        for column, comment in comments.items():
            op.alter_column(table, column, comment=comment)


def downgrade() -> None:
    pass
