"""The calls that Ostler makes: one module for each page of GitHub's REST documentation."""
