"""Figures of the source itself: its weight, its bodies, its branching, and the packages that one job crosses."""
