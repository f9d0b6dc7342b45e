"""A stateful GitHub for one machine: App tokens, runners, jobs and webhooks, with the faults of the real one.

It runs as its own process (`ostler-lab github`) and keeps its state in memory. It imports nothing of Ostler, so that a
verdict on a run can rely on its log (`--log`).
"""
