"""Sweeps: their leases and ticks, the ledger of their repairs, and the queries for the rows to repair."""
