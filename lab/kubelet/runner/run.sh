#!/bin/sh
# This script replaces the run.sh of actions/runner: it runs one job of the lab's GitHub and ends.
# Its JIT config is in ACTIONS_RUNNER_INPUT_JITCONFIG.
set -eu
exec "${LAB_PYTHON:-python3}" -I -S "$(dirname "$0")/runner.py" "$@"
