"""Routing: origins of runs, runner groups, and jobs whose pool changed."""
