"""Sweeps: their runs, their ledger of repairs, and the queries that select their work."""
