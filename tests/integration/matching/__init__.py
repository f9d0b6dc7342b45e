"""The matcher against real tables: the order of jobs, and the choice of Pods."""
