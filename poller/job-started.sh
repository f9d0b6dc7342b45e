#!/bin/sh
# The runner's job-started hook (ACTIONS_RUNNER_HOOK_JOB_STARTED): leaves the file that the readiness probe of container
# `runner` looks for, so that an execution shows in the Pod's status without network and without a token.
#
# A file that cannot be written costs a witness, never the job. OSTLER_JOB_STARTED_HOOK names a hook of the pool's own,
# which runs next: its exit code is this one's, so a hook that fails fails the job, as it would without Ostler.
set -u
if ! true >"${OSTLER_JIT_DIR:-/var/run/ostler}/job-started"; then
    echo "job-started: cannot write to ${OSTLER_JIT_DIR:-/var/run/ostler}; the job goes on"
fi
hook=${OSTLER_JOB_STARTED_HOOK:-}
case $hook in
    '') exit 0 ;;
    *.sh) exec bash "$hook" ;;    # as the runner starts a script that is not executable
    *) exec "$hook" ;;
esac
