"""Report a validation that ended early, from the process that started its ranks."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from meshrun.jobs.validate.health.alarms import with_alarms, with_not_judged
from meshrun.jobs.validate.plan import RUNGS
from meshrun.jobs.validate.report.formats import json as json_format
from meshrun.jobs.validate.report.formats import nagios as nagios_format
from meshrun.jobs.validate.report.formats import terminal
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import headline
from meshrun.jobs.validate.run import outputs
from meshrun.jobs.validate.run.outputs import Outputs
from meshrun.jobs.validate.verdict import EXIT, Alarm, RungResult, Verdict
from meshrun.runner.errors import UserError
from meshrun.runner.recorder.ring import start_time
from meshrun.runner.report.record import STDOUT, stdout
from meshrun.runner.system.launcher import takes_colour

NOTHING_MEASURED = Verdict(
    "ok", (), tuple(RungResult(name, "not measured", "the run ended before") for name in RUNGS), ()
)
ENDED_FROM_OUTSIDE = "ended from outside before all was measured"


def conclude(
    words: Sequence[str], status: int, reason: str, answer: str | None, files: Outputs, nagios: bool
) -> int:
    """Print and write what was known when the run ended. Returns the exit status.

    status: EXIT["critical"] if a rank failed, at least 128 for an interrupted run; any other is unknown.
    answer: rank 0's report as JSON, or None.
    """
    critical = status == EXIT["critical"]
    report = json_format.read(json.loads(answer)) if answer else empty_report(words)
    report = with_early_end(report, one_line(reason), critical)
    outputs.write_files(report, files)
    print_report(report, files, nagios, colour=takes_colour())
    return status if status >= 128 else EXIT[report.verdict.status]


def written_by_rank_0(file: str | None) -> str | None:
    """The report that rank 0, on another host, has written to `file` during this run, if it is seen here."""
    path = Path(file) if file not in (None, STDOUT) else None
    try:
        if path is None or path.stat().st_mtime < process_start():
            return None
        text = path.read_text()
        json_format.read(json.loads(text))
    except (OSError, ValueError, UserError):  # not on this host, or of something else
        return None
    return text


def process_start() -> float:
    """When this process was started, as time.time()."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start_time(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def empty_report(words: Sequence[str]) -> Report:
    """Return a report without measurements."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Report(NOTHING_MEASURED, (), now, 0.0, shlex.join(("meshrun", "validate", *words)))


def with_early_end(report: Report, reason: str, critical: bool) -> Report:
    """Return the report of a run that ended early because of `reason`, which is added if it is missing."""
    if critical and (not report.ended or report.verdict.status != "critical"):
        alarm = Alarm("critical", reason)
        return replace(report, ended=reason, verdict=with_alarms(report.verdict, [alarm]))
    if not critical and reason not in report.verdict.not_judged:
        return replace(report, verdict=with_not_judged(report.verdict, reason))
    return report


def one_line(failure: str) -> str:
    """Return a failure message on one line, without its hint."""
    what, _, _ = failure.partition(" Try: ")
    return "; ".join(line.strip() for line in what.removesuffix(".").splitlines())


def print_report(report: Report, files: Outputs, nagios: bool, colour: bool) -> None:
    """Print one line for a monitor, or the report; only its first line if there were no ranks.

    If one of `files` is standard output, that is all that goes there, and this text goes to standard error.
    """
    stream = sys.stdout
    if files.on_stdout:
        stdout().write(outputs.text_of(report, files.on_stdout))
        stdout().flush()
        stream, colour = sys.stderr, False
    if nagios:
        text = nagios_format.text(report)
    elif report.members:
        text = terminal.text(report, colour=colour)
    else:
        text = f"{headline(report)}\n"
    stream.write(text)
    stream.flush()
