"""Health, metrics and the watchdog of the sweeps."""
