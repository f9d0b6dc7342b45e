"""Routing: accounts and their usage, installations, runner groups, origins of runs."""
