"""The calls that Ostler makes, grouped by the pages of GitHub's REST documentation."""
