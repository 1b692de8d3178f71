"""Where a validation is written down, besides the terminal."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import runner

if TYPE_CHECKING:
    from jobs.validate.report import Report


@dataclass(frozen=True)
class Outputs:
    """Files by format; None where none was asked for."""

    json: str | None = None
    html: str | None = None
    junit: str | None = None
    prometheus: str | None = None

    def named(self) -> dict[str, Path]:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: Path(path) for name, path in given.items() if path}


def check(outputs: Outputs, baseline: Path | None = None) -> None:
    """Refuse what cannot be written, before anything is measured; UserError. Nothing is left or changed.

    baseline: that this run is kept in.
    """
    from jobs.measure.record_file import refuse_unwritable  # the words are read without it

    paths = [*outputs.named().values(), *([baseline] if baseline else [])]
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise runner.UserError("one file for two reports", got=str(path))
        if path is not baseline:
            refuse_unwritable(path)


def write(report: Report, outputs: Outputs, last: bool = True) -> list[str]:
    """Every file whole at every moment: whoever collects them may read at any time. What could not be written
    is returned, a sentence each.

    last: False while the run goes on. Then what is read now and then, or as it comes, is left alone.
    """
    failed = []
    for name, path in outputs.named().items():
        if not last and (runner.is_stream(path) or name == "prometheus"):
            continue
        text: str = importlib.import_module(f"jobs.validate.told.{name}").text(report)
        try:
            runner.write_file(path, text)
        except OSError as reason:
            failed.append(f"cannot write {path}: {reason.strerror}")
    return failed
