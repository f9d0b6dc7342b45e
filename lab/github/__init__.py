"""A stateful GitHub for one laptop: App tokens, runners, jobs and webhooks, including their faults.

It runs as a process of its own (`ostler-lab github`), has its state in memory and imports nothing of Ostler. The
verdict on a run can therefore rest on its observations (`--log`).
"""
