"""Chaos: real jobs through the whole system while everything around and in it fails, and a verdict on the outcome.

`make chaos`, or `ostler-lab chaos`. `plan` says what breaks and when, by a seed; `breaker` does it; `sampler` looks
at rows and Pods meanwhile and `laws` judges what it saw; `run` puts them together; `report` tells.
"""
