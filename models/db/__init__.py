"""Postgres itself: engine, statements, channel, transitions, epoch and migrations."""
