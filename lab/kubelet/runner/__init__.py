"""Files that a real runner Pod's processes find in place of an installed actions/runner."""
