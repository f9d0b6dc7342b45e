"""A stateful GitHub for one laptop: App tokens, runners, jobs and webhooks, at their worst.

It runs as its own process (`ostler-lab github`), keeps its state in memory and imports nothing of
Ostler, so that a verdict on a run can rest on its observations (`--log`).
"""
