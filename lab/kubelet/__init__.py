"""Kubelet of the lab. It runs a few Pods of one namespace as real processes and simulates the others.

It reports statuses as the real kubelet does and writes a journal, so that a run can be judged. It imports nothing of
Ostler. It uses only those parts of Ostler that a runner Pod contains: the answers of the dispatch endpoint, the scripts
of the poller with their exit codes, and the sidecar `hooks` as a process.
"""
