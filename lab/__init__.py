"""Laboratory that runs, and breaks, the whole system on one machine. Only the command imports it."""
