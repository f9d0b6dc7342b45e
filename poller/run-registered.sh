#!/bin/sh
# Entry of container `runner` of a Pod with a persistent runner: wait until container `register` has registered the
# runner, then become the runner.
#
# The script has no token and makes no network call. If the runner was not registered, it exits 0 without a runner.
#
#   OSTLER_JIT_DIR        memory volume shared with container `register`
#   OSTLER_RUNNER_HOME    where the runner is installed; default /home/runner
#   OSTLER_WAIT_SECONDS   seconds between two checks for the registration; default 0.5
#
# The exit code is the exit code of the runner.
set -eu

registration=${OSTLER_JIT_DIR:?is not set}
home=${OSTLER_RUNNER_HOME:-/home/runner}

# A shell that is process 1 of a container ignores SIGTERM unless it has a handler.
trap 'exit 143' TERM
trap 'exit 130' INT

until [ -e "$registration/registered" ]; do
    if [ -e "$registration/not-registered" ]; then
        echo 'runner: not registered'
        exit 0
    fi
    sleep "${OSTLER_WAIT_SECONDS:-0.5}"
done
for file in .runner .credentials .credentials_rsaparams; do
    cp "$registration/$file" "$home/$file"
    rm -f "$registration/$file"
done
echo 'runner: starting'
cd "$home"
# With this variable, a runner whose version GitHub refuses as too old exits with 7 instead of 0.
export ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1
exec "$home/run.sh"
