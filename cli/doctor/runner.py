"""Concurrent execution of the checks. Each check has its own deadline, so a slow check delays no other check."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from cli.doctor.context import Context
from cli.doctor.findings import Check, Finding, Outcome, Verdict, unknown
from ostler.errors import ConfigurationError, StoreUnreachable, UpstreamError


def run(checks: Sequence[Check], context: Context) -> list[Finding]:
    """Run the checks and return their findings in the order of the checks.

    The command does not wait for a check after the deadline of that check.
    """
    found: dict[int, Verdict] = {}
    threads = []
    began = time.monotonic()
    for number, check in enumerate(checks):
        # A thread pool would wait for all its threads at the end, and a check might hang for ever.
        thread = threading.Thread(target=_run_check, args=(found, number, check, context), name=check.name, daemon=True)
        thread.start()
        threads.append(thread)
    findings = []
    for number, (check, thread) in enumerate(zip(checks, threads, strict=True)):
        thread.join(max(0.0, began + check.within - time.monotonic()))
        verdict = found.get(number) or unknown(f"the check did not end within {check.within:.0f} s", "try again")
        findings.append(Finding(check.name, check.family, verdict.outcome, verdict.cause, verdict.cure))
    return findings


def _run_check(found: dict[int, Verdict], number: int, check: Check, context: Context) -> None:
    try:
        found[number] = check.run(context)
    except ConfigurationError as error:
        variables = ", ".join(line.partition(":")[0] for line in str(error).splitlines())
        found[number] = unknown(f"not checked: {variables}", "correct the failed checks first")
    except StoreUnreachable as error:
        found[number] = unknown(f"not checked: {error}", "correct the failed checks first")
    except UpstreamError as error:
        found[number] = unknown(
            f"not checked: {error}", "correct the failed checks of this family first, if there are any"
        )
    except Exception as error:  # noqa: BLE001  a bug in one check must not stop the others
        # The message shows only the class and the place, because the text might contain a row (law L13).
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}, in {place.name}"
        found[number] = unknown(
            f"the check itself failed with {type(error).__name__} at {where}", "report it as a bug of Ostler"
        )


def is_bad(findings: Sequence[Finding], *, strict: bool) -> bool:
    """Return True if the exit status must be 1, because a check failed or every check is unknown.

    If `strict` is true, return True if any check has an outcome other than ok.
    """
    if findings and all(each.outcome is Outcome.UNKNOWN for each in findings):
        return True
    bad = {Outcome.FAILED, Outcome.WARNING, Outcome.UNKNOWN} if strict else {Outcome.FAILED}
    return any(each.outcome in bad for each in findings)
