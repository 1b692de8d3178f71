"""`meshrun doctor`: run the preflight alone and show all facts, even when checks fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshrun.runner.comm.api import Control
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import printable, show
from meshrun.runner.options.choices import DeviceChoice
from meshrun.runner.report.record import STDOUT, envelope, stdout_for, write_json
from meshrun.runner.storage.formats.registry import check_place
from meshrun.runner.system.launcher import Started
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.preflight.inspection import find_problems, gather_surveys, raise_failures
from meshrun.runner.world.preflight.problem import Problem
from meshrun.runner.world.preflight.rank_table import render, rows
from meshrun.runner.world.preflight.survey import Survey
from meshrun.runner.world.rank_process import run_as_rank
from meshrun.runner.world.world import Rank, World

SCHEMA = 1


def main(
    started: Started,
    device: DeviceChoice,
    file: Path | None = None,
    debug: bool = False,
    mpi: str = "",
    settings: Sequence[tuple[str, str, str]] = (),
) -> int:
    """Run one rank of `meshrun doctor`; return the exit status. UserError if `file` cannot be written.

    mpi: the library that ranks would load, if this process is the only one and loads none. settings: name,
    value and source of each default that is in force for starting ranks.
    """
    to_stdout = str(file) == STDOUT
    if file is not None and not to_stdout:
        check_place(file, "record")
    found: list[tuple[list[Survey], list[Problem]]] = []

    def look(control: Control, ranks: Sequence[Rank], backend: Backend) -> list[str]:
        surveys = [replace(one, mpi=one.mpi or mpi) for one in gather_surveys(control, ranks, backend)]
        found.append((surveys, find_problems(control, surveys, started)))
        return []

    def body(world: World, handler: FailureHandler) -> dict[str, Any]:
        surveys, problems = found[0]
        facts = {
            "ranks": rows(surveys),
            "problems": [asdict(problem) for problem in problems],
            "settings": [dict(zip(("name", "value", "source"), one, strict=True)) for one in settings],
        }
        record = envelope("doctor", SCHEMA, facts)
        if world.rank == 0:
            shown = sys.stderr if to_stdout else sys.stdout
            lines = [f"setting {name} = {value}  ({source})" for name, value, source in settings]
            lines += [f"{'warning' if one.warning else 'FAILURE'}: {one}" for one in problems]
            lines += [] if problems else ["nothing is wrong"]
            show(printable(render(surveys) + "".join(f"{line}\n" for line in lines)), shown)
            if file is not None:
                write_json(file, "doctor", SCHEMA, record)
        raise_failures(problems)
        return record

    with stdout_for(file):
        return run_as_rank(
            body,
            FailureHandler(debug=debug),
            device=device,
            oversubscribe=True,
            started=started,
            check=look,
            command="doctor",
        )
