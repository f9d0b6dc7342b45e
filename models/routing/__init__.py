"""Routing: accounts and their usage, installations, runner groups, and origins of runs."""
