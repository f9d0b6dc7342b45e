"""The demo: the whole system on this machine, real jobs through it, and a verdict from the lab's logs alone."""
