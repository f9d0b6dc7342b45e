"""Programs that generate load or simulate Ostler's environment. Each runs in a separate process."""
