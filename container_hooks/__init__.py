"""Container jobs: the four hook commands of actions/runner, executed in Pods of their own (`docs/decisions/0084`)."""
