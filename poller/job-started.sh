#!/bin/sh
# The runner's job-started hook (ACTIONS_RUNNER_HOOK_JOB_STARTED). It writes the file that the readiness probe of
# container `runner` tests for. The status of the Pod then shows the execution, without network and without a token.
#
# If the file cannot be written, the job goes on; Ostler only lacks this evidence. OSTLER_JOB_STARTED_HOOK names a hook
# of the pool, which runs next. Its exit code becomes the exit code of this script. A failing hook therefore fails the
# job, as it would without Ostler.
set -u
if ! true >"${OSTLER_JIT_DIR:-/var/run/ostler}/job-started"; then
    echo "job-started: cannot write to ${OSTLER_JIT_DIR:-/var/run/ostler}; the job goes on"
fi
hook=${OSTLER_JOB_STARTED_HOOK:-}
case $hook in
    '') exit 0 ;;
    *.sh) exec bash "$hook" ;;    # the runner starts a script that is not executable in this way too
    *) exec "$hook" ;;
esac
