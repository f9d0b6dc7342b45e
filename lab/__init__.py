"""Laboratory that runs, and breaks, the whole system on one machine: the distribution `ostler-lab`.

Nothing of Ostler imports it.
"""
