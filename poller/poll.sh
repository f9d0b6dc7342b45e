#!/bin/sh
# Container `poller`: poll Ostler until Ostler returns work, pass the work to container `runner`, then exit.
#
# With exit code 0, and only then, $OSTLER_JIT_DIR/jit has the complete JIT config. With any other exit code, the script
# leaves the file $OSTLER_JIT_DIR/no-work, so that the entry of container `runner` (run.sh) never waits for a poller
# that has ended. The termination message is the claim id, or the reason why there is no work. The token and the JIT are
# only copied from file to file. No variable, argument or log contains them.
#
# The script needs an HTTP client that reads a header with the token from a file, and that verifies certificates: curl,
# or else GNU wget. Before the first poll, the script waits until run.sh in container `runner` has checked the image.
#
#   OSTLER_DISPATCH_URL     full address of the dispatch endpoint (https://…/runners/v1/dispatch)
#   OSTLER_TOKEN_FILE       the projected ServiceAccount token; read again for each poll, because kubelet rotates it
#   OSTLER_CA_FILE          PEM file of trusted CAs for https; read again for each poll. Empty: the CAs of the image
#   OSTLER_JIT_DIR          memory volume shared with container `runner`
#   OSTLER_TERMINATION_LOG  default /dev/termination-log
#
# Exit codes: 0 work delivered, 1 refused or broken, 10 this Pod will be replaced, 128+n signal n. 21 (no client), 22 (no
# runner) and 23 (wrong user) mean that the image cannot be used. rules/pools/starts.py explains these three.
set -eu
umask 077

POLL_SECONDS=70        # longer than the server's longest hold (55 s)
CONNECT_SECONDS=5
DEFAULT_MS=1000        # first wait if the answer has no Retry-After; doubles up to CAP_MS
CAP_MS=30000
RETRY_AFTER_CAP=60
LARGEST_JIT=1048576
CHECK_MS=200           # between two checks for the result of run.sh
NO_CLIENT=21

jit_dir=${OSTLER_JIT_DIR:-}
termination_log=${OSTLER_TERMINATION_LOG:-/dev/termination-log}
staged=$jit_dir/.poll.body
headers=$jit_dir/.poll.headers
outcome=$jit_dir/.poll.status
config=$jit_dir/.poll.config
client=
message='ended without a reason'
child=
failures=0

say() {
    printf 'poller: %s\n' "$*"
}

# Every exit runs this function. $? is the exit code of the script.
leave() {
    code=$?
    trap - EXIT
    trap '' HUP INT TERM
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null || :    # the child might have ended already
        wait "$child" || :
    fi
    if [ "$code" -ne 0 ] && [ -n "$jit_dir" ]; then
        true >"$jit_dir/no-work" || say "cannot write no-work"
    fi
    if [ -n "$jit_dir" ]; then
        rm -f "$staged" "$headers" "$outcome" "$config" || say "cannot remove the temporary files"
    fi
    printf '%s' "$message" >"$termination_log" || say "cannot write the termination message"
    say "exit $code: $message"
    exit "$code"
}

# curl and sleep run in the background, so that a signal ends the wait at once. A shell that waits for a child in the
# foreground would handle the signal only after the end of the child.
on_signal() {
    message="terminated by signal $1"
    exit $((128 + $1))
}

trap leave EXIT
trap 'on_signal 1' HUP
trap 'on_signal 2' INT
trap 'on_signal 15' TERM

quit() {
    message=$2
    exit "$1"
}

# Print a random number in [0, $1) from the kernel. Pods that start in the same second must not share a seed.
random_below() {
    [ "$1" -gt 0 ] || set -- 1
    raw=$(od -An -N2 -tu2 /dev/urandom | tr -dc '0-9')
    printf '%s' $((${raw:-0} % $1))
}

pause_ms() {
    sleep "$(($1 / 1000)).$(printf '%03d' $(($1 % 1000)))" &
    child=$!
    wait "$child" || sleep 1    # a `sleep` that rejects fractions must not cause a busy loop
    child=
}

# Print the value of header $1 in the last answer, or nothing. Interim answers might precede the last answer. wget writes
# spaces before each header.
header() {
    grep -i "^ *$1:" "$headers" | tail -n 1 | cut -d: -f2- | tr -d ' \t\r\n'
}

# Print Retry-After in whole seconds, 0 to RETRY_AFTER_CAP. Print nothing if it is missing or not a plain number.
retry_after() {
    value=$(header retry-after)
    case $value in
        '' | *[!0-9]*) return 0 ;;
    esac
    while [ "${value#0}" != "$value" ] && [ "$value" != 0 ]; do
        value=${value#0}    # the shell reads a number with a leading zero as octal
    done
    if [ "${#value}" -gt 2 ] || [ "$value" -gt "$RETRY_AFTER_CAP" ]; then
        value=$RETRY_AFTER_CAP
    fi
    printf '%s' "$value"
}

# Wait $1 seconds plus a random time of about a quarter of $1 at most. Otherwise all Pods would poll together after a
# restart.
wait_as_told() {
    told_ms=$(($1 * 1000))
    pause_ms $((told_ms + $(random_below $((told_ms / 4 + 250)))))
}

# Wait between half a step and a whole step. The step doubles with each failure in a row.
back_off() {
    say "$1; backing off"
    step_ms=$DEFAULT_MS
    doublings=$failures
    while [ "$doublings" -gt 0 ] && [ "$step_ms" -lt "$CAP_MS" ]; do
        step_ms=$((step_ms * 2))
        doublings=$((doublings - 1))
    done
    [ "$step_ms" -le "$CAP_MS" ] || step_ms=$CAP_MS
    failures=$((failures + 1))
    pause_ms $((step_ms / 2 + $(random_below $((step_ms / 2 + 1)))))
}

# Set $client. The wget of busybox does not verify certificates, and it takes headers only from its command line.
choose_client() {
    if command -v curl >/dev/null; then
        client=curl
    elif command -v timeout >/dev/null && wget --version 2>/dev/null | grep -q '^GNU Wget 1\.'; then
        client=wget
    else
        quit "$NO_CLIENT" "the image has neither curl nor GNU wget"
    fi
}

# Wait until run.sh has checked its container. A Pod without a usable runner must not get work.
await_runner() {
    check_volume
    until [ -e "$jit_dir/runner-usable" ]; do
        if [ -s "$jit_dir/runner-unusable" ]; then
            read -r code reason <"$jit_dir/runner-unusable" || :    # the line might have no end
            case $code in
                22 | 23) quit "$code" "$reason" ;;
                *) quit 1 "run.sh left a result that this script does not know" ;;
            esac
        fi
        pause_ms "$CHECK_MS"
    done
    rm -f "$jit_dir/runner-usable"
}

# Create the files of a poll, or end. `true`, not `:`, because a failed redirection of a special built-in ends the shell
# without its trap.
check_volume() {
    if ! { true >"$staged" && true >"$headers" && true >"$outcome" && true >"$config"; }; then
        quit 1 "cannot write to the shared directory"
    fi
}

# One poll. Sets $status to the HTTP status, or 000 if there was no complete answer.
poll() {
    check_volume
    code=0
    status=000
    "poll_with_$client"
    wait "$child" || code=$?
    child=
    "status_of_$client" "$code"
}

poll_with_curl() {
    set --
    [ -z "${OSTLER_CA_FILE:-}" ] || set -- --cacert "$OSTLER_CA_FILE"
    # The pipe builds the header. On a command line, the token would be visible in the process list.
    {
        printf 'Authorization: Bearer '
        tr -d '\r\n' <"$OSTLER_TOKEN_FILE"
    } | curl --disable --noproxy '*' --silent --show-error --request POST --data '' \
        --header @- --header 'Accept: text/plain' --header 'Content-Type:' \
        --proto '=http,https' --connect-timeout "$CONNECT_SECONDS" --max-time "$POLL_SECONDS" \
        --max-filesize "$LARGEST_JIT" --output "$staged" --dump-header "$headers" --write-out '%{http_code}' \
        "$@" "$OSTLER_DISPATCH_URL" >"$outcome" &
    child=$!
}

status_of_curl() {
    case $1 in
        0) status=$(cat "$outcome") ;;
        23) quit 1 "cannot write the answer to the shared directory" ;;
    esac
}

# wget reads the header with the token from a configuration file, and refuses a pipe. The file has no name any more when
# the token is written, so container `runner` cannot open it.
poll_with_wget() {
    set --
    # --ca-directory and the variables remove the CAs of the image, which wget would trust as well.
    [ -z "${OSTLER_CA_FILE:-}" ] || set -- "--ca-certificate=$OSTLER_CA_FILE" --ca-directory=/nonexistent
    # shellcheck disable=SC2094    # two descriptors of one file: the shell writes the file before wget reads it
    {
        rm -f "$config"
        {
            printf 'header = Authorization: Bearer '
            tr -d '\r\n' <"$OSTLER_TOKEN_FILE"
            printf '\nheader = Accept: text/plain\n'
        } >&3
        (
            exec 3>&-
            ulimit -f "$((LARGEST_JIT / 512))"    # wget has no limit for the size of a file
            if [ -n "${OSTLER_CA_FILE:-}" ]; then
                export SSL_CERT_FILE="$OSTLER_CA_FILE" SSL_CERT_DIR=/nonexistent
            fi
            exec timeout "$POLL_SECONDS" wget --config=/proc/self/fd/4 --no-verbose --server-response \
                --no-proxy --no-netrc --no-hsts --no-cookies --tries=1 --max-redirect=0 \
                --dns-timeout="$CONNECT_SECONDS" --connect-timeout="$CONNECT_SECONDS" --read-timeout="$POLL_SECONDS" \
                --method=POST --body-data='' --output-document="$staged" --output-file="$headers" \
                "$@" "$OSTLER_DISPATCH_URL"
        ) &
        child=$!
    } 3>"$config" 4<"$config"
}

# wget exits 0 after a complete answer with a status below 300, 6 after status 401, and 8 after other statuses.
status_of_wget() {
    case $1 in
        0 | 6 | 8) status=$(grep '^ *HTTP/' "$headers" | tail -n 1 | tr -s ' ' | sed 's/^ //' | cut -d ' ' -f 2) ;;
        3) quit 1 "cannot write the answer to the shared directory" ;;
    esac
}

# Return 0 if an answer with status 200 is work: it names a claim, and its body is complete and has the right type.
# Without these checks, the script would accept the error page of a proxy, or a JIT that a broken connection truncated.
is_work() {
    grep -q '[^[:space:]]' "$staged" || return 1
    [ -n "$(header x-ostler-claim)" ] || return 1
    is_whole || return 1
    case $(header content-type) in
        '' | [Tt][Ee][Xx][Tt]/[Pp][Ll][Aa][Ii][Nn]*) return 0 ;;
    esac
    return 1
}

# Return 0 if the body matches the digest in the answer, or the Content-Length if the digest cannot be checked. A proxy
# that uses chunked encoding removes the Content-Length.
is_whole() {
    digest=$(header x-ostler-sha256)
    if [ -n "$digest" ] && command -v sha256sum >/dev/null; then
        [ "$(sha256sum <"$staged" | cut -d ' ' -f 1)" = "$digest" ]
    else
        [ "$(wc -c <"$staged" | tr -d ' ')" = "$(header content-length)" ]
    fi
}

deliver() {
    trap '' HUP INT TERM    # a signal must not change the exit code while the JIT passes to the runner
    claim=$(header x-ostler-claim | tr -dc 'A-Za-z0-9._-' | cut -c 1-128)
    runner=$(header x-ostler-runner | tr -dc 'A-Za-z0-9._-' | cut -c 1-128)
    if ! { chmod 0400 "$staged" && mv -f "$staged" "$jit_dir/jit"; }; then
        quit 1 "cannot write the JIT config"
    fi
    say "work: claim ${claim:-unknown} runner ${runner:-unknown}"
    quit 0 "${claim:-unknown}"
}

[ -n "$jit_dir" ] || quit 1 "OSTLER_JIT_DIR is not set"
[ -n "${OSTLER_DISPATCH_URL:-}" ] || quit 1 "OSTLER_DISPATCH_URL is not set"
[ -n "${OSTLER_TOKEN_FILE:-}" ] || quit 1 "OSTLER_TOKEN_FILE is not set"

choose_client
await_runner
while :; do
    if [ ! -r "$OSTLER_TOKEN_FILE" ] || [ ! -s "$OSTLER_TOKEN_FILE" ]; then
        back_off "no token"
        continue
    fi
    poll
    told=$(retry_after)
    case $status in
        200)
            if is_work; then
                deliver
            fi
            back_off "status 200 without work"
            ;;
        204)
            failures=0
            if [ -n "$told" ]; then
                wait_as_told "$told"
            else
                pause_ms $((DEFAULT_MS / 2 + $(random_below "$DEFAULT_MS")))
            fi
            ;;
        401 | 403) quit 1 "refused: status $status" ;;
        410) quit 10 "replaced: status 410" ;;
        429 | 503)
            if [ -n "$told" ]; then
                wait_as_told "$told"
            else
                back_off "status $status"
            fi
            ;;
        *) back_off "status $status" ;;
    esac
done
