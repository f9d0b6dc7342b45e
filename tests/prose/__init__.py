"""Prose linter: idioms that make a reader start a sentence twice."""
