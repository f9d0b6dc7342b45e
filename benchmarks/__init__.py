"""Benchmarks of the cost and speed of Ostler. Many figures are compared with a bound from the same run.

A subject is a module with a function `run(recorder)`. Separate processes generate the load, and memory and CPU are read
from the operating system. `python -m benchmarks --help` lists the subjects. Results are JSON files in `results/`, and
`docs/performance.md` is generated from them. `rest_api` is separate and prints its figures.
"""
