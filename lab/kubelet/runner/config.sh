#!/bin/sh
# This script replaces the config.sh of actions/runner: it registers a persistent runner with the lab's GitHub.
# Its token is in ACTIONS_RUNNER_INPUT_TOKEN.
set -eu
exec "${LAB_PYTHON:-python3}" -I -S "$(dirname "$0")/config.py" "$@"
