"""The cluster around the runners: nodes, Leases, watches, Events, rights, admission policies, probes and rollouts."""
