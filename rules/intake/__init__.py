"""Intake: binding of jobs that GitHub started to claims."""
