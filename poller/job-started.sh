#!/bin/sh
# The runner's job-started hook (ACTIONS_RUNNER_HOOK_JOB_STARTED): leaves the file that the readiness probe of container
# `runner` looks for, so that an execution shows in the Pod's status without network and without a token.
set -eu
: >"${OSTLER_JIT_DIR:?is not set}/job-started"
