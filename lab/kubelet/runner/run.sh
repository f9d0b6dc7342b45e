#!/bin/sh
# Stands where actions/runner's run.sh stands: `run.sh --jitconfig <config>` runs one job of the lab's GitHub and ends.
set -eu
exec "${LAB_PYTHON:-python3}" -I -S "$(dirname "$0")/runner.py" "$@"
