"""Laboratory that runs, and breaks, the whole system on one machine: the distribution `ostler-lab`.

No package of Ostler imports it.
"""
