"""The table of all lanes: for each lane the test that a locked row delays nothing else, or a reason why none is needed.

A lane is code that works through a queue, a page or a loop in one order, so that one wait delays the rest. `test_table`
compares this table with the task registry, the beat schedule, and the threads and loops of web and watch.
"""

from __future__ import annotations

from collections.abc import Mapping

SWEEP = "test_sweeps.test_sweep_repairs_another_subject_while_a_row_is_locked"
NO_DATABASE = "it never talks to Postgres"
ONE_ROW = "one message concerns one row, and the other threads of the worker take the other messages"
READS = "it only reads, and no row lock makes a read wait"

TASKS: Mapping[str, str] = {
    "dispatch": "test_tasks.test_dispatch_claims_another_job_while_a_row_is_locked",
    "reconcile": "test_tasks.test_reconcile_replaces_another_spent_pod_while_a_row_is_locked",
    "pools": "test_tasks.test_other_pools_are_mirrored_and_scaled_while_a_pool_is_locked",
    "autoscale": "test_tasks.test_other_pools_are_mirrored_and_scaled_while_a_pool_is_locked",
    "pods_changed": "test_tasks.test_watch_has_other_claims_checked_while_a_claim_is_locked",
    "epoch": "no row but its own is in its way, and one holder of that is what it must wait for",
    "stamp": ONE_ROW,
    "unstamp": ONE_ROW,
    "mint": ONE_ROW,
    "release": ONE_ROW,
    "retire": ONE_ROW,
    "pod_gone": ONE_ROW,
    "pod_executes": ONE_ROW,
    "poller_ended": ONE_ROW,
    "pod_events": ONE_ROW,
    "pool_changed": ONE_ROW,
    "ask_run": ONE_ROW,
    "check_runs": "it skips rows that are locked (`models.state.job_checks`), and writes no other column",
    "ask_owner": "it skips accounts that are locked",
    **dict.fromkeys(
        (
            "resume",
            "rematch",
            "stale_claims",
            "unused_runners",
            "missing_pods",
            "missing_stamps",
            "redelivery",
            "unresolved_jobs",
            "orphaned_stamps",
            "unresponsive_pods",
            "finished_jobs",
            "orphaned_runners",
            "orphaned_service_accounts",
            "prune",
            "unidentified_executions",
            "persistent_runners",
            "catch_up",
            "gates",
            "gone_nodes",
        ),
        SWEEP,
    ),
}
"""Tests by task, without the prefix `ostler.`"""

INTAKE = "test_web.test_intake_stores_other_webhooks_while_a_row_is_locked"
OFFERING = "test_web.test_offering_offers_other_pods_while_an_offer_is_locked"
DELIVERY = "test_web.test_delivery_hands_over_another_jit_while_claims_are_locked"
LISTENER = "test_web.test_listener_hears_while_the_row_of_a_dead_web_process_is_locked"

LOOPS: Mapping[str, str] = {
    # web
    "intake": INTAKE,
    "announcements": "an installation's webhook is rare and has a thread of its own; no job's webhook is behind it",
    "Offering.start": OFFERING,
    "offers": OFFERING,
    "database": DELIVERY,
    "delivery": DELIVERY,
    "listener": LISTENER,
    "publisher": NO_DATABASE,
    "cluster": NO_DATABASE,
    "fetch-keys": NO_DATABASE,
    "health": READS,
    "Kept.get": READS,
    "Shared.get": READS,
    "Streams.open": "it reads pages, and notes the use of tokens at most once a minute; no data path waits for it",
    "Polls._hold": "one for each held poll, which waits for its own client and its own claim",
    "api": "an operator's change waits for its own row; no data path uses these threads",
    "upstreams": "it writes down counts of calls; nothing waits for it, and a count that is not written is lost",
    "Server._listen_by_tls": "it reads the files of the certificate again, and no row",
    "Gate.start": NO_DATABASE,
    "Gate._accept": "one for each connection: its handshake",
    # watch
    "_Watch.run": NO_DATABASE,
    "Follower": NO_DATABASE,
    # worker
    "alive": NO_DATABASE,
    "kubernetes-events": NO_DATABASE,
    # sidecar of container jobs
    "exec-stdin": NO_DATABASE,
}
"""Tests by the name of a thread or of an asyncio task, or by the function or class that starts it."""

RUNNING: Mapping[str, str] = {
    "Offering._run": OFFERING,
    "_watch": LOOPS["Polls._hold"],
    "Kept._renew": READS,
}
"""Unnamed asyncio tasks of `LOOPS`, by the coroutine that they run."""
