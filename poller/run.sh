#!/bin/sh
# Entry of container `runner`: wait for the poller's verdict, then become the runner.
#
# Holds no token and talks to nobody before there is work. Exit 0 without a runner when the poller had none (no-work);
# otherwise the exit code is the runner's own. The JIT config is gone from the shared directory before the runner starts.
#
#   OSTLER_JIT_DIR        memory volume shared with container `poller`
#   OSTLER_RUNNER_HOME    where the runner is installed; default /home/runner
#   OSTLER_WAIT_SECONDS   between two looks; default 0.5
set -eu
set +x    # a trace would print the config

jit_dir=${OSTLER_JIT_DIR:?is not set}
home=${OSTLER_RUNNER_HOME:-/home/runner}

# As process 1 of a container a shell without a handler ignores SIGTERM.
trap 'exit 143' TERM
trap 'exit 130' INT

while [ ! -e "$jit_dir/jit" ]; do
    if [ -e "$jit_dir/no-work" ]; then
        echo 'runner: no work'
        exit 0
    fi
    sleep "${OSTLER_WAIT_SECONDS:-0.5}"
done

config=$(cat "$jit_dir/jit")
rm -f "$jit_dir/jit"
if [ -z "$config" ]; then
    echo 'runner: the JIT config is empty' >&2
    exit 1
fi
echo 'runner: starting'
cd "$home"
# A runner that GitHub refuses because its version is too old is to end with 7. Without this it ends with 0, like one that
# did its work. Updates stay on: for a JIT runner no option and no variable turns them off, so an image that is a release
# behind replaces its runner before the job.
export ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1
# The config too: a command line can be read by every process of the node and is kept by audit logs of executions. The
# runner takes these variables out of its environment, so that no step of the job inherits them.
export ACTIONS_RUNNER_INPUT_JITCONFIG="$config"
exec "$home/run.sh"
