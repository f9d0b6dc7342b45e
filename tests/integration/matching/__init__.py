"""The matcher against real tables: whose job comes next, and on which Pod."""
