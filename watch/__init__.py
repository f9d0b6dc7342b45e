"""`ostler watch`: a process that watches runner Pods and pools, and wakes workers when a Pod or a pool changes.

The process makes no decision and stores nothing in Postgres. It sends hints (law L6), and each task verifies a hint
with a GET request, a list or a row. Without this process, the sweeps and the regular reconciles find the same changes
later.
"""
