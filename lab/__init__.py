"""A whole system on one machine, and what breaks it: the distribution `ostler-lab`. Nothing of Ostler imports it."""
