#!/bin/sh
# The job-completed hook (ACTIONS_RUNNER_HOOK_JOB_COMPLETED) of a persistent runner. It removes the file of the
# job-started hook, so that the status of the Pod shows that no job runs. If the file cannot be removed, the job has
# ended all the same. OSTLER_JOB_COMPLETED_HOOK can name a hook of the pool, which this script runs next.
set -u
if ! rm -f "${OSTLER_JIT_DIR:-/var/run/ostler}/job-started"; then
    echo "job-completed: cannot remove ${OSTLER_JIT_DIR:-/var/run/ostler}/job-started"
fi
hook=${OSTLER_JOB_COMPLETED_HOOK:-}
case $hook in
    '') exit 0 ;;
    *.sh) exec bash "$hook" ;;    # the runner does the same, so that the file does not need the execute permission
    *) exec "$hook" ;;
esac
