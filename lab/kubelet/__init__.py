"""A kubelet for the lab: it "runs" the Pods of one namespace, a few as real processes and the rest in one event loop.

Reports statuses as the real one does and keeps a journal, so that a run can be judged. Imports nothing of Ostler:
what it knows of Ostler is what a Pod knows, the dispatch endpoint's answers.
"""
