"""Benchmarks: cost and speed of Ostler, measured, never asserted, each figure beside its bound from the same run.

A subject is one module with a `run(recorder)`; loads come from processes of their own, memory and CPU from the
operating system. `python -m benchmarks --help` lists the subjects. Results are JSON in `results/`;
`docs/performance.md` is generated from them. `rest_api` stands alone and prints its figures.
"""
