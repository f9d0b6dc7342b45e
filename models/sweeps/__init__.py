"""Sweeps: their runs, their ledger of repairs, and what each selects."""
