#!/bin/sh
# The runner's job-started hook (ACTIONS_RUNNER_HOOK_JOB_STARTED). The script writes a file. The readiness probe of
# container `runner` tests for this file, so the status of the Pod then shows that a job runs. The script needs neither
# the network nor a token.
#
# If the file cannot be written, the job continues, and Ostler only lacks this evidence. OSTLER_JOB_STARTED_HOOK can
# name a hook of the pool, which this script runs next. The exit code of the hook becomes the exit code of this script.
# A failing hook therefore fails the job, as it would without Ostler.
set -u
if ! true >"${OSTLER_JIT_DIR:-/var/run/ostler}/job-started"; then
    echo "job-started: cannot write to ${OSTLER_JIT_DIR:-/var/run/ostler}; the job continues"
fi
hook=${OSTLER_JOB_STARTED_HOOK:-}
case $hook in
    '') exit 0 ;;
    *.sh) exec bash "$hook" ;;    # the runner does the same, so that the file does not need the execute permission
    *) exec "$hook" ;;
esac
