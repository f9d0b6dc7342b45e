#!/bin/sh
# Container `register` of a Pod with a persistent runner: check the image, wait for the registration token, register the
# runner, then exit.
#
# The container has the image of the runner, and never runs code of a job. The poller receives the token and leaves it
# in a memory volume that only these two containers share. Container `runner` gets the files of the registered runner in
# another volume, and neither the token nor a way to get one.
#
#   OSTLER_JIT_DIR            memory volume shared with container `poller`
#   OSTLER_REGISTRATION_DIR   memory volume shared with container `runner`
#   OSTLER_RUNNER_HOME        where the runner is installed; default /home/runner
#   OSTLER_WAIT_SECONDS       seconds between two checks for the token; default 0.5
#   OSTLER_REGISTER_SECONDS   seconds within which the runner must be registered; default 300
#
# At the end of this time, `timeout` kills config.sh with its process group, and the container ends. A process of
# config.sh that has left its group ends with the container. When the container has ended, no runner can appear.
#
# The file `jit` has the lines url=, token=, name=, labels= and group=. With exit code 0, and only then, the file
# `registered` is in $OSTLER_REGISTRATION_DIR. After any other exit code, or without a token, the file `not-registered`
# is there, so that container `runner` never waits for nothing.
#
# Exit codes: 0 registered or no token, 1 not registered, 22 no runner, 23 wrong user.
set -eu
set +x    # a trace would print the token
umask 077

jit_dir=${OSTLER_JIT_DIR:?is not set}
out=${OSTLER_REGISTRATION_DIR:?is not set}
home=${OSTLER_RUNNER_HOME:-/home/runner}
FILES='.runner .credentials .credentials_rsaparams'
PAUSE=5

leave() {
    code=$?
    trap - EXIT
    [ -e "$out/registered" ] || true >"$out/not-registered"
    exit "$code"
}

# End config.sh, which is not in the process group of this script.
end_config() {
    [ -z "$config" ] || kill "$config" 2>/dev/null || true
}

config=
trap leave EXIT
trap 'end_config; exit 143' TERM
trap 'end_config; exit 130' INT

# End with exit code $1 and reason $2, and leave both for the poller. The new name makes the file appear complete.
unusable() {
    echo "register: $2" >&2
    echo "$1 $2" >"$jit_dir/.runner-unusable" && mv -f "$jit_dir/.runner-unusable" "$jit_dir/runner-unusable"
    exit "$1"
}

check_runner() {
    user="user $(id -u), group $(id -g)"
    [ -d "$home" ] || unusable 22 "there is no folder $home"
    [ -x "$home" ] || unusable 23 "$user cannot open the folder $home"
    for file in config.sh run.sh; do
        [ -f "$home/$file" ] || unusable 22 "there is no $home/$file"
        if [ ! -r "$home/$file" ] || [ ! -x "$home/$file" ]; then
            unusable 23 "$user cannot execute $home/$file"
        fi
    done
    [ -w "$home" ] || unusable 23 "$user cannot write to the folder $home"
    true >"$jit_dir/runner-usable"
}

# Print the value of the line $1= in the registration.
value() {
    sed -n "s/^$1=//p" "$jit_dir/jit"
}

# One attempt, of at most $left seconds. config.sh refuses to configure a runner twice, so the files of an earlier
# attempt are removed first. --replace replaces the runner that an earlier attempt registered with the same name.
register() {
    # shellcheck disable=SC2086    # the names have no spaces
    (cd "$home" && rm -f $FILES)
    set -- --unattended --replace --no-default-labels --url "$url" --name "$name" --labels "$labels" --work _work
    [ -z "$group" ] || set -- "$@" --runnergroup "$group"
    # The token is passed in the environment, because every process of the node can read a command line.
    (cd "$home" && ACTIONS_RUNNER_INPUT_TOKEN="$token" exec timeout -s KILL "$left" ./config.sh "$@") &
    config=$!
    wait "$config" || { set -- $?; config=; return "$1"; }
    config=
}

check_runner
while [ ! -e "$jit_dir/jit" ]; do
    if [ -e "$jit_dir/no-work" ]; then
        echo 'register: no token'
        exit 0
    fi
    sleep "${OSTLER_WAIT_SECONDS:-0.5}"
done
url=$(value url) token=$(value token) name=$(value name) labels=$(value labels) group=$(value group)
rm -f "$jit_dir/jit"
if [ -z "$url" ] || [ -z "$token" ] || [ -z "$name" ]; then
    echo 'register: the registration is not complete' >&2
    exit 1
fi

limit=${OSTLER_REGISTER_SECONDS:-300}
began=$(date +%s) left=$limit
until register; do
    left=$((began + limit - $(date +%s) - PAUSE))
    if [ "$left" -lt 1 ]; then
        echo 'register: gave up: config.sh failed, or did not end in time' >&2
        exit 1
    fi
    [ "$left" -le "$limit" ] || left=$limit    # the clock was set back
    echo 'register: config.sh failed; trying again'
    sleep "$PAUSE"
done
for file in $FILES; do
    cp "$home/$file" "$out/$file"
done
true >"$out/registered"
echo "register: registered $name"
