"""`ostler watch`: a process that watches runner Pods and pools, and wakes workers when a Pod or a pool changes.

The process makes no decision and stores nothing. The process sends hints (law L6), and each task verifies a hint with a
GET request or a row. Without this process, the sweeps find the same changes later.
"""
