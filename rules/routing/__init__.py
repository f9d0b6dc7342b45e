"""Routing: labels, pools, accounts, runner groups, and the holds of a job that must wait."""
