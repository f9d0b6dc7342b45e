"""Execution of one command: return its exit code, and write one line to the log of the job if the command fails."""

from __future__ import annotations

import traceback
from pathlib import Path

from container_hooks import shared_workspace
from container_hooks.cleanup_job import cleanup_job
from container_hooks.container_step import run_container_step
from container_hooks.failures import HookFailed, failure_of, one_line
from container_hooks.inputs import Command, ContainerStep, HookInput, PrepareJob, ScriptStep
from container_hooks.permissions import missing_rights
from container_hooks.ports import World
from container_hooks.prepare_job import prepare_job
from container_hooks.script_step import run_script_step
from ostler import logging
from ostler.errors import OstlerError

log = logging.get_logger(__name__)
FAILED = 1
"""Exit code of a command that failed itself. A step that ran has its own exit code."""


def execute(given: HookInput, *, world: World) -> int:
    """Execute a command, and return its exit code.

    The exit code of a step is the exit code of its program. A failure of the command itself becomes one line, in the
    form that the runner shows as an error.
    """
    world.ledger.begin(first_of_job=given.command is Command.PREPARE_JOB)
    try:
        return _dispatch(given, world)
    except OstlerError as error:
        failure = failure_of(given.command.value, error)
        lacking = missing_rights(world) if failure.denied else []
        more = f" (missing: {', '.join(lacking)})" if lacking else ""
        world.log.line(error_line(f"{failure}{more}"))
        return failure.code
    except Exception as error:  # noqa: BLE001  the log of a job must not contain a traceback
        # The log event omits the message of the error, because the message might contain a secret of the job.
        stack = "".join(traceback.format_tb(error.__traceback__))
        log.error("hooks.command_broken", command=given.command.value, error=type(error).__name__, stack=stack)  # noqa: TRY400
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"
        world.log.line(error_line(f"{given.command.value} failed because of a bug in Ostler ({where}); report it"))
        return FAILED


def error_line(text: str) -> str:
    """Return a line that the runner shows as an error (GitHub Docs: "Workflow commands for GitHub Actions")."""
    return f"::error::{one_line(text).replace('%', '%25')}"


def _dispatch(given: HookInput, world: World) -> int:
    if world.settings.shared:
        return _dispatch_shared(given, world)
    match given.args:
        case PrepareJob():
            return prepare_job(given.args, response_file=given.response_file, world=world)
        case ScriptStep():
            return run_script_step(given.args, world=world)
        case ContainerStep():
            return run_container_step(given.args, state=given.state, world=world)
        case _:
            if given.command is not Command.CLEANUP_JOB:
                raise HookFailed(f"{given.command.value}: the input has no `args`; the runner must send them")
            return cleanup_job(world)


def _dispatch_shared(given: HookInput, world: World) -> int:
    match given.args:
        case PrepareJob():
            return shared_workspace.prepare_job(given.args, response_file=given.response_file, world=world)
        case ScriptStep():
            return shared_workspace.run_script_step(given.args, world=world)
        case ContainerStep():
            return shared_workspace.run_container_step(given.args, state=given.state, world=world)
        case _:
            return shared_workspace.cleanup_job(world)
