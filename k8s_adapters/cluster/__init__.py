"""The cluster around the runners: nodes, Leases, watches, rights, admission policies, probes and rollouts."""
