#!/bin/sh
# Program of ACTIONS_RUNNER_CONTAINER_HOOKS: pass one command of the runner to the sidecar `hooks` of this Pod.
#
# The runner writes the command to standard input as JSON. The sidecar executes the command and has the only token of the
# Kubernetes API. This script packs and unpacks files of the job for the sidecar, and prints the log of the command. It
# needs sh, curl and tar. The sidecar writes this file into the shared volume, so no image contains it.
#
#   OSTLER_HOOKS_SOCKET   socket of the sidecar; default /var/run/ostler-hooks/hooks.sock
#   OSTLER_HOOKS_WAIT     seconds to wait until the sidecar answers, before the command begins; default 60
#   RUNNER_WORKSPACE, GITHUB_WORKSPACE, RUNNER_TEMP   folders of the job, which the runner sets
#
# Exit codes: the exit code of the command, 1 if the sidecar refused or lost the command, 128+n for signal n.
set +e    # the runner starts hooks with `bash -e`
set -u
umask 022

socket=${OSTLER_HOOKS_SOCKET:-/var/run/ostler-hooks/hooks.sock}
base=http://hooks
id=
log_pid=
newline='
'

say() {
    printf 'ostler: %s\n' "$*" >&2
}

# One request to the sidecar. Errors of curl are not printed, because each caller prints one line about its failure.
ask() {
    curl --disable --silent --noproxy '*' --unix-socket "$socket" --connect-timeout 5 "$@"
}

stop_log() {
    [ -z "$log_pid" ] || kill "$log_pid" 2>/dev/null
    log_pid=
}

# End after a failure of the sidecar. The command is not repeated, because it might have begun.
lost() {
    stop_log
    say "the sidecar of container jobs did not finish this command: $1. If it stopped, it restarts; run the job again"
    exit 1
}

# Cancel the command, so that the sidecar is free for cleanup_job.
on_signal() {
    trap - HUP INT TERM
    stop_log
    [ -z "$id" ] || ask --max-time 5 --output /dev/null --request DELETE "$base/run?id=$id"
    exit $((128 + $1))
}

trap 'on_signal 1' HUP
trap 'on_signal 2' INT
trap 'on_signal 15' TERM

# Return 0 if all exit codes in the argument are 0. A pipe returns only the exit code of its last program.
all_zero() {
    for code in $1; do
        [ "$code" = 0 ] || return 1
    done
}

is_gnu_tar() {
    case $(tar --version 2>/dev/null) in
        *GNU*) return 0 ;;
    esac
    return 1
}

# Print the entries of the current folder, one per line. The folder itself is left out, because an archive that contains
# it would change the owner and the mode of the folder into which the archive is unpacked.
entries() {
    for each in ./* ./.[!.]* ./..?*; do
        if [ -e "$each" ] || [ -L "$each" ]; then
            printf '%s\n' "$each"
        fi
    done
}

# Print an archive of the entries in the lines of $1.
archive() {
    if is_gnu_tar; then
        printf '%s\n' "$1" | tar -cf - --no-unquote -T -
        code=$?
        [ "$code" != 1 ] || code=0    # a file changed while it was read
        return "$code"
    fi
    set -f
    IFS=$newline
    # shellcheck disable=SC2086    # each line is one argument
    set -- $1
    unset IFS
    set +f
    tar -cf - "$@"
}

# Pack the content of folder $1 and upload it. A folder that does not exist counts as empty.
pack() {
    mkdir -p "$1" && cd "$1" || return 1
    list=$(entries)
    codes=$(
        {
            {
                if [ -n "$list" ]; then
                    archive "$list"
                else
                    dd if=/dev/zero bs=1024 count=10 2>/dev/null    # busybox makes no empty archive
                fi
                printf '%s ' "$?" >&3
            } | {
                ask --fail --output /dev/null --header 'Expect:' --upload-file - "$base/files?id=$id"
                printf '%s ' "$?" >&3
            }
        } 3>&1
    )
    cd / || return 1
    all_zero "$codes"
}

# Download an archive and unpack it into folder $1.
unpack() {
    mkdir -p "$1" || return 1
    set -- "$1" -xof -
    if is_gnu_tar; then
        set -- "$@" --no-overwrite-dir
    fi
    codes=$(
        {
            {
                ask --fail "$base/body?id=$id"
                printf '%s ' "$?" >&3
            } | {
                folder=$1
                shift
                cd "$folder" && tar "$@" >&2
                printf '%s ' "$?" >&3
                cat >/dev/null    # bytes after the end of the archive
            }
        } 3>&1
    )
    all_zero "$codes"
}

# Download the content of file $1.
store() {
    mkdir -p "${1%/*}/" && ask --fail --output "$1" "$base/body?id=$id"
}

waited=0
until ask --fail --max-time 5 --output /dev/null "$base/ready"; do
    if [ "$waited" -ge "${OSTLER_HOOKS_WAIT:-60}" ]; then
        say "the sidecar of container jobs does not answer at $socket. Check the log of container \`hooks\` of this Pod"
        exit 1
    fi
    [ "$waited" -gt 0 ] || say "waiting for the sidecar of container jobs, which is not ready yet"
    sleep 1
    waited=$((waited + 1))
done

answer=$(
    ask --max-time 180 --header 'Expect:' --header 'Content-Type: application/json' --data-binary @- \
        --header "X-Ostler-Runner-Workspace: ${RUNNER_WORKSPACE:-}" \
        --header "X-Ostler-Github-Workspace: ${GITHUB_WORKSPACE:-}" \
        --header "X-Ostler-Runner-Temp: ${RUNNER_TEMP:-}" "$base/run"
)
case $answer in
    'run '*) id=${answer#run } ;;
    'refused '*)
        say "${answer#refused }"
        exit 1
        ;;
    *) lost 'it did not answer the request that starts the command' ;;
esac

ask --no-buffer "$base/log?id=$id" &
log_pid=$!

status=0
while :; do
    answer=$(ask --max-time 60 "$base/next?id=$id&status=$status") || lost 'the connection was cut'
    status=0
    case $answer in
        wait) ;;
        'send '*) pack "${answer#send }" || status=1 ;;
        'receive '*) unpack "${answer#receive }" || status=1 ;;
        'write '*) store "${answer#write }" || status=1 ;;
        'exit '*)
            wait "$log_pid"
            exit "${answer#exit }"
            ;;
        'refused '*)
            stop_log
            say "${answer#refused }"
            exit 1
            ;;
        *) lost 'it sent an unknown instruction' ;;
    esac
done
