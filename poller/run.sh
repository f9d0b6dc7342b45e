#!/bin/sh
# Entry of container `runner`: check the image, wait for the result of the poller, then become the runner.
#
# The script first checks whether the runner can start in this container, and leaves the result for the poller: the file
# $OSTLER_JIT_DIR/runner-usable, or the file runner-unusable with an exit code and a reason. The poller requests no work
# before that.
#
# The script has no token and makes no network call before there is work. If the poller got no work (no-work), the
# script exits 0 without a runner. Otherwise its exit code is the exit code of the runner. The script removes the JIT
# config from the shared directory before the runner starts.
#
#   OSTLER_JIT_DIR        memory volume shared with container `poller`
#   OSTLER_RUNNER_HOME    where the runner is installed; default /home/runner
#   OSTLER_WAIT_SECONDS   seconds between two checks for the result; default 0.5
#   OSTLER_BUILDKIT       address of the BuildKit daemon in the Pod, if the pool has one
#
# Exit codes before there is work: 0 no work, 22 no runner, 23 wrong user. Later it is the exit code of the runner.
set -eu
set +x    # a trace would print the JIT config

jit_dir=${OSTLER_JIT_DIR:?is not set}
home=${OSTLER_RUNNER_HOME:-/home/runner}

# A shell that is process 1 of a container ignores SIGTERM unless it has a handler.
trap 'exit 143' TERM
trap 'exit 130' INT

# End with exit code $1 and reason $2, and leave both for the poller. The new name makes the file appear complete.
unusable() {
    echo "runner: $2" >&2
    echo "$1 $2" >"$jit_dir/.runner-unusable" && mv -f "$jit_dir/.runner-unusable" "$jit_dir/runner-unusable"
    exit "$1"
}

# The runner writes its registration, its logs and a copy of a script into its home. `test` as root ignores modes, but a
# runner Pod never has the user root.
check_runner() {
    user="user $(id -u), group $(id -g)"
    [ -d "$home" ] || unusable 22 "there is no folder $home"
    [ -x "$home" ] || unusable 23 "$user cannot open the folder $home"
    [ -f "$home/run.sh" ] || unusable 22 "there is no $home/run.sh"
    if [ ! -r "$home/run.sh" ] || [ ! -x "$home/run.sh" ]; then
        unusable 23 "$user cannot execute $home/run.sh"
    fi
    [ -w "$home" ] || unusable 23 "$user cannot write to the folder $home"
    true >"$jit_dir/runner-usable"
}

check_runner
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
# Docker Buildx finds its builders in files of a folder to which it also writes.
if [ -n "${OSTLER_BUILDKIT:-}" ]; then
    export BUILDX_CONFIG="${BUILDX_CONFIG:-$home/.buildx}" BUILDX_BUILDER="${BUILDX_BUILDER:-ostler}"
    node='{"Name":"ostler0","Endpoint":"'$OSTLER_BUILDKIT'","Platforms":null,"DriverOpts":null,"Flags":null,"Files":null}'
    mkdir -p "$BUILDX_CONFIG/instances" &&
        echo '{"Name":"ostler","Driver":"remote","Nodes":['"$node"'],"Dynamic":false}' >"$BUILDX_CONFIG/instances/ostler" ||
        echo "runner: $BUILDX_CONFIG has no builder for Buildx" >&2
fi
# With this variable, a runner whose version GitHub refuses as too old exits with 7. Without this variable, its exit
# code is 0, as after a finished job. The runner's updates of itself stay enabled, because no option and no variable
# disables them for a JIT runner. A runner that is one release behind therefore updates itself before the job.
export ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1
# The JIT config is passed in the environment, because every process of the node can read a command line, and audit logs
# store command lines. The runner removes both variables from its environment, so that no step of the job inherits them.
export ACTIONS_RUNNER_INPUT_JITCONFIG="$config"
exec "$home/run.sh"
