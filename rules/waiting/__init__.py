"""Explanations of a job's state for a person: the facts, the steps of a job, and the step that the job waits at."""
