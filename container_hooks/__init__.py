"""Container hooks: execute the four commands of a container job for the runner of one Pod."""
