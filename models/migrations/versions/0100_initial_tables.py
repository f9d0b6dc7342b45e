"""All tables as of the first release.

Every later change of a table is a migration of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("login", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("budget_count", sa.BigInteger(), nullable=False),
        sa.Column("budget_vcpu", sa.BigInteger(), nullable=False, comment="millicores"),
        sa.Column("budget_memory", sa.BigInteger(), nullable=False, comment="MiB"),
        sa.Column("priority_rules", postgresql.JSONB(astext_type=sa.Text()), server_default="[]", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "access",
            sa.Text(),
            server_default="allowed",
            nullable=False,
            comment="whether its jobs are served: allowed, held",
        ),
        sa.Column(
            "access_asked_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when GitHub said that the App is another account's; NULL while held: to be asked",
        ),
        sa.CheckConstraint("access IN ('allowed', 'held')", name=op.f("ck_accounts_access_known")),
        sa.CheckConstraint(
            "budget_count >= 0 AND budget_vcpu >= 0 AND budget_memory >= 0",
            name=op.f("ck_accounts_budget_not_negative"),
        ),
        sa.CheckConstraint("weight > 0", name=op.f("ck_accounts_weight_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
    )
    op.create_index("ix_accounts_login_id", "accounts", [sa.literal_column("lower(login)"), "id"], unique=False)
    op.create_index(
        "ix_accounts_unasked",
        "accounts",
        ["id"],
        unique=False,
        postgresql_where=sa.text("access = 'held' AND access_asked_at IS NULL"),
    )
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False, comment="the public part of the token; finds the row"),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the secret part"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "accounts",
            sa.ARRAY(sa.BigInteger()),
            nullable=True,
            comment="GitHub's ids of the accounts it may see; NULL: all",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True, comment="refreshed at most once a minute"),
        sa.CheckConstraint("accounts IS NULL OR scopes = ARRAY['read']", name=op.f("ck_api_tokens_limited_reads")),
        sa.CheckConstraint(
            "scopes <@ ARRAY['read', 'write'] AND cardinality(scopes) > 0", name=op.f("ck_api_tokens_scopes_known")
        ),
        sa.CheckConstraint("accounts IS NULL OR cardinality(accounts) > 0", name=op.f("ck_api_tokens_accounts_named")),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_api_tokens_digest_is_sha256")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("key_id", name=op.f("uq_api_tokens_key_id")),
    )
    op.create_table(
        "backoffs",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column(
            "key",
            sa.Text(),
            nullable=False,
            comment="an id, a repository's full name, installation/group, or of a limit installation/quota",
        ),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("probed_at", sa.DateTime(timezone=True), nullable=True, comment="when a job was last let past it"),
        sa.Column("probe_job_id", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('installation', 'account', 'repository', 'runner_group', 'limit')",
            name=op.f("ck_backoffs_kind_known"),
        ),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_backoffs")),
    )
    op.create_table(
        "catch_up_quotas",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("calls", sa.Double(), nullable=False, comment="that may still be made, as of `at`"),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("quota", sa.BigInteger(), nullable=False, comment="what GitHub allows it an hour"),
        sa.PrimaryKeyConstraint("installation_id", name=op.f("pk_catch_up_quotas")),
    )
    op.create_table(
        "catch_up_repositories",
        sa.Column("repository", sa.Text(), nullable=False, comment="owner/name"),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, comment="the last tick that was to look at it"),
        sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True, comment="the last tick that came to it"),
        sa.Column(
            "checked_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when the last check that came to its end began",
        ),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=True, comment="when the look under way began"),
        sa.Column("next_run", sa.BigInteger(), nullable=True, comment="of the look under way: older runs were seen"),
        sa.Column("failures", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "lists",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="{}",
            nullable=False,
            comment="runs by status as last listed, with the etag",
        ),
        sa.Column(
            "settled",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="{}",
            nullable=False,
            comment="etag of the jobs of each run that needed nothing",
        ),
        sa.PrimaryKeyConstraint("repository", name=op.f("pk_catch_up_repositories")),
    )
    op.create_table(
        "claim_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("transition", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("latency_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claim_events")),
    )
    op.create_index("ix_claim_events_at", "claim_events", ["at"], unique=False)
    op.create_index("ix_claim_events_claim_id_id", "claim_events", ["claim_id", "id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("guid", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_received_at", "deliveries", ["received_at"], unique=False)
    op.create_table(
        "epochs",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("database", sa.Text(), nullable=False, comment="made with the row, put back with a backup"),
        sa.Column("number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "confirmed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it was last seen as new as the cluster",
        ),
        sa.Column("trusted_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "trusted_server",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when the server that was trusted was started",
        ),
        sa.Column(
            "older_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it was noticed that this is an earlier state",
        ),
        sa.Column("why", sa.Text(), nullable=True, comment="of older_since, or why it could not be confirmed"),
        sa.Column(
            "lost_from",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="what came between these two may be missing here",
        ),
        sa.Column("lost_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_epochs_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_epochs")),
    )
    op.create_table(
        "gates",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True, comment="NULL: it is open"),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=True, comment="when it last opened"),
        sa.Column("why", sa.Text(), nullable=True, comment="of its last closing"),
        sa.Column("healthy_checks", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "needs",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="good checks that open it, drawn when it closed",
        ),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("errors", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("upstream", name=op.f("pk_gates")),
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("transition", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("latency_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
    )
    op.create_index("ix_job_events_at", "job_events", ["at"], unique=False)
    op.create_index("ix_job_events_job_id_id", "job_events", ["job_id", "id"], unique=False)
    op.create_table(
        "pod_lists",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False, comment="its name, as in the label of its Pods"),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, comment="when the first page was asked for"),
        sa.Column("whole_at", sa.DateTime(timezone=True), nullable=False, comment="when the last page was there"),
        sa.Column(
            "pods", sa.LargeBinary(), nullable=False, comment="deflated JSON: names of fields, and a row per Pod"
        ),
        sa.PrimaryKeyConstraint("namespace", "pool", name=op.f("pk_pod_lists")),
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "pools",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column(
            "labels", sa.ARRAY(sa.Text()), nullable=False, comment="as written in the pool; matching ignores case"
        ),
        sa.Column("runner_group_id", sa.BigInteger(), nullable=False, comment="0: by its name"),
        sa.Column("runner_group_name", sa.Text(), nullable=True),
        sa.Column(
            "allow_forks",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="jobs of forks of public repositories too",
        ),
        sa.Column("vcpu", sa.BigInteger(), nullable=False, comment="millicores of one Pod"),
        sa.Column("memory", sa.BigInteger(), nullable=False, comment="MiB of one Pod"),
        sa.Column("replicas", sa.BigInteger(), nullable=False),
        sa.Column(
            "replicas_writer", sa.Text(), nullable=True, comment="who else writes spec.replicas of an autoscaled pool"
        ),
        sa.Column(
            "generation", sa.BigInteger(), server_default="0", nullable=False, comment="of the spec that is mirrored"
        ),
        sa.Column("paused", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("autoscaled", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("min_warm", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("max_replicas", sa.BigInteger(), server_default="10", nullable=False),
        sa.Column("scale_down_delay", sa.Double(), server_default="600", nullable=False, comment="seconds"),
        sa.Column("max_unavailable_percent", sa.BigInteger(), server_default="10", nullable=False),
        sa.Column("max_surge", sa.BigInteger(), nullable=True, comment="Pods above replicas in a roll; NULL: default"),
        sa.Column("start_timeout", sa.Double(), server_default="300", nullable=False, comment="seconds"),
        sa.Column(
            "max_concurrent",
            sa.BigInteger(),
            server_default="100",
            nullable=False,
            comment="Pods that may be starting at a time",
        ),
        sa.Column("drain_timeout", sa.Double(), nullable=True, comment="seconds"),
        sa.Column(
            "max_job_seconds", sa.Double(), nullable=True, comment="a job that takes longer is ended; NULL: no limit"
        ),
        sa.Column("allowed_accounts", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("allowed_repositories", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("routing_priority", sa.BigInteger(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column(
            "template_at", sa.DateTime(timezone=True), nullable=True, comment="when the row got `recorded_template`"
        ),
        sa.Column(
            "recorded_template",
            sa.Text(),
            nullable=True,
            comment="stands for two minutes; a version without such holds wrote another template_hash",
        ),
        sa.Column("draining", sa.Boolean(), server_default="false", nullable=False),
        sa.Column(
            "wants_pods",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="the matcher left jobs without Pods: a poll wakes it",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "routed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="what decides which jobs it serves changed last",
        ),
        sa.Column(
            "rerouting_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="its routing changed: no job is matched until those routed before were moved",
        ),
        sa.Column(
            "rerouting_jobs",
            sa.ARRAY(sa.BigInteger()),
            server_default="{}",
            nullable=False,
            comment="jobs that were locked when the others were moved: not matched until they are moved too",
        ),
        sa.Column(
            "scaled_up_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="by the autoscaler, which waits before it shrinks it",
        ),
        sa.Column("scaled_down_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "scaling",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="the autoscaler's last decision, in numbers",
        ),
        sa.Column("typical_pods", sa.BigInteger(), nullable=True, comment="95th percentile of the last hour's minutes"),
        sa.Column("typical_at", sa.DateTime(timezone=True), nullable=True, comment="when that was counted"),
        sa.Column(
            "draining_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="the deletion of its object was asked for",
        ),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_starts", sa.BigInteger(), server_default="0", nullable=False, comment="rounds in a row"),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True, comment="the last was counted"),
        sa.Column("create_after", sa.DateTime(timezone=True), nullable=True, comment="no Pod before this"),
        sa.Column("start_trouble", sa.Text(), nullable=True, comment="why no Pod comes to poll"),
        sa.Column("start_detail", sa.Text(), nullable=True, comment="the same in words"),
        sa.Column("tick_at", sa.DateTime(timezone=True), nullable=True, comment="its budget of retirements began"),
        sa.Column("tick_retired", sa.BigInteger(), server_default="0", nullable=False, comment="of that budget"),
        sa.Column("problem", sa.Text(), nullable=True, comment="why its spec cannot be used"),
        sa.Column(
            "status", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment="as written to the object last"
        ),
        sa.Column("status_at", sa.DateTime(timezone=True), nullable=True, comment="when that was"),
        sa.Column(
            "listed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="the last list that left no missing Pod unmarked",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pools")),
        sa.UniqueConstraint("uid", name=op.f("uq_pools_uid")),
    )
    op.create_index("ix_pools_name_id", "pools", ["name", "id"], unique=False)
    op.create_index(
        "uq_pools_live_name",
        "pools",
        ["namespace", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "redeliveries",
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("delivery_id", sa.BigInteger(), nullable=False),
        sa.Column("first_failed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asks", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "installation_id",
            sa.BigInteger(),
            nullable=True,
            comment="installations take turns; NULL: none, or not known",
        ),
        sa.Column(
            "malformed",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="web refused its payload: sent again it would be refused again",
        ),
        sa.PrimaryKeyConstraint("guid", name=op.f("pk_redeliveries")),
    )
    op.create_index("ix_redeliveries_due_at", "redeliveries", ["due_at"], unique=False)
    op.create_index("ix_redeliveries_first_failed_at", "redeliveries", ["first_failed_at"], unique=False)
    op.create_table(
        "redelivery_progress",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("checkpoint", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scan_began", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scan_cursor", sa.Text(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True, comment="GitHub asked to wait until then"),
        sa.CheckConstraint("id = 1", name=op.f("ck_redelivery_progress_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_redelivery_progress")),
    )
    op.create_table(
        "repairs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("witnesses", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("kills", sa.Boolean(), nullable=False),
        sa.Column("dry", sa.Boolean(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=True),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("runner_name", sa.Text(), nullable=True),
        sa.Column(
            "subject", sa.Text(), nullable=True, comment="what is none of these: a webhook's GUID, a ServiceAccount"
        ),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("expects", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column(
            "verify_by", sa.DateTime(timezone=True), nullable=False, comment="failed when it was not verified by then"
        ),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "expects IN ('nothing', 'claim_moved', 'claim_ended', 'stamped', 'unstamped', 'pod_gone', 'accepted', "
            "'own')",
            name=op.f("ck_repairs_expects_known"),
        ),
        sa.CheckConstraint(
            "outcome IN ('begun', 'done', 'verified', 'failed', 'moved_on', 'dry')",
            name=op.f("ck_repairs_outcome_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repairs")),
    )
    op.create_index("ix_repairs_at", "repairs", ["at"], unique=False)
    op.create_index(
        "ix_repairs_claim_id_id",
        "repairs",
        ["claim_id", "id"],
        unique=False,
        postgresql_where=sa.text("claim_id IS NOT NULL"),
    )
    op.create_index("ix_repairs_dry_id", "repairs", ["id"], unique=False, postgresql_where=sa.text("dry"))
    op.create_index(
        "ix_repairs_job_id_id",
        "repairs",
        ["job_id", "id"],
        unique=False,
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )
    op.create_index(
        "ix_repairs_open",
        "repairs",
        ["sweep", "id"],
        unique=False,
        postgresql_where=sa.text("outcome IN ('begun', 'done')"),
    )
    op.create_index("ix_repairs_outcome_id", "repairs", ["outcome", "id"], unique=False)
    op.create_index(
        "ix_repairs_pod_uid_id",
        "repairs",
        ["pod_uid", "id"],
        unique=False,
        postgresql_where=sa.text("pod_uid IS NOT NULL"),
    )
    op.create_index("ix_repairs_run_id_id", "repairs", ["run_id", "id"], unique=False)
    op.create_index("ix_repairs_sweep_id", "repairs", ["sweep", "id"], unique=False)
    op.create_table(
        "run_origins",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("origin", sa.Text(), nullable=True, comment="here or fork; NULL: not known yet"),
        sa.Column(
            "failures",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="questions in a row without an answer",
        ),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ask_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("origin IN ('here', 'fork')", name=op.f("ck_run_origins_origin_known")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_origins")),
    )
    op.create_table(
        "runner_failures",
        sa.Column("claim_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("account_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True, comment="of container `runner`"),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column(
            "cleared_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when a runner of the pool or the account executed",
        ),
        sa.PrimaryKeyConstraint("claim_id", name=op.f("pk_runner_failures")),
    )
    op.create_index(op.f("ix_runner_failures_at"), "runner_failures", ["at"], unique=False)
    op.create_index(op.f("ix_runner_failures_job_id"), "runner_failures", ["job_id"], unique=False)
    op.create_index(
        op.f("ix_runner_failures_pool_id_at"),
        "runner_failures",
        ["pool_id", "at"],
        unique=False,
        postgresql_where=sa.text("cleared_at IS NULL"),
    )
    op.create_table(
        "runner_group_lists",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="0: all groups"),
        sa.Column("groups", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("installation_id", "repository_id", name=op.f("pk_runner_group_lists")),
    )
    op.create_table(
        "runner_lists",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True, comment="when its first page was asked for"),
        sa.Column("used_for", sa.Double(), server_default="0", nullable=False, comment="seconds since taken_at"),
        sa.Column("runners", sa.LargeBinary(), nullable=True, comment="deflated JSON: [id, name, online, busy]"),
        sa.Column(
            "versions",
            sa.LargeBinary(),
            nullable=True,
            comment="deflated JSON: the ids of the runners that have connected, by version",
        ),
        sa.Column("reader", sa.Text(), nullable=True, comment="who takes the next list"),
        sa.Column("reading_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("installation_id", "scope", name=op.f("pk_runner_lists")),
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "runner_versions",
        sa.Column("pool_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True, comment="when GitHub begins to refuse it"),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=True, comment="when GitHub was asked for that"),
        sa.PrimaryKeyConstraint("pool_id", "version", name=op.f("pk_runner_versions")),
    )
    op.create_table(
        "stalls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("found_by", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("served_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "cause IN ('message_lost', 'pod_gone', 'pod_spent', 'runner_unused', 'webhook_lost')",
            name=op.f("ck_stalls_cause_known"),
        ),
        sa.CheckConstraint(
            "found_by IN ('resume', 'watch', 'lists', 'unused_runners', 'redelivery', 'catch_up')",
            name=op.f("ck_stalls_found_by_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stalls")),
    )
    op.create_index("ix_stalls_served_at", "stalls", ["served_at"], unique=False)
    op.create_table(
        "sweep_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=False),
        sa.Column("lease_no", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=True, comment="names the request of an operator who waits for it"),
        sa.Column("dry", sa.Boolean(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("listed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("found", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("repaired", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("overflow", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("moved_on", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("skipped", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweep_runs")),
    )
    op.create_index(
        "ix_sweep_runs_asked", "sweep_runs", ["asked"], unique=False, postgresql_where=sa.text("asked IS NOT NULL")
    )
    op.create_index("ix_sweep_runs_began_at", "sweep_runs", ["began_at"], unique=False)
    op.create_index(
        "ix_sweep_runs_open", "sweep_runs", ["sweep"], unique=False, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_index("ix_sweep_runs_sweep_id", "sweep_runs", ["sweep", "id"], unique=False)
    op.create_table(
        "sweeps",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "lease_no",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="raised by each taking; fences what came before",
        ),
        sa.Column("lease_holder", sa.Text(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "rerun_requested", sa.Boolean(), server_default="false", nullable=False, comment="asked for while it ran"
        ),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("paused_why", sa.Text(), nullable=True),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=True, comment="its last tick, dry ones apart"),
        sa.Column(
            "succeeded_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="end of the last tick that counts as having run",
        ),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(leased_until IS NULL) = (lease_holder IS NULL)", name=op.f("ck_sweeps_lease_has_its_holder")
        ),
        sa.CheckConstraint("(paused_at IS NULL) = (paused_by IS NULL)", name=op.f("ck_sweeps_pause_has_its_author")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sweeps")),
    )
    op.create_table(
        "upstream_calls",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("errors <= calls", name=op.f("ck_upstream_calls_errors_are_calls")),
        sa.PrimaryKeyConstraint("upstream", "since", name=op.f("pk_upstream_calls")),
    )
    op.create_table(
        "web_instances",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_instances")),
    )
    op.create_table(
        "installations",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "event_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="GitHub's time of the last `installation` event that said that it works; NULL: known by jobs alone",
        ),
        sa.Column(
            "left_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="GitHub does not know it (404 on its token, or `deleted`)",
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_installations_account_id_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installations")),
    )
    op.create_index("ix_installations_account_id_id", "installations", ["account_id", "id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.BigInteger(), nullable=False),
        sa.Column("installation_id", sa.BigInteger(), nullable=True),
        sa.Column("repository", sa.Text(), nullable=False, comment="owner/name"),
        sa.Column("repository_id", sa.BigInteger(), nullable=True, comment="GitHub's; NULL: queued before it was kept"),
        sa.Column("public", sa.Boolean(), nullable=True, comment="its repository is; NULL: queued before it was kept"),
        sa.Column(
            "scope", sa.Text(), nullable=False, comment="where its runner is registered: orgs/LOGIN or repos/OWNER/NAME"
        ),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("run_attempt", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=True),
        sa.Column("head_branch", sa.Text(), nullable=True),
        sa.Column("labels", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("pool_id", sa.BigInteger(), nullable=True),
        sa.Column("hold_reason", sa.Text(), nullable=True),
        sa.Column("hold_detail", sa.Text(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "ask_after", sa.DateTime(timezone=True), nullable=True, comment="`unresolved_jobs` asks GitHub no earlier"
        ),
        sa.Column(
            "failures",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="mints in a row that GitHub refused",
        ),
        sa.Column("priority", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False, comment="its age; a release keeps it"),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'queued', 'claimed', 'running', 'completed')", name=op.f("ck_jobs_state_known")
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_jobs_account_id_accounts")),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_jobs_pool_id_pools")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_account_id_id", "jobs", ["account_id", "id"], unique=False)
    op.create_index(
        "ix_jobs_account_pool_queued",
        "jobs",
        ["account_id", "pool_id", "queued_at", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued' AND hold_reason IS NULL"),
    )
    op.create_index(
        "ix_jobs_completed_at", "jobs", ["completed_at"], unique=False, postgresql_where=sa.text("state = 'completed'")
    )
    op.create_index(
        "ix_jobs_dispatchable",
        "jobs",
        ["pool_id", "account_id", sa.literal_column("priority DESC"), "queued_at", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued' AND hold_reason IS NULL"),
    )
    op.create_index(
        "ix_jobs_held", "jobs", ["hold_reason", "id"], unique=False, postgresql_where=sa.text("hold_reason IS NOT NULL")
    )
    op.create_index(
        "ix_jobs_held_id", "jobs", ["id"], unique=False, postgresql_where=sa.text("hold_reason IS NOT NULL")
    )
    op.create_index(
        "ix_jobs_open", "jobs", ["state", "changed_at"], unique=False, postgresql_where=sa.text("state <> 'completed'")
    )
    op.create_index(
        "ix_jobs_open_state_id", "jobs", ["state", "id"], unique=False, postgresql_where=sa.text("state <> 'completed'")
    )
    op.create_index("ix_jobs_pool_id_id", "jobs", ["pool_id", "id"], unique=False)
    op.create_index(
        "ix_jobs_queued_account",
        "jobs",
        ["account_id", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index("ix_jobs_repository_id", "jobs", ["repository", "id"], unique=False)
    op.create_index(
        "ix_jobs_run_asked",
        "jobs",
        ["run_id"],
        unique=False,
        postgresql_where=sa.text("hold_reason = 'origin_unknown'"),
    )
    op.create_table(
        "offers",
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("web_id", sa.Text(), nullable=False),
        sa.Column("poll_id", sa.Text(), nullable=False, comment="of the newest poll; only its holder may deliver"),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_offers_pool_id_pools")),
        sa.PrimaryKeyConstraint("pod_uid", name=op.f("pk_offers")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("ix_offers_pool_id_until", "offers", ["pool_id", "until"], unique=False)
    op.create_table(
        "runner_pods",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=True),
        sa.Column(
            "attempt_id",
            sa.Text(),
            nullable=False,
            comment="written on the Pod, so that a repeated create knows its own",
        ),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column(
            "stamp_value",
            sa.Text(),
            server_default="0.0",
            nullable=False,
            comment="last known value of the claim annotation, a compare-and-swap register",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_polled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("polled_at", sa.DateTime(timezone=True), nullable=True, comment="refreshed at most once a minute"),
        sa.Column(
            "terminal_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it was first seen over: poller and runner have terminated",
        ),
        sa.Column("poller_exit_code", sa.BigInteger(), nullable=True),
        sa.Column(
            "poller_ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its poller was first seen to have ended",
        ),
        sa.Column("runner_exit_code", sa.BigInteger(), nullable=True),
        sa.Column("exit_reason", sa.Text(), nullable=True),
        sa.Column(
            "deletion_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its deletion was asked for, as the watch saw it; only shown",
        ),
        sa.Column(
            "events_read_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when Kubernetes was asked for Events about its end",
        ),
        sa.Column(
            "event_reason",
            sa.Text(),
            nullable=True,
            comment="of the Event that says best who ended it; only shown, as the next two",
        ),
        sa.Column("event_by", sa.Text(), nullable=True, comment="the component that wrote the Event"),
        sa.Column("event_message", sa.Text(), nullable=True, comment="its message: one line, 200 characters at most"),
        sa.Column(
            "gone_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="a GET or a delete proved that the UID is gone",
        ),
        sa.Column(
            "node_gone_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="its node was found gone; NULL again when it is back",
        ),
        sa.Column(
            "charged_account_id",
            sa.BigInteger(),
            nullable=True,
            comment="whose JIT it was given: it counts in the budget of this account until it ends or its node is gone",
        ),
        sa.Column("charged_vcpu", sa.BigInteger(), nullable=True, comment="millicores, those of the delivered claim"),
        sa.Column("charged_memory", sa.BigInteger(), nullable=True, comment="MiB, those of the delivered claim"),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_runner_pods_pool_id_pools")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runner_pods")),
        sa.UniqueConstraint("uid", name=op.f("uq_runner_pods_uid")),
    )
    op.create_index(
        "ix_runner_pods_charged",
        "runner_pods",
        ["charged_account_id"],
        unique=False,
        postgresql_include=["id", "charged_vcpu", "charged_memory"],
        postgresql_where=sa.text(
            "charged_account_id IS NOT NULL AND gone_at IS NULL AND terminal_at IS NULL AND node_gone_at IS NULL"
        ),
    )
    op.create_index(
        "ix_runner_pods_events_read_at",
        "runner_pods",
        ["events_read_at"],
        unique=False,
        postgresql_where=sa.text("events_read_at IS NOT NULL"),
    )
    op.create_index(
        "ix_runner_pods_gone_at",
        "runner_pods",
        ["gone_at"],
        unique=False,
        postgresql_where=sa.text("gone_at IS NOT NULL"),
    )
    op.create_index("ix_runner_pods_name", "runner_pods", ["namespace", "name"], unique=False)
    op.create_index(
        "ix_runner_pods_node_gone",
        "runner_pods",
        ["id"],
        unique=False,
        postgresql_where=sa.text("node_gone_at IS NOT NULL AND gone_at IS NULL"),
    )
    op.create_index(
        "ix_runner_pods_pool_open",
        "runner_pods",
        ["pool_id"],
        unique=False,
        postgresql_where=sa.text("gone_at IS NULL"),
    )
    op.create_index(
        "uq_runner_pods_present_name",
        "runner_pods",
        ["namespace", "name"],
        unique=True,
        postgresql_where=sa.text("gone_at IS NULL OR uid IS NULL"),
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True, comment="NULL for a spare and a retirement"),
        sa.Column("runner_pod_id", sa.BigInteger(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("account_id", sa.BigInteger(), nullable=True),
        sa.Column("installation_id", sa.BigInteger(), nullable=True),
        sa.Column("scope", sa.Text(), nullable=True),
        sa.Column(
            "repository_id",
            sa.BigInteger(),
            nullable=True,
            comment="GitHub's, of the repository that the scope is; NULL: of an organisation, or not known",
        ),
        sa.Column("vcpu", sa.BigInteger(), nullable=False, comment="millicores, as of the insert"),
        sa.Column("memory", sa.BigInteger(), nullable=False, comment="MiB, as of the insert"),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stamp", sa.Text(), server_default="none", nullable=False),
        sa.Column(
            "stamp_no",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="raised by each write of the annotation",
        ),
        sa.Column(
            "chain_no",
            sa.BigInteger(),
            server_default="1",
            nullable=False,
            comment="raised by resume; a late older chain does nothing",
        ),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when resume takes it; NULL while nothing is due",
        ),
        sa.Column(
            "stamp_after",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="no stamp is put on before; NULL: any time",
        ),
        sa.Column("runner_name", sa.Text(), nullable=True, comment="named by the commit of its mint"),
        sa.Column("runner_id", sa.BigInteger(), nullable=True),
        sa.Column("jit", sa.LargeBinary(), nullable=True, comment="encrypted; erased when it executes or ends"),
        sa.Column("release_reason", sa.Text(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("minted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("spare_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "runner_absent_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="first of two checks that did not find its runner",
        ),
        sa.Column(
            "runner_idle_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="first of two checks, after its job, that found its runner absent or idle",
        ),
        sa.Column(
            "force_deleted_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="its Pod may be deleted without its kubelet",
        ),
        sa.Column(
            "stalled_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="only a repair moves it on since then; none once it did",
        ),
        sa.Column("stalled_cause", sa.Text(), nullable=True),
        sa.Column("stalled_found_by", sa.Text(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name=op.f("ck_claims_ended_has_its_time")),
        sa.CheckConstraint(
            "end_reason IN ('completed', 'released', 'pod_gone', 'pod_spent', 'never_started', 'retired')",
            name=op.f("ck_claims_end_reason_known"),
        ),
        sa.CheckConstraint(
            "purpose = 'job' OR (job_id IS NULL AND account_id IS NULL)", name=op.f("ck_claims_retire_is_nobodys")
        ),
        sa.CheckConstraint("purpose IN ('job', 'retire')", name=op.f("ck_claims_purpose_known")),
        sa.CheckConstraint("stamp IN ('none', 'on', 'gave_up', 'removing', 'off')", name=op.f("ck_claims_stamp_known")),
        sa.CheckConstraint("state <> 'executing' OR jit IS NULL", name=op.f("ck_claims_jit_erased_at_execution")),
        sa.CheckConstraint(
            "state IN ('claimed', 'minted', 'delivered', 'executing', 'releasing', 'ended')",
            name=op.f("ck_claims_state_known"),
        ),
        sa.CheckConstraint("ended_at IS NULL OR jit IS NULL", name=op.f("ck_claims_jit_erased_at_end")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_claims_account_id_accounts")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_claims_job_id_jobs")),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_claims_pool_id_pools")),
        sa.ForeignKeyConstraint(
            ["runner_pod_id"], ["runner_pods.id"], name=op.f("fk_claims_runner_pod_id_runner_pods")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
    )
    op.create_index(
        "ix_claims_account_id_id",
        "claims",
        ["account_id", "id"],
        unique=False,
        postgresql_where=sa.text("account_id IS NOT NULL"),
    )
    op.create_index(
        "ix_claims_ended_at", "claims", ["ended_at"], unique=False, postgresql_where=sa.text("ended_at IS NOT NULL")
    )
    op.create_index(
        "ix_claims_job_id_id", "claims", ["job_id", "id"], unique=False, postgresql_where=sa.text("job_id IS NOT NULL")
    )
    op.create_index(
        "ix_claims_live_account", "claims", ["account_id"], unique=False, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_index(
        "ix_claims_live_due", "claims", ["due_at"], unique=False, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_index("ix_claims_live_id", "claims", ["id"], unique=False, postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index(
        "ix_claims_live_state",
        "claims",
        ["state", "pool_id"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index("ix_claims_pod_uid_id", "claims", ["pod_uid", "id"], unique=False)
    op.create_index("ix_claims_pool_id_id", "claims", ["pool_id", "id"], unique=False)
    op.create_index(
        "ix_claims_runner_name",
        "claims",
        ["runner_name"],
        unique=False,
        postgresql_where=sa.text("runner_name IS NOT NULL"),
    )
    op.create_index("ix_claims_runner_pod_id", "claims", ["runner_pod_id"], unique=False)
    op.create_index(
        "uq_claims_live_job",
        "claims",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL AND job_id IS NOT NULL"),
    )
    op.create_index(
        "uq_claims_live_pod", "claims", ["pod_uid"], unique=True, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "executions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("runner_name", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("account_id", sa.BigInteger(), nullable=False),
        sa.Column("vcpu", sa.BigInteger(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_executions_account_id_accounts")),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"], name=op.f("fk_executions_claim_id_claims")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_executions_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_executions")),
        sa.UniqueConstraint("job_id", name=op.f("uq_executions_job_id")),
    )
    op.create_index("ix_executions_claim_id", "executions", ["claim_id"], unique=False)
    op.create_index(
        "ix_executions_open_account",
        "executions",
        ["account_id"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "mint_attempts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=False),
        sa.Column("runner_name", sa.Text(), nullable=False),
        sa.Column("runner_id", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('open', 'minted', 'refused', 'removed')", name=op.f("ck_mint_attempts_outcome_known")
        ),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"], name=op.f("fk_mint_attempts_claim_id_claims")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mint_attempts")),
        sa.UniqueConstraint("runner_name", name=op.f("uq_mint_attempts_runner_name")),
    )
    op.create_index("ix_mint_attempts_claim_id", "mint_attempts", ["claim_id"], unique=False)
    op.create_index(
        "uq_mint_attempts_one_open",
        "mint_attempts",
        ["claim_id"],
        unique=True,
        postgresql_where=sa.text("outcome = 'open'"),
    )
    op.execute("INSERT INTO epochs (id, database) VALUES (1, gen_random_uuid())")


def downgrade() -> None:
    for table in (
        "mint_attempts",
        "executions",
        "claims",
        "runner_pods",
        "offers",
        "jobs",
        "installations",
        "web_instances",
        "upstream_calls",
        "sweeps",
        "sweep_runs",
        "stalls",
        "runner_versions",
        "runner_lists",
        "runner_group_lists",
        "runner_failures",
        "run_origins",
        "repairs",
        "redelivery_progress",
        "redeliveries",
        "pools",
        "pod_lists",
        "job_events",
        "gates",
        "epochs",
        "deliveries",
        "claim_events",
        "catch_up_repositories",
        "catch_up_quotas",
        "backoffs",
        "api_tokens",
        "accounts",
    ):
        op.drop_table(table)
