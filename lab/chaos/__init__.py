"""Chaos: real jobs through the whole system while its parts and its surroundings fail, and a verdict on the outcome.

Start it with `make chaos` or `ostler-lab chaos`. `plan` chooses the failures and their times by a seed, and `breaker`
causes them. Meanwhile `sampler` reads rows and Pods, and `laws` judges them. `run` joins these parts. `report` prints
the result.
"""
