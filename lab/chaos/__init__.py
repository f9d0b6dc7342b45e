"""Chaos: real jobs through the whole system while its parts fail, and a verdict on the outcome.

`make chaos` and `ostler-lab chaos` run it. `plan` derives the faults and their times from a seed, and `breaker` causes
them. Meanwhile `sampler` reads rows and Pods, and `laws` judges what was read. `run` combines them, and `report` prints
the result.
"""
