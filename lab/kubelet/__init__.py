"""Kubelet of the lab. It "runs" the Pods of one namespace, a few as real processes and the others in one event loop.

It reports statuses as the real kubelet does and writes a journal, so that a run can be judged. It imports nothing of
Ostler. Of Ostler it knows only what a Pod knows: the answers of the dispatch endpoint.
"""
