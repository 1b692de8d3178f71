"""Write the report files of a validation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.runner.errors import UserError
from meshrun.runner.files import is_stream, write_file
from meshrun.runner.report.record import STDOUT

if TYPE_CHECKING:
    from meshrun.jobs.validate.report.model import Report


@dataclass(frozen=True)
class Outputs:
    """Paths by format; None: not written, "-": standard output."""

    json: str | None = None
    html: str | None = None
    junit: str | None = None
    prometheus: str | None = None

    def named(self) -> dict[str, Path]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: Path(path) for name, path in given.items() if path and path != STDOUT}

    @property
    def on_stdout(self) -> str | None:
        """The format that goes to standard output, if one does."""
        return next((one.name for one in fields(self) if getattr(self, one.name) == STDOUT), None)

    def without_files(self) -> Outputs:
        """Only what goes to standard output."""
        return Outputs(**{self.on_stdout: STDOUT}) if self.on_stdout else Outputs()


def check_writable(outputs: Outputs, baseline: Path | None = None) -> None:
    """Raise UserError for a file that cannot be written; changes no file.

    baseline: the file that this run will be saved in.
    """
    from meshrun.jobs.measure.record_file import refuse_unwritable

    if sum(getattr(outputs, one.name) == STDOUT for one in fields(outputs)) > 1:
        raise UserError("two reports on standard output", got=STDOUT, expected="a file for all but one")
    paths = [*outputs.named().values(), *([baseline] if baseline else [])]
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise UserError("one file for two reports", got=str(path))
        if path is not baseline:
            refuse_unwritable(path)


def write_files(report: Report, outputs: Outputs, last: bool = True) -> list[str]:
    """Write each file atomically. Returns a sentence for each one that failed.

    Standard output is left to `print_report`, which writes it once. last: False during the run; streams and
    Prometheus metrics are only written at its end.
    """
    failed = []
    for name, path in outputs.named().items():
        if not last and (is_stream(path) or name == "prometheus"):
            continue
        try:
            write_file(path, text_of(report, name))
        except OSError as reason:
            failed.append(f"cannot write {path}: {reason.strerror}")
    return failed


def text_of(report: Report, name: str) -> str:
    """Return the report in the format `name`."""
    text: str = importlib.import_module(f"meshrun.jobs.validate.report.formats.{name}").text(report)
    return text
