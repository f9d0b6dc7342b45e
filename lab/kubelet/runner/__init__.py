"""Files that a real runner Pod's processes find where actions/runner is installed."""
