"""Ostler: a control plane for warm runner Pods. Each queued CI job runs in exactly one, by default in a fresh one."""
