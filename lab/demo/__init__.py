"""The demo: the whole system on this machine, with real jobs, and a verdict from the logs of the lab alone."""
