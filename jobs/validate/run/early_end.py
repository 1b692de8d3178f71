"""The verdict of a validation that ended without one, reported by the process that is left."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from jobs.validate.health.alarms import unjudged, with_alarms
from jobs.validate.plan import RUNGS
from jobs.validate.report.formats import json as json_format
from jobs.validate.report.formats import nagios as nagios_format
from jobs.validate.report.formats import terminal
from jobs.validate.report.model import Report
from jobs.validate.report.wording import headline
from jobs.validate.run import outputs
from jobs.validate.run.outputs import Outputs
from jobs.validate.verdict import EXIT, Alarm, RungResult, Verdict

NOTHING = Verdict(
    "ok", (), tuple(RungResult(name, "not measured", "the run ended before") for name in RUNGS), ()
)
FROM_OUTSIDE = "ended from outside before all was measured"


def conclude(
    words: Sequence[str], status: int, why: str, answer: str | None, files: Outputs, nagios: bool
) -> int:
    """Print and write what was known when the run ended; the exit status.

    status: EXIT["critical"] where a rank failed, 128 and more of an interrupted run; any other is unknown.
    answer: rank 0's report, as JSON.
    """
    critical = status == EXIT["critical"]
    report = json_format.read(json.loads(answer)) if answer else nothing(words)
    report = cut_short(report, sentence(why), critical)
    outputs.write(report, files)
    say(report, nagios, colour=sys.stdout.isatty())
    return status if critical or status >= 128 else EXIT["unknown"]


def nothing(words: Sequence[str]) -> Report:
    """A report without any measurement."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Report(NOTHING, (), now, 0.0, shlex.join(("meshrun", "validate", *words)))


def cut_short(report: Report, why: str, critical: bool) -> Report:
    """The report of a run that ended because of `why`, unless the report already says why."""
    if critical and not report.ended:
        alarm = Alarm("critical", why)
        return replace(report, ended=why, verdict=with_alarms(report.verdict, [alarm]))
    if not critical and why not in report.verdict.not_judged:
        return replace(report, verdict=unjudged(report.verdict, why))
    return report


def sentence(failure: str) -> str:
    """A failure on one line, without its hint."""
    what, _, _ = failure.partition(" Try: ")
    return "; ".join(line.strip() for line in what.removesuffix(".").splitlines())


def say(report: Report, nagios: bool, colour: bool) -> None:
    """Print a line for a monitor, or the report; only its first line where nothing was measured."""
    if nagios:
        text = nagios_format.text(report)
    elif report.members:
        text = terminal.text(report, colour=colour)
    else:
        text = f"{headline(report)}\n"
    sys.stdout.write(text)
    sys.stdout.flush()
