"""Every sentence of docs/security.md that promises a limit has an entry here, which names its tests.

A sentence is found by its beginning. A cell of a table begins with its row and column. Tests are named by their file
below `tests/`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from k8s_adapters.runners.identity import KEYS_FOR, REFETCH_EVERY, RETRY_EVERY, TokenVerifier
from ostler.settings import Settings
from ostler.timings import Timings
from web.edge.limits import BODY_WITHIN
from web.intake.webhooks import MOST_UNPROVEN
from web.runners.handover import REVIEW_WITHIN

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
PROMISE = re.compile(
    r"\b(?:at most|only|cannot|never|must not|nothing|nobody)\b|\bno(?: [\w`-]+){1,4}? (?:can|may)\b", re.IGNORECASE
)
"""Words of a sentence that must have a test."""

MIB = 1024 * 1024
LARGEST = Timings.model_fields["webhook_max_bytes"].default
REMEMBERED = inspect.signature(TokenVerifier).parameters["remembered"].default
PRINTED = (
    f"at most {LARGEST // MIB} MiB per body, {(LARGEST + MOST_UNPROVEN) // MIB} MiB of bodies that are being read",
    f"and {BODY_WITHIN:.0f} s to send a body",
    f"the queue of {Settings.model_fields['intake_queue'].default:,} webhooks",
    f"at most every {REFETCH_EVERY:.0f} s (every {RETRY_EVERY:.0f} s after a failed fetch)",
    f"for at most {KEYS_FOR / 60:.0f} more minutes",
    f"until they expire, at most {REMEMBERED:,} of them",
    f"for at most {REVIEW_WITHIN * 1000:.0f} ms in total",
)
"""Limits of the page, as the code sets them. The named tests of these sentences use smaller values."""


RBAC = "contract/chart/test_rbac.py::"
IN_RUNNERS = RBAC + "test_in_the_runners_namespace_exactly_these_verbs_are_allowed"
IN_CLUSTER = RBAC + "test_in_the_whole_cluster_exactly_these_verbs_are_allowed"
ELSEWHERE = RBAC + "test_nobody_may_do_anything_in_the_releases_own_namespace_or_in_another"
ACTS = "contract/chart/test_rbac_acts.py::"
HOOKS = "contract/chart/test_hook_rights.py::"
NO_POD = HOOKS + "test_runner_is_refused_a_pod_with"
NO_SECRET = HOOKS + "test_runner_is_refused_a_secret_with"
OWN_ROLE = HOOKS + "test_runner_has_the_rights_of_its_role_and_no_other"
OF_OTHERS = HOOKS + "test_runner_is_refused_the_objects_of_others"
NO_ROLE = HOOKS + "test_worker_is_refused_a_role_with"
NO_BINDING = HOOKS + "test_worker_is_refused_a_binding_with"
CREATION = "contract/chart/test_creation_policy.py::"
COLLECTOR = "contract/chart/test_admission_policy.py::"
LEVELS = "contract/chart/test_level_policy.py::"
UP_TO_LEVEL = LEVELS + "test_worker_creates_pods_up_to_the_level_of_their_pool"
PORTS = "contract/chart/test_web_ports.py::"
EGRESS = "integration/deploys/test_chart_policies.py::"
INTERNET = EGRESS + "test_busy_pods_reach_the_internet_and_nothing_else"
STAMPED = "node/test_chart_policies.py::test_stamp_ends_the_way_to_web_and_changes_nothing_else"
SHARED = "contract/chart/test_shared_workspace.py::"
SIDECAR = "unit/k8s_adapters/test_hook_sidecar.py::"
POD = "contract/k8s/test_runners.py::test_only_the_poller_has_the_token_and_nothing_may_gain_privileges"
LEAKS = "e2e/test_no_secret_leaks.py::test_no_secret_is_seen_where_it_does_not_belong"
BUILD = "node/test_builds.py::test_no_command_of_a_build_has_a_right_on_the_node"
NUMBERS = "unit/test_security_statements.py::test_numbers_of_the_page_are_those_of_the_code"
IDENTITY = "unit/k8s_adapters/test_identity.py::"
TOKENS = "integration/web/polls/test_tokens.py::"
DELIVERY = "integration/web/polls/test_delivery.py::"
OF_ITS_POD = DELIVERY + "test_a_claim_of_another_pod_is_not_delivered"
WEBHOOKS = "integration/web/test_webhooks.py::"
BODIES = "integration/web/test_bodies.py::"
TENANCY = "integration/tasks/test_tenancy.py::"
ACCESS = "integration/web/api/test_access.py::"
LIMITED = "integration/web/api/test_limited_tokens.py::"
SESSIONS = "integration/web/ui/test_sessions.py::"
FORMS = "integration/web/ui/test_forms.py::"
OPENID = "integration/web/ui/test_openid.py::"
PAGES = "integration/web/ui/test_pages.py::"
STREAMS = "integration/web/ui/test_streams.py::"
JITS = "integration/tasks/test_may_hold_jit.py::"
PERSISTENT = "integration/tasks/pools/test_persistent_runners.py::"
FAILURES = "integration/web/api/test_failures_of_others.py::"
BY_ACCOUNT = (
    LIMITED + "test_every_route_is_by_account_or_refuses_limited_tokens",
    LIMITED + "test_every_route_by_account_hides_another_account",
)

SHOWN: Mapping[str, tuple[str, ...]] = {
    # The model
    "The container `runner` therefore gets only one credential": (
        POD,
        "contract/k8s/test_pool_rules.py::test_a_pod_of_ours_is_admitted_under_the_restricted_level",
        "unit/k8s_adapters/test_persistent_pods.py::test_no_token_and_no_secret_reaches_the_runner",
    ),
    "`POST /webhooks/github` | protection": (
        WEBHOOKS + "test_a_delivery_without_the_right_signature_is_refused_counted_and_not_stored",
        WEBHOOKS + "test_too_large_body_is_refused_while_it_is_read_despite_its_content_length",
        BODIES + "test_bodies_that_are_read_at_once_have_one_budget_and_give_it_back",
        BODIES + "test_one_body_of_the_largest_kind_fits_whatever_else_is_read",
        BODIES + "test_a_body_that_does_not_come_in_time_is_408",
        NUMBERS,
        PORTS + "test_ingress_exposes_the_webhook_alone",
    ),
    "`/metrics`, `/readyz`, `/healthz` | protection": (
        PORTS + "test_no_service_contains_the_port_of_metrics",
        PORTS + "test_metrics_are_open_to_metrics_from_alone",
    ),
    "Flower | protection": (
        "e2e/test_flower.py::test_without_the_login_nothing_of_workers_and_tasks_is_shown",
        "e2e/test_flower.py::test_every_call_that_would_change_a_worker_or_a_task_is_refused",
    ),
    "container `runner` | protection": (
        POD,
        "node/test_pods.py::test_job_in_an_image_without_scripts_cannot_change_the_mounted_ones",
        "unit/rules/test_pod_template.py::test_what_would_weaken_the_split_is_refused_with_its_field",
    ),
    "one request at a time; a request with a body must not": (
        "security/test_one_request_at_a_time.py::test_second_request_beside_a_first_is_not_answered",
        "security/test_one_request_at_a_time.py::test_body_of_a_request_that_wants_an_upgrade_is_no_request",
    ),
    # Rights of each identity
    "the GitHub App | must not": (
        "unit/ostler/test_setup.py::test_a_manifest_is_private_and_asks_for_exactly_what_is_used",
        "unit/ostler/test_setup.py::test_every_endpoint_that_is_called_has_its_permission",
    ),
    "a runner Pod (its ServiceAccount) | must not": (ACTS + "test_a_runners_own_service_account_may_do_nothing",),
    "the sidecar `hooks` of a runner Pod in a pool with container jobs | must not": (
        OWN_ROLE,
        OF_OTHERS,
        HOOKS + "test_runner_is_refused_its_own_runner_pod",
        HOOKS + "test_runner_is_refused_roles_and_objects_of_other_namespaces",
    ),
    "a JIT (it contains the key of its runner) | must not": (OF_ITS_POD,),
    "a registration token, in pools with persistent runners | may": (
        "unit/k8s_adapters/test_persistent_pods.py::test_no_token_and_no_secret_reaches_the_runner",
        "unit/k8s_adapters/test_persistent_pods.py::test_overlay_that_would_reach_the_registration_token_is_refused",
    ),
    "a registration token, in pools with persistent runners | must not": (OF_ITS_POD, LEAKS),
    "`web` in the cluster | must not": (IN_RUNNERS, IN_CLUSTER, ELSEWHERE),
    "`worker` in the cluster | may": (
        IN_RUNNERS,
        IN_CLUSTER,
        "contract/chart/test_rights.py::test_chart_grants_more_rights_with_container_jobs",
        "contract/chart/test_rights.py::test_the_chart_grants_what_is_asked_about",
    ),
    "`worker` in the cluster | must not": (IN_RUNNERS, IN_CLUSTER, ELSEWHERE),
    "`watch` in the cluster | must not": (
        IN_RUNNERS,
        IN_CLUSTER,
        ELSEWHERE,
        "unit/ostler/test_settings.py::test_the_watch_needs_the_way_to_redis_and_no_other_secret",
        "contract/chart/test_values.py::test_each_process_is_given_the_secrets_that_the_readme_says",
    ),
    "`beat`, `flower` | must not": (
        RBAC + "test_beat_and_flower_have_no_right_at_all",
        "contract/chart/test_accepted.py::test_beat_and_flower_have_no_token_and_each_process_an_identity_of_its_own",
        "contract/chart/test_values.py::test_each_process_is_given_the_secrets_that_the_readme_says",
    ),
    "the migration (a hook of the chart) | must not": (
        IN_RUNNERS,
        IN_CLUSTER,
        "contract/chart/test_release.py::test_a_release_comes_grows_is_refused_goes_back_and_goes",
    ),
    "the Job `certificates`, if the chart is rendered without a cluster (GitOps) | must not": (
        "contract/chart/test_rendered_alone.py::test_the_job_has_no_right_to_any_other_object",
        "unit/k8s_adapters/test_polls_certificates.py::test_a_second_run_changes_nothing",
    ),
    "the uninstall (a hook of the chart) | must not": (
        IN_RUNNERS,
        IN_CLUSTER,
        "contract/chart/test_rights.py::test_rights_of_the_uninstall_exist_for_its_job_alone",
    ),
    # Pods that a worker may create
    "The worker's ServiceAccount can create a Pod": (
        CREATION + "test_a_worker_cannot_name_a_pod_after_another_service_account",
        CREATION + "test_a_worker_cannot_use_another_service_account",
        CREATION + "test_no_secret_gets_into_a_pod",
        CREATION + "test_no_volume_of_another_kind_gets_into_a_pod",
    ),
    "the Pod uses no Secret": (
        CREATION + "test_no_secret_gets_into_a_pod",
        CREATION + "test_no_volume_of_another_kind_gets_into_a_pod",
    ),
    "Image pull secrets are still allowed": (
        CREATION + "test_a_worker_creates_what_an_overlay_without_secrets_asks_for",
        ACTS + "test_a_runners_own_service_account_may_do_nothing",
    ),
    # Scripts of runner Pods
    "a job writes to the scripts in its container | result": (
        "node/test_pods.py::test_job_in_an_image_without_scripts_cannot_change_the_mounted_ones",
    ),
    "a stolen token of a worker | result": (
        IN_RUNNERS,
        "contract/chart/test_runner_scripts.py::test_scripts_of_others_are_not_used",
    ),
    # Roles that a worker may create
    "The worker's ServiceAccount can create a Role": (
        NO_ROLE,
        NO_BINDING,
        HOOKS + "test_worker_cannot_bind_a_cluster_role",
    ),
    "the Role contains the fixed rules": (NO_ROLE,),
    "This size must not exceed": (
        NO_ROLE,
        "contract/chart/test_hook_sizes.py::test_size_of_a_role_is_compared_with_the_default_of_its_pool",
    ),
    "The worker must not change a Role": (
        HOOKS + "test_worker_creates_the_role_and_binding_of_a_runner_and_changes_none",
        HOOKS + "test_worker_that_could_update_roles_is_refused_by_the_policy",
    ),
    "create Roles and RoleBindings | with container jobs": (NO_ROLE, NO_BINDING),
    # Container jobs
    "The chart gives the rights for this mode only": (
        IN_RUNNERS,
        "contract/chart/test_rights.py::test_the_chart_grants_what_is_asked_about",
    ),
    "Only the native sidecar `hooks` mounts a token": (
        SIDECAR + "test_token_of_the_api_server_is_in_the_sidecar_alone",
    ),
    "The job can use the sidecar only by its socket": (
        SIDECAR + "test_token_of_the_api_server_is_in_the_sidecar_alone",
        SIDECAR + "test_runner_can_connect_to_the_socket_but_not_replace_it",
        "unit/rules/test_pod_template.py::test_what_would_weaken_the_split_is_refused_with_its_field",
    ),
    "If a job reached the token in spite of this limit": (OWN_ROLE, OF_OTHERS),
    "It allows no list and no watch": (OWN_ROLE, OF_OTHERS),
    "RBAC cannot limit `create`": (
        NO_POD,
        NO_SECRET,
        HOOKS + "test_token_that_is_not_bound_to_the_pod_creates_nothing",
    ),
    "A hook Pod must not mount a token": (NO_POD, HOOKS + "test_policy_itself_refuses_what_belongs_to_the_node"),
    "The restart policy must be `Never`": (NO_POD,),
    "The grace period of a hook Pod is 300 seconds at most": (
        NO_POD,
        HOOKS + "test_runner_is_refused_a_longer_grace_period_of_a_deletion",
        HOOKS + "test_hook_pod_ends_within_300_seconds_of_its_deletion",
    ),
    "The sidecar has no right to patch or evict Pods": (OWN_ROLE,),
    "A hook Pod must not have a required podAntiAffinity": (NO_POD,),
    "The sidecar accepts only files and folders": (
        "unit/container_hooks/test_archives.py::test_only_files_and_folders_inside_are_plain",
        "unit/container_hooks/test_hostile_archives.py::test_tar_unpacks_only_what_the_filter_accepted",
    ),
    "Of the file commands, such as outputs, a step returns only": (
        "unit/container_hooks/test_script_step.py::test_hostile_archive_replaces_no_file_of_another_step",
    ),
    "the choice of the node: a hook Pod can select": (NO_POD,),
    "the same sidecar with a shared workspace | must not": (
        "unit/k8s_adapters/test_hook_rights.py::test_role_of_a_shared_workspace_has_rights_on_its_own_pod_only",
        SHARED + "test_runner_with_a_shared_workspace_creates_no_pods",
    ),
    "The Role then names only this Pod": (
        "unit/k8s_adapters/test_hook_rights.py::test_role_of_a_shared_workspace_has_rights_on_its_own_pod_only",
        SHARED + "test_worker_is_refused_another_role_of_a_shared_workspace",
    ),
    "A container can be added to the caller's own Pod only": (
        SHARED + "test_runner_adds_no_container_to_another_pod",
        SHARED + "test_patch_for_another_uid_changes_nothing",
    ),
    "It may mount only the work folder": (SHARED + "test_runner_is_refused_a_container_with",),
    "Services mount nothing": (SHARED + "test_service_with_the_workspace_is_refused",),
    "No container may share the processes": (SHARED + "test_runner_is_refused_a_container_with",),
    "A command can be executed in these containers only": (
        SHARED + "test_runner_executes_nothing_in_the_containers_of_ostler",
        SHARED + "test_runner_executes_commands_in_the_containers_of_its_job",
    ),
    # The network
    "A job therefore cannot reach the metadata service": (
        EGRESS + "test_busy_pods_reach_no_metadata_service_however_its_address_is_written",
        EGRESS + "test_busy_pods_reach_no_metadata_service_of_ipv6",
    ),
    "A job also cannot reach the Pods, Services": (INTERNET, STAMPED),
    "A job in a stamped Pod cannot reach": (INTERNET, STAMPED),
    "If `networkPolicies.webAddresses` contains": (EGRESS + "test_values_shape_what_busy_pods_reach",),
    "Only runner Pods, workers (for `ostler doctor`)": (PORTS + "test_ports_for_polls_are_open_to_these_peers_alone",),
    # Deletions refused to the garbage collector
    "The policy applies only in the namespaces of runners": (
        COLLECTOR + "test_another_namespace_is_nothing_to_the_policy",
        COLLECTOR + "test_what_is_no_runners_is_nothing_to_the_policy",
    ),
    "The policy fails closed": ("contract/chart/test_rights.py::test_every_admission_policy_fails_closed",),
    # Redis
    "The attacker cannot run code": (
        "unit/tasks/test_app.py::test_a_setting_that_something_else_changed_stops_the_process",
        "unit/tasks/test_app.py::test_registered_tasks_are_those_of_the_table",
        "security/test_redis_writer.py::test_worker_survives_every_entry_that_is_no_message",
    ),
    "The attacker cannot crash a worker": (
        "security/test_redis_writer.py::test_worker_survives_every_entry_that_is_no_message",
    ),
    "The attacker cannot control a worker": (
        "security/test_redis_writer.py::test_forged_control_messages_reach_no_worker",
    ),
    "`ostler-flower` | may": (
        "security/test_redis_users.py::test_flower_hears_events_and_writes_nothing",
        "security/test_redis_users.py::test_forbidden_commands_are_refused",
    ),
    "The users of beat, the watch and Flower must not": (
        "security/test_redis_users.py::test_forbidden_commands_are_refused",
    ),
    "A script can use only the commands and keys of beat": (
        "security/test_redis_users.py::test_script_of_beat_is_limited_to_its_commands_and_keys",
    ),
    # Pod tokens
    "The algorithm follows from the key and never": (
        IDENTITY + "test_no_forgery_is_accepted_and_each_is_refused_in_order",
        "contract/k8s/test_identity.py::test_a_token_signed_with_the_public_key_as_a_secret_is_rejected",
    ),
    "Ostler accepts only RSA and P-256 keys": (
        IDENTITY + "test_both_kinds_of_keys_that_clusters_use_are_understood",
        IDENTITY + "test_keys_of_other_kinds_are_not_accepted",
        IDENTITY + "test_no_forgery_is_accepted_and_each_is_refused_in_order",
    ),
    "If a token names an unknown key": (
        TOKENS + "test_polls_with_an_unknown_key_share_one_fetch_and_block_no_review_thread",
        TOKENS + "test_strangers_cannot_have_the_keys_fetched_more_often_than_allowed",
        "contract/k8s/test_identity.py::test_an_unknown_key_refetches_at_most_once_in_a_while",
        IDENTITY + "test_keys_that_are_away_at_the_start_are_asked_for_again_after_a_second",
        NUMBERS,
    ),
    "If the cluster withdraws a key while Pods poll": (
        IDENTITY + "test_a_withdrawn_key_is_trusted_no_more_also_for_tokens_that_are_remembered",
        TOKENS + "test_a_key_that_the_cluster_withdrew_lets_nobody_in_once_the_keys_are_old",
        NUMBERS,
    ),
    "Until a fetch shows that the key of a poll's token is unknown": (
        TOKENS + "test_an_unknown_key_is_401_when_the_cluster_says_so_and_503_when_it_says_nothing",
        TOKENS + "test_a_token_whose_key_cannot_be_had_is_503_and_good_later",
    ),
    "Ostler remembers verified tokens by their SHA-256": (
        IDENTITY + "test_no_more_tokens_are_remembered_than_allowed_and_the_oldest_goes",
        IDENTITY + "test_a_remembered_token_ends_with_its_expiry",
        NUMBERS,
    ),
    "A delivery waits for a free thread": (
        DELIVERY + "test_a_review_for_which_there_is_no_thread_is_waited_for_no_longer_than_allowed",
        DELIVERY + "test_a_review_that_hangs_is_waited_for_no_longer_than_allowed",
        NUMBERS,
    ),
    # Secrets
    "the App's private key | in transit": (
        "unit/github_adapters/test_auth.py::test_the_jwt_is_backdated_and_ends_within_ten_minutes",
        LEAKS,
    ),
    "JIT | in transit": (
        PORTS + "test_pods_poll_a_service_that_leads_to_the_port_for_polls_alone",
        "unit/poller/test_run.py::test_the_runner_starts_with_the_config_and_its_exit_code_is_kept",
        "unit/poller/test_run.py::test_the_config_is_gone_before_the_runner_starts",
    ),
    "encryption keys | in transit": (LEAKS,),
    "API tokens | at rest": (ACCESS + "test_a_token_is_stored_as_a_digest_only",),
    # Guarantees of the laws
    "A lost answer is repeated only to the same Pod": (
        OF_ITS_POD,
        "integration/web/polls/test_lifecycle.py::test_a_lost_reply_is_repeated_with_the_same_jit",
    ),
    "A Pod that might hold a JIT is deleted only": (
        JITS + "test_a_delivered_pod_goes_once_github_has_removed_its_runner_and_not_before",
        "integration/tasks/pools/test_claimed_meanwhile.py::test_a_pod_claimed_right_after_the_list_survives",
        "faults/test_kill_points.py::test_the_kills_broke_no_law",
    ),
    "A flood of webhooks can fill the queue": (
        WEBHOOKS + "test_when_too_many_wait_the_next_is_sent_away_and_those_that_wait_are_served",
        "integration/concurrency/test_races.py::test_eight_matchers_fill_a_budget_of_two_exactly",
        NUMBERS,
    ),
    "Only the owner of the App is admitted": (
        "integration/tasks/test_access.py::test_the_owner_of_the_app_is_let_in_without_an_operator",
        "integration/tasks/test_access.py::test_a_strangers_job_is_held_and_its_account_has_no_access",
    ),
    "A row that cannot be processed is set aside": (WEBHOOKS + "test_one_bad_row_among_50_blocks_nobody",),
    # Use of pools
    "Ostler makes runners for such jobs only in pools": (
        TENANCY + "test_a_job_of_a_fork_is_held_until_a_pool_says_that_it_may_come",
    ),
    "A pool with retained volumes serves private repositories only": (
        TENANCY + "test_the_jobs_of_a_public_repository_go_to_the_pool_without_retained_volumes",
        TENANCY + "test_the_job_of_a_fork_of_a_private_repository_gets_no_retained_volume",
    ),
    "Ostler registers its runners, and persistent runners": (
        TENANCY + "test_a_runner_with_retained_volumes_joins_no_group_for_public_repositories",
        PERSISTENT + "test_no_runner_joins_a_group_for_public_repositories_without_allowed_forks",
    ),
    "Only values of the chart raise the level": (
        UP_TO_LEVEL,
        "unit/rules/test_pod_security.py::test_pool_gets_its_level_only_up_to_the_allowed_level",
        "node/test_builds.py::test_pool_that_the_chart_does_not_name_gets_no_pod",
    ),
    "A person who may create RunnerPools cannot raise it": (
        UP_TO_LEVEL,
        "node/test_builds.py::test_pool_that_the_chart_does_not_name_gets_no_pod",
    ),
    "Each Pod has the level of its pool at most": (
        UP_TO_LEVEL,
        LEVELS + "test_job_creates_pods_up_to_the_level_of_its_own_pool",
    ),
    "The level in a RunnerPool cannot be changed": (
        "contract/k8s/test_pools.py::test_level_of_a_pool_cannot_be_changed",
    ),
    "No Pod may use the network, the processes": (LEVELS + "test_pod_of_no_level_uses_its_node",),
    "the token of the poller | `dind`": (
        POD,
        SIDECAR + "test_token_of_the_api_server_is_in_the_sidecar_alone",
        SIDECAR + "test_tokens_of_a_pod_are_valid_for_an_hour",
        ACTS + "test_a_runners_own_service_account_may_do_nothing",
    ),
    "other processes of the Pod | `buildkit`": (BUILD,),
    "files and devices of the node | `buildkit`": (BUILD,),
    # API tokens
    "The description and the pages contain only": (ACCESS + "test_description_and_pages_need_no_database",),
    "One check runs before all routes": (
        ACCESS + "test_nothing_answers_without_a_token_and_what_does_not_exist_answers_the_same",
        ACCESS + "test_only_the_description_and_its_pages_are_open",
    ),
    "The token cannot be shown again": (
        "integration/cli/test_operator.py::test_a_token_is_shown_once_works_and_can_be_taken_back",
        ACCESS + "test_a_token_is_stored_as_a_digest_only",
    ),
    "With `--account LOGIN`": BY_ACCOUNT,
    "If several accounts used a Pod": (LIMITED + "test_pod_that_others_had_too_shows_the_tokens_claims_alone",),
    "Such a token cannot write": (LIMITED + "test_limited_token_changes_nothing",),
    "Only routes that restrict their answer": BY_ACCOUNT,
    "The holder cannot see how a runner": (
        FAILURES + "test_limited_token_reads_not_how_a_pod_ended_that_a_job_of_another_account_had",
        FAILURES + "test_limited_token_reads_no_words_of_the_failure_of_another_account",
    ),
    "The key id identifies the row in `api_tokens`": (ACCESS + "test_a_token_is_stored_as_a_digest_only",),
    "A slow password hash is not needed": (ACCESS + "test_secret_of_a_token_has_256_bits",),
    "The log has at most one line a second": (
        ACCESS + "test_refused_tokens_are_logged_without_them_and_not_once_each",
        "unit/web/test_refused_log.py::test_flood_of_refused_requests_logs_a_line_a_second_with_a_count",
    ),
    "Last use is written at most once a minute": (ACCESS + "test_the_last_use_is_written_at_most_once_a_minute",),
    # Sessions of the dashboard
    "The cookie is encrypted with a key derived": (
        SESSIONS + "test_changed_cookie_is_no_session",
        SESSIONS + "test_login_with_a_token_begins_a_session_of_twelve_hours",
    ),
    "A stream stays open for at most 10 seconds": (
        STREAMS + "test_stream_ends_when_its_token_changes",
        STREAMS + "test_stream_ends_with_its_session",
        STREAMS + "test_stream_whose_session_cannot_be_checked_ends",
    ),
    "A process serves at most 200 streams": (
        STREAMS + "test_page_loads_again_by_itself_if_there_is_no_room_for_its_stream",
        STREAMS + "test_streams_hold_no_connection_of_postgres",
    ),
    "A stream never holds a connection": (STREAMS + "test_streams_hold_no_connection_of_postgres",),
    "To open the link changes nothing": (SESSIONS + "test_link_logs_in_once",),
    "An ID token is accepted only if": (
        OPENID + "test_forged_id_token_begins_no_session",
        OPENID + "test_honest_answer_begins_a_session",
    ),
    "A session lasts at most 12 hours": (SESSIONS + "test_session_ends_after_twelve_hours",),
    "A session of a token with `--account`": (
        PAGES + "test_overview_shows_only_the_accounts_of_the_token",
        PAGES + "test_jobs_of_other_accounts_are_not_shown",
        PAGES + "test_job_of_another_account_looks_like_no_job",
        PAGES + "test_pod_or_account_of_others_looks_like_none",
        PAGES + "test_page_of_the_whole_fleet_says_why_it_is_refused",
    ),
    "A form can log in or log out": (SESSIONS + "test_form_of_another_site_changes_nothing",),
    "A form that changes the fleet": (
        FORMS + "test_token_without_write_sees_no_buttons_and_gets_403",
        FORMS + "test_form_of_another_session_changes_nothing",
        FORMS + "test_form_without_the_value_of_its_session_changes_nothing",
    ),
    "Every answer has a content security policy": (
        PAGES + "test_every_answer_has_the_headers",
        PAGES + "test_pages_have_no_inline_code_and_load_nothing_from_other_hosts",
    ),
    "A page must not be cached": (PAGES + "test_every_answer_has_the_headers",),
    "An error names the invalid field": (
        "integration/web/api/test_mistakes.py::test_error_does_not_repeat_the_value",
        ACCESS + "test_what_fails_within_is_a_problem_that_tells_nothing",
    ),
}

ADVICE = "advice to the reader"
DEFINITION = "a definition, or a fact about Kubernetes or GitHub"

NO_PROMISE: Mapping[str, str] = {
    "Use plain HTTP only if": ADVICE,
    "`ostler restore` | must not": DEFINITION,
    "Do not store anything in the runners' namespace": ADVICE,
    "Without the admission policy, give nobody": ADVICE,
    "Never delete it while the workers": ADVICE,
    "This resource exists in Roles only": DEFINITION,
    "No policy can count objects": DEFINITION,
    "Taint the nodes that jobs must not use": ADVICE,
    "RBAC cannot restrict `create` to a name": DEFINITION,
    "They have an effect only if": DEFINITION,
    "With compose, only your cluster restricts": DEFINITION,
    "Give them pools with different labels": ADVICE,
    "Only the runner group can prevent this": DEFINITION,
    "Allow public repositories only in the group": ADVICE,
    "Give that pool labels that no other pool has": ADVICE,
    "Allow only repositories whose authors you trust": ADVICE,
    "a limit of process ids | attack or fault": DEFINITION,
    "separate nodes | attack or fault": ADVICE,
    "By default, only the limit of the whole node": DEFINITION,
    "A job at the limit continues": DEFINITION,
    "A logout deletes the cookie in the browser": ADVICE,
}
"""Sentences that promise nothing of the product."""


def plain(text: str) -> str:
    """Return Markdown without links, bold type and line breaks."""
    return " ".join(re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("**", "").split())


def cells(row: str) -> list[str]:
    return [plain(cell) for cell in row.strip().strip("|").split("|")]


def units(page: str) -> Iterator[str]:
    """Yield the sentences of a page. A cell of a table begins with its row and column."""
    header: list[str] | None = None
    for block in re.split(r"\n\s*\n|\n(?=\s*- |\|)", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)):
        if not block.startswith("|"):
            header = None
            if not block.startswith("#"):
                yield from re.split(r"(?<=[.?])\)? (?=[A-Z`(])", plain(block.strip().removeprefix("- ")))
        elif header is None:
            header = cells(block)
        elif not block.startswith("| ---"):
            first, *others = cells(block)
            yield first
            for column, cell in zip(header[1:], others, strict=True):
                if re.search(r"\w", cell):
                    yield f"{first} | {column}: {cell}"


def promises(page: str) -> list[str]:
    return [each for each in units(page) if PROMISE.search(each)]


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def problems(page: str, shown: Mapping[str, tuple[str, ...]], no_promise: Mapping[str, str]) -> list[str]:
    """Return the sentences without exactly one entry, and the entries without exactly one sentence or without tests."""
    sentences, entries = promises(page), [*shown, *no_promise]
    found = [f"no entry: {each}" for each in sentences if not any(each.startswith(entry) for entry in entries)]
    counts = {entry: sum(each.startswith(entry) for each in sentences) for entry in entries}
    found += [f"{count} sentences: {entry}" for entry, count in counts.items() if count != 1]
    for entry, tests in shown.items():
        found += [f"no test: {entry}"] * (not tests)
        for path, _, name in (each.partition("::") for each in tests):
            if not name.startswith("test_") or not (TESTS / path).is_file() or name not in names_of_tests(path):
                found.append(f"no such test: {path}::{name}")
    return found


def test_every_promise_of_the_security_page_names_its_tests() -> None:
    assert problems(PAGE.read_text(), SHOWN, NO_PROMISE) == []


OWN = "unit/test_security_statements.py::test_every_promise_of_the_security_page_names_its_tests"
SAMPLE = "A job\ncannot write. It runs.\n\n| a | must not |\n| --- | --- |\n| **web** | list [it](x.md) |\n"


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ({"A job cannot write.": (OWN,), "web | must not: list it": (OWN,)}, []),
        ({"A job cannot": (OWN,)}, ["no entry: web | must not: list it"]),
        ({"A job": (OWN,), "web": (OWN,), "It": (OWN,)}, ["0 sentences: It"]),
        ({"A job": (), "web": (f"{OWN}_x",)}, ["no test: A job", f"no such test: {OWN}_x"]),
        ({"A job": ("unit/test_x.py::test_x",), "web": (OWN,)}, ["no such test: unit/test_x.py::test_x"]),
    ],
)
def test_missing_entry_sentence_or_test_is_found(shown: Mapping[str, tuple[str, ...]], found: list[str]) -> None:
    assert problems(SAMPLE, shown, {}) == found


@pytest.mark.parametrize("number", PRINTED)
def test_numbers_of_the_page_are_those_of_the_code(number: str) -> None:
    assert plain(PAGE.read_text()).count(number) == 1
